"""Libraries beside ours: what is called, with which arguments, and what it gives; modules in torch stand for them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness import check, cuda, runner
from harness.collection import peers
from harness.cuda.assumed import KNOWN
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Context
from tests.collection.peers.fakes import FAKES
from tests.one_test import one_test

FILES = [file.stem for file in Path(peers.__file__).parent.glob("[!_]*.py")]
LIBRARIES = {name: importlib.import_module(f"harness.collection.peers.{name}").LIBRARY for name in FILES}
NAMES = {"triton": "triton_tutorial"}
"""Names of the variants of a file, where they aren't the file's own."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All libraries, as modules of stand-ins."""
    monkeypatch.setattr(peers.torchao, "compiled", lambda function: function)  # to compile takes seconds
    for name, content in FAKES.items():
        module = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


OPS = Catalogue()


def variants_of(file: str) -> list[str]:
    """'op/variant' of each op that has the library."""
    name = NAMES.get(file, file)
    return [f"{op.name}/{name}" for op in OPS.values() if name in op.variants]


CALLED = [each for file in FILES if file != "triton" for each in variants_of(file)]


CHOICES = {
    "swiglu": {"layout": "packed"},
    "swiglu_grad": {"layout": "packed"},
    "rope": {"pairs": "halves", "way": "forward"},
    "quantize": {"scales": "tensor"},
    "int8_linear": {"scales": "tensor", "data": "normal"},
}
SIZES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "rope": lambda columns: (9, 4, 2, columns, 16),
    "int8_linear": lambda columns: (33, columns, 48),
}
"""Sizes of ops that don't have rows and columns alone."""


def case_of(which: str, dtype: str = "float16", columns: int = 64, **choices: str) -> Case:
    """A case of a few rows of so many columns, or heads of so many elements."""
    op, variant = which.split("/")
    values = SIZES[op](columns) if op in SIZES else (9, columns)
    sizes = dict(zip(OPS[op].symbols, values, strict=True))
    return Case(op, variant, dtype, tuple(sizes.items()), tuple((CHOICES.get(op, {}) | choices).items()))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("which", CALLED)
def test_a_library_is_called_as_it_wants_and_gives_what_the_op_wants(which: str, dtype: str) -> None:
    case = case_of(which, dtype)
    if dtype not in OPS[case.op].dtypes:
        pytest.skip(f"{case.op} has no {dtype}")
    with cuda.assuming(KNOWN["sm_90"]):
        if reason := _variant(*which.split("/")).unsupported(case):
            pytest.skip(reason)
    assert complaint(case) is None


@pytest.mark.usefixtures("installed")
@one_test(
    ("which", "choices"),
    [
        ("rope/flashinfer", {"pairs": "interleaved"}),
        ("swiglu/liger", {"layout": "separate"}),
        ("quantize/torchao", {"scales": "channel"}),
        *(("int8_linear/torchao", {"scales": scales}) for scales in ("channel", "token")),
        *(
            ("rope/quack", {"pairs": pairs, "way": way})
            for pairs in ("halves", "interleaved")
            for way in ("forward", "backward")
        ),
    ],
)
def test_a_library_gets_each_choice(which: str, choices: dict[str, str]) -> None:
    assert complaint(case_of(which, OPS[which.split("/", maxsplit=1)[0]].dtypes[-1], **choices)) is None


def test_rope_of_flashinfer_reads_the_rows_of_the_table_that_tokens_have() -> None:
    sizes = {"T": 3, "Q": 4, "K": 2, "D": 64, "P": 1000, "pairs": "halves", "way": "forward"}
    op = OPS["rope"]
    moved = [op.traffic_of(op.variants[name], sizes, "bfloat16") for name in ("flashinfer", "tuned")]
    assert moved[0] == moved[1]


def complaint(case: Case) -> str | None:
    """What is wrong with a call; None if nothing is."""
    place, seeded, op = torch.device("cpu"), torch.Generator().manual_seed(1), OPS[case.op]
    ctx, variant = Context(case, getattr(torch, case.dtype), place, seeded, op), op.variants[case.variant]
    inputs = check.make_inputs(ctx)
    tensors = check.new_set(ctx, variant, inputs)
    returned = variant.prepare(ctx)(tensors)
    after = check.collect(op, variant, tensors, returned if variant.returns else None)
    return check.complaint(ctx, variant, inputs, check.decoded(ctx, variant, after))


def test_every_file_has_variants_and_is_imported() -> None:
    assert sorted(peers.__all__) == sorted(FILES)
    for file in FILES:
        assert variants_of(file), file
        for which in variants_of(file):
            variant = OPS[which.split("/")[0]].variants[which.split("/")[1]]
            assert variant.role == "peer"
            assert variant.devices == ("cuda",)


@pytest.mark.parametrize("file", FILES)
def test_one_that_is_not_installed_says_how_to_install_it(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES[file]
    every = [(_variant(*which.split("/")), case_of(which)) for which in variants_of(file)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for variant, case in every:
        reason = variant.unsupported(case)
        assert reason == f"{library.name} isn't installed: pip install '{library.package}'"


def _variant(op: str, name: str) -> Any:
    return OPS[op].variants[name]


@pytest.mark.usefixtures("installed")
@one_test(
    ("which", "dtype", "columns", "arch", "words"),
    [
        ("softmax/liger", "float16", 65_536, "sm_80", None),
        ("softmax/liger", "float16", 65_537, "sm_80", "rows of up to 65536 elements"),
        ("softmax/triton_tutorial", "float16", 65_537, "sm_80", "rows of up to 65536 elements"),
        ("layer_norm/triton_tutorial", "float16", 65_537, "sm_80", None),
        ("swiglu/liger", "float16", 65_537, "sm_90", "rows of up to 65536 elements"),
        ("rope/flashinfer", "float16", 80, "sm_90", "heads of 64, 128, 256, 512"),
        ("rope/flashinfer", "bfloat16", 128, "sm_80", None),
        ("rope/quack", "float16", 80, "sm_90", None),
        ("rope/quack", "float16", 84, "sm_90", "a multiple of 8"),
        ("rope/quack", "float16", 520, "sm_90", "up to 512"),
        ("swiglu/flashinfer", "float16", 63, "sm_90", "a multiple of 8"),
        ("cross_entropy/quack", "float16", 64, "sm_80", "needs compute capability 9.0"),
        ("softmax/quack", "float16", 64, "sm_80", "needs compute capability 9.0"),
        ("softmax/quack", "float16", 64, "sm_90", None),
        ("softmax/quack", "float16", 50_257, "sm_90", "rows of a multiple of 16 bytes"),
        ("softmax_grad/quack", "float32", 1023, "sm_90", "rows of a multiple of 16 bytes"),
        ("rms_norm/quack", "float16", 1023, "sm_90", None),
        ("rms_norm/flashinfer", "float32", 64, "sm_90", "takes float16 and bfloat16 only"),
        ("layer_norm/flashinfer", "float16", 64, "sm_90", "takes bfloat16 only"),
        ("int8_linear/torchao", "float16", 64, "sm_80", None),
        ("int8_linear/torchao", "float16", 60, "sm_80", "multiples of 8"),
        ("quantize/torchao", "float32", 77, "sm_80", None),
    ],
)
def test_what_a_library_does_not_take(which: str, dtype: str, columns: int, arch: str, words: str | None) -> None:
    op, name = which.split("/")
    with cuda.assuming(KNOWN[arch]):
        reason = _variant(op, name).unsupported(case_of(which, dtype, columns))
    assert reason is None if words is None else words in reason


@pytest.mark.usefixtures("installed")
@one_test(("m", "k", "n"), [(16, 64, 64), (17, 60, 64), (17, 64, 60)])
def test_torchao_s_product_refuses_what_would_go_through_the_cpu(m: int, k: int, n: int) -> None:
    refuse = _variant("int8_linear", "torchao").unsupported
    choices = tuple(CHOICES["int8_linear"].items())
    assert "needs 17 rows" in refuse(Case("int8_linear", "torchao", "float16", (("M", m), ("K", k), ("N", n)), choices))
    assert refuse(Case("int8_linear", "torchao", "float16", (("M", 17), ("K", 64), ("N", 64)), choices)) is None


@pytest.mark.usefixtures("installed")
@one_test(
    ("which", "choices", "words"),
    [
        ("swiglu/liger", {"layout": "separate"}, None),
        ("swiglu_grad/liger", {"layout": "separate"}, "over the tensors"),
        ("swiglu/flashinfer", {"layout": "separate"}, "one tensor"),
        ("rope/flashinfer", {"way": "backward"}, "no backward"),
        ("rope/flashinfer", {"pairs": "interleaved"}, None),
    ],
)
def test_which_choices_a_library_takes(which: str, choices: dict[str, str], words: str | None) -> None:
    reason = _variant(*which.split("/")).unsupported(case_of(which, **choices))
    assert reason is None if words is None else words in reason


@pytest.mark.gpu
@pytest.mark.parametrize("which", [each for file in FILES for each in variants_of(file)])
def test_the_real_library_is_right(which: str) -> None:
    timing = Timing(timeout=120.0)
    known: set[str] = set(OPS[which.partition("/")[0]].dtypes)
    dtypes = known - {"float16"} or known
    cases = [case_of(which, dtype, columns) for dtype in sorted(dtypes) for columns in (64, 1000, 4096)]
    heard = SimpleNamespace(**dict.fromkeys(("planned", "note", "limited", "started", "finished"), lambda *_: None))
    found = runner.check([Job(case, timing) for case in cases], "cuda", (), heard)
    assert {each.status for each in found} <= {"ok", "unsupported"}, [each.error for each in found]
