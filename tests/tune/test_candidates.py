"""Which plans are listed, and what the compiler's facts rule out; the compiler is a table of facts here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import cuda
from harness.cuda import compile as compiler
from harness.cuda.assumed import KNOWN
from harness.errors import CompileError, UsageError
from harness.model import Case, KernelFacts, Value
from harness.ops import Built, Catalogue, Op, Tuning
from harness.tune import compiling as compiling_module
from harness.tune.candidates import Candidate, _problem, compiled, has_broken_rule, kept, legal, legal_plans
from harness.tune.compiling import Compiling
from harness.tune.procedure import ToTune, refuse_none
from tests.one_test import one_test

PLUGIN = Path(__file__).parents[1] / "plugins" / "tunable.py"
FACTS = {"fine": (64, 0, 100), "spills": (255, 8, 100), "large": (32, 0, 1024)}
"""Registers, local bytes and shared bytes, by the macro WAY."""


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> Iterator[Op]:
    """The op with a tuning whose plans compile a kernel: threads of a block, and what the compiler makes of them."""

    def facts(_file: Path, entry: str, macros: dict[str, str], _arch: str) -> KernelFacts:
        if macros["WAY"] == "broken":
            raise CompileError("mine.cu doesn't compile", "see the log")
        return KernelFacts(entry, *FACTS[macros["WAY"]])

    def kernels(_case: Case, plan: dict[str, int | str]) -> list[Built]:
        threads = int(plan["threads"])
        cluster = 2 if plan["way"] == "large" else 1
        return [Built("mine.cu", "mine", {"WAY": str(plan["way"])}, threads, shared=threads * 100, cluster=cluster)]

    monkeypatch.setattr(cuda, "kernel_facts", facts)
    found = Catalogue([PLUGIN])["chunked"]
    before = found.variants["tuned"]
    parameters = {"threads": (256, 1024, 2048), "way": ("fine", "spills", "large", "broken")}
    tuning = Tuning(
        parameters=lambda _: parameters, rule=lambda _: {"threads": 256, "way": "fine"}, kernels=kernels
    )  # fmt: skip
    found.variants["tuned"] = replace(before, tuning=tuning)
    yield found
    found.variants["tuned"] = before


def case_of(device: str = "cuda", rows: int = 64) -> Case:
    return Case("chunked", "tuned", "float32", (("M", rows), ("N", 8)), device=device)


def candidates(op: Op, case: Case) -> list[Candidate]:
    with Compiling(cuda.architecture() if case.device == "cuda" else "") as compiling:
        return compiled(op, {case: legal(op, case)}, compiling)[case]


def test_what_spills_or_does_not_fit_is_dropped_with_the_reason(op: Op) -> None:
    with cuda.assuming(KNOWN["sm_80"]):
        found = candidates(op, case_of())
    assert found[0].rule
    assert [each.rule for each in found].count(True) == 1
    why = {each.text: each.dropped for each in found}
    assert why["threads256.wayfine"] == ""
    assert why["threads1024.wayfine"] == ""
    assert why["threads2048.wayfine"] == "2048 threads with 64 registers each are more than a multiprocessor has"
    assert why["threads256.wayspills"] == "spills: 8 bytes of local memory a thread"
    assert why["threads1024.wayspills"] == "1024 threads with 255 registers each are more than a multiprocessor has"
    assert why["threads256.waylarge"] == "clusters of blocks came with compute capability 9.0"
    assert why["threads2048.waylarge"] == "205,824 bytes of shared memory, a block may have 166,912"
    assert why["threads256.waybroken"] == "doesn't compile: mine.cu doesn't compile"
    assert (found[0].registers, found[0].shared) == (64, 25_700)


def test_a_size_whose_rule_does_not_compile_has_no_plan_to_time(op: Op) -> None:
    """A table must not say that another plan is faster than a plan that nobody has timed. Other sizes are searched."""
    before = op.variants["tuned"]
    assert before.tuning
    broken = replace(
        before.tuning, rule=lambda case: {"threads": 256, "way": "fine" if case.symbols["M"] == 64 else "broken"}
    )
    op.variants["tuned"] = replace(before, tuning=broken)
    cases = [case_of(rows=rows) for rows in (64, 65)]
    with cuda.assuming(KNOWN["sm_90"]), Compiling(cuda.architecture()) as compiling:
        found = compiled(op, {case: legal(op, case) for case in cases}, compiling)
    assert [bool(kept(found[case])) for case in cases] == [True, False]
    assert [has_broken_rule(found[case]) for case in cases] == [False, True]
    assert found[cases[1]][0].dropped == "doesn't compile: mine.cu doesn't compile"
    why = {each.text: each.dropped for each in found[cases[1]]}
    assert why["threads256.wayfine"] == "the rule's plan, to compare with, doesn't compile"
    with pytest.raises(CompileError, match=r"the rule's plan, threads256\.waybroken, doesn't compile: mine\.cu"):
        refuse_none(ToTune("chunked", "tuned", (cases[1],), "cuda"), [found[cases[1]]])
    refuse_none(ToTune("chunked", "tuned", tuple(cases), "cuda"), found.values())


def test_the_first_program_is_compiled_before_there_are_threads(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler loads with its first program may not be safe in several threads."""
    order: list[str] = []
    facts = cuda.kernel_facts

    def kernel_facts(*asked: Any) -> KernelFacts:
        order.append("facts")
        return facts(*asked)

    monkeypatch.setattr(compiling_module, "compile_verbose", lambda file, *_: order.append(file.name))
    monkeypatch.setattr(cuda, "kernel_facts", kernel_facts)
    with cuda.assuming(KNOWN["sm_90"]):
        candidates(op, case_of())
    assert order == ["mark.cu"] + 4 * ["facts"]


def test_the_rules_plan_is_timed_even_if_it_spills(op: Op) -> None:
    rule: dict[str, Value] = {"threads": 256, "way": "spills"}
    tuning = op.variants["tuned"].tuning
    assert tuning
    op.variants["tuned"] = replace(op.variants["tuned"], tuning=replace(tuning, rule=lambda _: rule))
    with cuda.assuming(KNOWN["sm_80"]):
        first = candidates(op, case_of())[0]
    assert (first.rule, first.plan, first.local, first.dropped) == (True, rule, 8, "")


def test_a_plan_that_spills_as_much_as_the_rules_is_timed(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTS, "large", (64, 8, 0))
    monkeypatch.setitem(FACTS, "fine", (64, 9, 0))
    rule: dict[str, Value] = {"threads": 256, "way": "spills"}
    tuning = op.variants["tuned"].tuning
    assert tuning
    op.variants["tuned"] = replace(op.variants["tuned"], tuning=replace(tuning, rule=lambda _: rule))
    with cuda.assuming(KNOWN["sm_90"]):
        why = {each.text: each.dropped for each in candidates(op, case_of())}
    assert why["threads256.waylarge"] == ""
    assert why["threads256.wayfine"] == "spills: 9 bytes of local memory a thread"


def test_each_kernel_is_compiled_once_and_its_code_is_kept_only_if_it_is_timed(
    op: Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, code, steps = [], [], []
    of = cuda.kernel_facts

    def kernel_facts(file: Path, entry: str, macros: Mapping[str, str | int], arch: str) -> KernelFacts:
        facts.append(macros["WAY"])
        return of(file, entry, macros, arch)

    monkeypatch.setattr(cuda, "kernel_facts", kernel_facts)
    monkeypatch.setattr(compiling_module, "cubin", lambda _file, macros, arch: code.append((macros["WAY"], arch)))
    first, second = case_of(), case_of(rows=128)
    with cuda.assuming(KNOWN["sm_90"]), Compiling("sm_90") as compiling:
        every = {case: legal(op, case) for case in (first, second)}
        found = compiled(op, every, compiling, lambda case, *done: steps.append((case, *done)), keep=True)
    assert sorted(facts) == sorted(FACTS | {"broken": ()})
    assert sorted(code) == [("fine", "sm_90"), ("large", "sm_90")]
    assert [case for case, each in found.items() for _ in each] == [first] * 12 + [second] * 12
    assert steps == [(case, done, 12) for case in (first, second) for done in range(1, 13)]


def test_a_process_that_measures_finds_the_code_and_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "two.cu"
    file.write_text('extern "C" __global__ void two(TYPE* x) { *x = VALUE; }')
    with Compiling("sm_90") as compiling:
        compiling.keep(file, Built("two.cu", "two", {"VALUE": 2, "TYPE": "int"}))
        compiling.wait()
    compiles: list[object] = []

    def compile_verbose(*arguments: object) -> tuple[bytes, str]:
        compiles.append(arguments)
        return b"", ""

    monkeypatch.setattr(compiler, "compile_verbose", compile_verbose)
    monkeypatch.setattr(cuda, "Kernel", lambda code, _: code)
    monkeypatch.setattr(cuda, "device", lambda: SimpleNamespace(device_id=0))
    with cuda.assuming(KNOWN["sm_90"]):
        assert cuda.load(file, "two", {"TYPE": "int", "VALUE": 2})
    assert compiles == []


def test_what_has_not_begun_when_a_search_ends_is_not_compiled(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    begun, goes_on = threading.Event(), threading.Event()
    compiled_macros = []

    def kernel_facts(_file: Path, _entry: str, macros: Mapping[str, str | int], _arch: str) -> KernelFacts:
        compiled_macros.append(macros["WAY"])
        begun.set()
        goes_on.wait()
        return KernelFacts("mine", *FACTS["fine"])

    monkeypatch.setattr(cuda, "kernel_facts", kernel_facts)
    with cuda.assuming(KNOWN["sm_90"]):
        compiling = Compiling("sm_90")
        end = compiling._pool.shutdown

        def shutdown(cancel_futures: bool = False) -> None:
            end(wait=False, cancel_futures=cancel_futures)
            goes_on.set()
            end()

        monkeypatch.setattr(compiling._pool, "shutdown", shutdown)
        waiting = compiling.beside(lambda: compiled(op, {case_of(): legal(op, case_of())}, compiling))
        begun.wait()
        compiling.__exit__()
    assert waiting.done()
    assert compiled_macros == ["fine"]


def test_kernels_that_raise_are_an_error_of_their_author(op: Op) -> None:
    def kernels(_: Case, plan: Mapping[str, Value]) -> list[Built]:
        raise KeyError(plan["threads"])

    tuning = op.variants["tuned"].tuning
    assert tuning
    op.variants["tuned"] = replace(op.variants["tuned"], tuning=replace(tuning, kernels=kernels))
    with cuda.assuming(KNOWN["sm_90"]), pytest.raises(UsageError) as caught:
        candidates(op, case_of())
    assert "kernels of variant 'tuned', plan 'threads256.wayfine': KeyError: 256" in caught.value.message


def test_newer_architectures_allow_more(op: Op) -> None:
    with cuda.assuming(KNOWN["sm_90"]):
        why = {each.text: each.dropped for each in candidates(op, case_of())}
    assert why["threads256.waylarge"] == ""
    assert why["threads2048.waylarge"] == ""


def test_on_another_device_nothing_is_compiled(op: Op) -> None:
    assert all(not each.dropped for each in candidates(op, case_of("cpu")))


def test_plans_that_are_not_legal_are_not_listed() -> None:
    op = Catalogue([PLUGIN])["chunked"]
    found = [each.text for each in candidates(op, case_of("cpu", rows=8))]
    assert found == ["rows1.wayneg", "rows1.waywrong", "rows8.wayneg", "rows8.waywrong"]


def test_a_variant_without_plans_is_refused_with_those_that_have() -> None:
    with pytest.raises(UsageError) as caught:
        legal(Catalogue([PLUGIN])["chunked"], replace(case_of("cpu"), variant="eager"))
    assert "variant 'eager' of op 'chunked' has no plans to search" in caught.value.message
    assert "with plans: tuned" in caught.value.advice


def test_too_many_combinations_are_refused() -> None:
    op = Catalogue([PLUGIN])["chunked"]
    before = op.variants["tuned"]
    many = Tuning(parameters=lambda _: {"a": range(1000), "b": range(1000)}, rule=lambda _: {"a": 0, "b": 0})
    op.variants["tuned"] = replace(before, tuning=many)
    try:
        with pytest.raises(UsageError, match="1,000,000 combinations"):
            candidates(op, case_of("cpu"))
    finally:
        op.variants["tuned"] = before


def _one_of(count: int) -> Callable[[Case], dict[str, range]]:
    return lambda _: {"a": range(count)}


def test_a_hundred_thousand_combinations_are_gone_through() -> None:
    for count in (100_000, 100_001):
        tuning = Tuning(parameters=_one_of(count), rule=lambda _: {"a": 0})
        if count == 100_000:
            assert next(legal_plans(tuning, case_of())) == {"a": 0}
        else:
            with pytest.raises(UsageError, match="100,001 combinations of parameters, more than 100,000"):
                next(legal_plans(tuning, case_of()))


def test_a_case_for_which_the_rule_has_no_plan_has_none() -> None:
    op = Catalogue([PLUGIN])["chunked"]
    before = op.variants["tuned"]
    op.variants["tuned"] = replace(before, tuning=Tuning(parameters=lambda _: {"a": (1, 2)}, rule=lambda _: None))
    try:
        assert candidates(op, case_of("cpu")) == []
    finally:
        op.variants["tuned"] = before


@one_test(
    ("threads", "registers", "fits"),
    [(1024, 64, True), (1024, 65, False), (992, 65, False), (896, 72, True), (33, 255, True), (256, 255, True)],
)
def test_a_block_has_as_many_registers_as_a_multiprocessor(threads: int, registers: int, fits: bool) -> None:
    """A warp gets them in portions of 256, so that 65 of a lane are 72; and 33 threads are two warps."""
    with cuda.assuming(KNOWN["sm_90"]):
        assert (_problem(Built("a.cu", "a", threads=threads), registers, 0) == "") == fits


def test_what_a_block_may_not_have_is_told() -> None:
    with cuda.assuming(KNOWN["sm_80"]):
        most = cuda.shared_memory()
        built = Built("a.cu", "a", threads=1024)
        assert _problem(built, 65, 0) == "1024 threads with 65 registers each are more than a multiprocessor has"
        assert _problem(built, 32, most) == ""
        assert _problem(built, 32, most + 1) == f"{most + 1:,} bytes of shared memory, a block may have {most:,}"
        assert "came with compute capability 9.0" in _problem(replace(built, cluster=2), 32, 0)
    with cuda.assuming(KNOWN["sm_90"]):
        assert _problem(replace(built, cluster=2), 32, 0) == ""


def test_what_was_dropped_is_not_timed() -> None:
    good, bad = Candidate({"n": 1}), Candidate({"n": 2}, dropped="spills")
    assert kept([good, bad]) == [good]
    assert (good.registers, good.local, good.shared) == (0, 0, 0)


def _raising(_: Case) -> dict[str, tuple[int, ...]]:
    raise ValueError("no such size")


@one_test(
    ("parameters", "rule", "words"),
    [
        (lambda _: {"rows": (1, 8)}, {"row": 1}, "the rule's plan is none of the plans: it has the parameters row"),
        (lambda _: {"rows": (1, 8)}, {"rows": 3}, "the rule's plan is none of the plans: rows can't be 3"),
        (lambda _: {"rows": ()}, {"rows": 1}, "the rule's plan is none of the plans: rows can't be 1"),
        (lambda _: {"rows": (1, 8, 8)}, {"rows": 1}, "two plans are written 'rows8'"),
        (lambda _: {"rows": (1, 8, "8")}, {"rows": 1}, "two plans are written 'rows8'"),
        (lambda _: [("rows", (1, 8))], {"rows": 1}, "has no attribute 'values'"),
        (_raising, {"rows": 1}, "ValueError: no such size"),
    ],
)
def test_a_tuning_that_cannot_be_searched_is_an_error_of_its_author(
    parameters: Callable[[Case], dict[str, tuple[int, ...]]], rule: dict[str, int], words: str
) -> None:
    op = Catalogue([PLUGIN])["chunked"]
    before = op.variants["tuned"]
    op.variants["tuned"] = replace(before, tuning=Tuning(parameters=parameters, rule=lambda _: rule))
    try:
        with pytest.raises(UsageError) as caught:
            legal(op, case_of("cpu"))
    finally:
        op.variants["tuned"] = before
    assert caught.value.message.startswith("chunked/tuned/float32/M64-N8: tuning of variant 'tuned': ")
    assert words in caught.value.message


def test_a_log_without_kernels_that_was_kept_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A former search kept it where the driver's cache gave a kernel without its log."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "empty.cu"
    file.write_text('extern "C" __global__ void empty() {}')
    of = compiler.compile_verbose
    monkeypatch.setattr(compiler, "compile_verbose", lambda *asked: (of(*asked)[0], ""))
    with pytest.raises(CompileError, match="has no kernel 'empty'"):
        cuda.kernel_facts(file, "empty", {}, "sm_90")
    monkeypatch.setattr(compiler, "compile_verbose", of)
    with pytest.raises(CompileError, match="has no kernel 'empty'"):
        cuda.kernel_facts(file, "empty", {}, "sm_90")
    with Compiling("sm_90") as compiling:
        compiling.begin(file, Built("empty.cu", "empty", {}))
        assert compiling.facts(file, Built("empty.cu", "empty", {})).name == "empty"
        compiling.begin(file, Built("empty.cu", "other", {}))
        with pytest.raises(CompileError, match="has no kernel 'other'"):
            compiling.facts(file, Built("empty.cu", "other", {}))
