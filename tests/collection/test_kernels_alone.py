"""Every kernel source compiles alone, without the macros that the harness gives, and begins with its story."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.paths import data
from tests.collection import texts
from tests.collection.compilations import compiler_version
from tests.collection.texts import alone, alone_name, kept_alone
from tests.one_test import one_test

SOURCES = sorted(data("kernels").glob("*/*.cu"))


@one_test("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_alone(source: Path, kept: Path) -> None:
    kernels, complaint = kept_alone(source, kept)
    assert complaint == ""
    assert kernels, "no macro has a default with which there is a kernel"


def test_what_is_committed_is_of_the_sources_as_they_are() -> None:
    """Otherwise the tests would be slow: a change of a source changes its name here."""
    written = {name for name in texts.committed() if name.endswith(".alone")}
    if not any(f"-{compiler_version()}-" in name for name in written):
        pytest.skip("what is committed was made by another compiler")
    assert {alone_name(source) for source in SOURCES} == written, "run scripts/make_compiled.py"


def test_a_macro_without_a_default_is_found(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    text = 'extern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n'
    source.write_text(f"#define SCALAR float\n{text}")
    assert alone(source) == (["mine"], "")
    source.write_text(f"#ifdef SCALAR\n{text}#endif\n")
    assert alone(source) == ([], "")
    source.write_text(text)
    assert 'identifier "SCALAR" is undefined' in alone(source)[1]


@one_test("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_begins_with_what_the_op_does(source: Path) -> None:
    lines = source.read_text().splitlines()
    story = lines[: next(number for number, line in enumerate(lines) if not line.startswith("//"))]
    assert len(story) >= 3, "say what the op does, what bounds it, and which macros there are"
