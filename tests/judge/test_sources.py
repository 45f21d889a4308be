"""What a file defines at its top."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.judge import sources

TEXT = """
import os.path
import torch as t
from math import sqrt, pi as circle

LIMIT = OTHER = 3
first, = [1]
one.two = 4

def public(a, /, b, *rest, c): ...
def _private(): ...
class Model:
    def method(self): ...
if LIMIT:
    def inside(): ...
"""


def read(tmp_path: Path, text: str) -> sources.Source:
    (tmp_path / "candidate.py").write_text(text)
    return sources.read(tmp_path / "candidate.py")


def test_names_that_a_file_defines(tmp_path: Path) -> None:
    found = read(tmp_path, TEXT)
    assert found.names == {"public", "_private", "Model", "LIMIT", "OTHER", "os.path", "t", "sqrt", "circle"}
    assert found.functions == {"public": ("a", "b"), "_private": ()}
    assert found.public == ["public"]
    assert not found.adds


@pytest.mark.parametrize(
    "decorator", ["triton.jit", "triton.jit(debug=True)", "jit", "gluon.jit", "tuned(1)\n@triton.jit"]
)
def test_a_kernel_of_triton_is_no_function_that_is_called(tmp_path: Path, decorator: str) -> None:
    found = read(tmp_path, f"@{decorator}\ndef kernel(x_ptr): ...\n@no_grad()\ndef softmax(x): ...\n")
    assert found.public == ["softmax"]
    assert found.names == {"kernel", "softmax"}


@pytest.mark.parametrize(
    ("text", "adds"),
    [
        ("@find('softmax').variant('mine', 'text')\ndef mine(ctx): ...", True),
        ("OP.variant('mine', 'text')(print)", True),
        ("compiled_variants(OP)", True),
        ("OP.other('mine')", False),
        ("variant('mine')", False),
        ("OP.compiled_variants()", False),
    ],
)
def test_whether_a_file_adds_variants(tmp_path: Path, text: str, adds: bool) -> None:
    assert read(tmp_path, text).adds is adds


def test_what_is_no_python_defines_nothing():
    found = sources.Source(Path("candidate.json"))
    assert (found.names, found.functions, found.public, found.adds) == (set(), {}, [], False)


def test_what_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"candidate\.py: isn't valid Python") as found:
        read(tmp_path, "#include <torch/extension.h>\nint f(int x) { return x; }\n")
    assert "torch.utils.cpp_extension" in found.value.advice
    with pytest.raises(UsageError, match=r"missing\.py: can't be read"):
        sources.read(tmp_path / "missing.py")
