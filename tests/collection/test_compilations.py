"""Only what changed is compiled again, and what the compiler says is read."""

from __future__ import annotations

import pytest

from harness.cuda import compile as compiler
from tests.collection import compilations
from tests.collection.compilations import Compilation, Compiled, Kernel
from tests.rare import rare

TEXTS = {"k.cu": '#include "k.cuh"\nextern "C" __global__ void k(int* p) { *p = A + B; }', "k.cuh": "#define B 1\n"}
LOG = """
ptxas info    : 32 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 44 registers, used 0 barriers
ptxas info    : Function properties for __internal_of_one
ptxas         .     16 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 37 registers, used 0 barriers
"""


@pytest.fixture
def calls(monkeypatch):
    """What was compiled."""
    calls, compile_verbose = [], compiler.compile_verbose
    monkeypatch.setattr(compiler, "compile_verbose", lambda *asked: calls.append(asked) or compile_verbose(*asked))
    return calls


@pytest.fixture
def compile_in(tmp_path):
    """compile_in(folder, texts and options): a compilation of k.cu in a folder of that name."""

    def compiled(folder: str, a: int = 1, arch: str = "sm_90", **replaced: str) -> Compiled:
        (tmp_path / folder).mkdir()
        for name, text in (TEXTS | replaced).items():
            (tmp_path / folder / name).write_text(text)
        return Compilation(tmp_path / folder / "k.cu", (("A", a),), arch).result(tmp_path)

    return compiled


@pytest.mark.parametrize(
    "change",
    [
        {"k.cu": TEXTS["k.cu"].replace("*p =", "*p +=")},
        {"k.cuh": "#define B 7\n"},
        rare({"a": 7}),
        rare({"arch": "sm_80"}),
    ],
    ids=["source", "header", "macro", "arch"],
)
def test_what_changed_is_compiled_again(calls, compile_in, change):
    before = compile_in("one")
    after = compile_in("two", **change)
    assert len(calls) == 2
    assert before["k"].code != after["k"].code
    assert before["k"].local_bytes == 0


def test_what_lies_elsewhere_or_has_other_comments_is_not_compiled_again(calls, compile_in):
    before = compile_in("one")
    assert compile_in("two") == before
    assert compile_in("three", **{"k.cuh": "// what B is\n#define B 1  // one\n"}) == before
    assert len(calls) == 1


def test_a_warning_is_an_error(compile_in):
    with pytest.raises(AssertionError, match="unused"):
        compile_in("one", **{"k.cu": 'extern "C" __global__ void k(int* p) { int unused; *p = A; }'})


def test_the_log_is_read_with_the_functions_that_an_entry_calls():
    found = {name: tuple(used.values()) for name, used in compilations.resources(LOG).items()}
    assert found == {"one": (44, 16, 0, 8), "two": (37, 0, 0, 0)}
    assert compilations.RESOURCES == ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes")


def test_what_is_committed_is_read_as_it_was_written(monkeypatch, tmp_path, calls, compile_in):
    before = compile_in("one")
    monkeypatch.setattr(compilations, "COMMITTED", tmp_path / "compiled.csv")
    compilations.write([Compilation(tmp_path / "one" / "k.cu", (("A", 1),), "sm_90")], tmp_path)
    compilations.committed.cache_clear()
    try:
        assert [*compilations.committed().values()] == [before] == [{"k": Kernel(**vars(before["k"]))}]
        (tmp_path / "empty").mkdir()
        assert Compilation(tmp_path / "one" / "k.cu", (("A", 1),), "sm_90").result(tmp_path / "empty") == before
    finally:
        compilations.committed.cache_clear()
    assert len(calls) == 1
