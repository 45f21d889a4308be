"""What several devices lose, part by part: the parts add up, and noise is called noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.collection.steps.training.report import hidden, lost
from harness.model import Case, DeviceFacts, Header, Machine, Measurement, Run, Scenario
from harness.ops import Catalogue
from harness.report.frame import Line, lines
from harness.report.text import as_text
from harness.report.tree import Block, Note, Table

CASE = Case("resnet50_scaling", "ddp", "float16", (("B", 8),), (("model", "resnet_toy"),), 2)
TRACE = {"hidden_by_trace": 0.25, "communication": 0.1}
NO_NOISE = 1e-5


def lines_of(
    one: float, replicas: float, no_sync: float, after: float, ddp: float, *, spread: float = NO_NOISE, **facts: float
) -> Sequence[Line]:
    """Steps of so many milliseconds: of `replicas` on one device, then of each way on two. facts: those of `ddp`."""
    assert Catalogue()
    times = {"replicas": replicas, "no_sync": no_sync, "after": after, "ddp": ddp}
    cases = [replace(CASE, variant="replicas", world=1), *(replace(CASE, variant=name) for name in times)]
    found = [
        measured(case, milliseconds, spread, facts if case.variant == "ddp" else {})
        for case, milliseconds in zip(cases, (one, *times.values()), strict=True)
    ]
    return lines(run_of(found))


def measured(case: Case, milliseconds: float, spread: float, facts: dict[str, float]) -> Measurement:
    samples = tuple(1e-3 * milliseconds * (1 + (place - 5) * spread) for place in range(11))
    return Measurement(case, "ok", samples, timer="steady", facts=tuple(facts.items()))


def run_of(found: Sequence[Measurement]) -> Run:
    made = Scenario("mine", "", CASE.op, tuple(m.case.id for m in found), baseline="replicas")
    machine = Machine("cuda", "f00d", (DeviceFacts("A GPU", 1, 1),))
    return Run(Header("a", machine, (made,), ("harness",), "now", "", len(found)), tuple(found))


def told(blocks: Sequence[Block]) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The sentence, and the cells of each row by its name."""
    note, table = blocks
    assert isinstance(note, Note)
    assert isinstance(table, Table)
    name, *others = as_text(table).columns
    return note.line, dict(zip(name.cells, zip(*(column.cells for column in others), strict=True), strict=True))


def milliseconds(found: Sequence[Line]) -> list[float]:
    return [round(1e3 * part.lost.value, 6) for part in lost.parts_of(found[-1].subject)]


def test_each_part_is_what_one_way_takes_beyond_another_and_they_add_up() -> None:
    *parts, whole, alone = milliseconds(lines_of(20, 21, 21.5, 24, 23))
    assert parts == [1, 0.5, 1.5]
    assert (whole, alone) == (sum(parts), 2.5)


def test_a_trace_divides_what_communication_costs() -> None:
    """A tenth of a step is NCCL's, three quarters of that with nothing beside it: 1.8 ms of 24."""
    *parts, whole, _ = milliseconds(lines_of(20, 21, 21.5, 25, 24, **TRACE))
    assert parts == [1, 0.5, 1.8, 0.7]
    assert whole == pytest.approx(sum(parts))


def test_the_sentence_names_the_largest_part() -> None:
    note, rows = told([*lost.blocks(lines_of(20, 21, 21.5, 25, 24, **TRACE))])
    assert note.endswith(
        "a step loses 4.00 ms, 16.7% of it, most to: NCCL's kernels with no kernel beside them, 1.80 ms."
    )
    assert rows["all that is lost"][2] == "16.7%"
    assert rows["NCCL's kernels with no kernel beside them"][:3] == ("1800", "", "7.5%"), "the trace has no interval"


def test_a_trace_of_equal_steps_has_an_interval() -> None:
    bounds = {"hidden_by_trace_low": 0.2, "hidden_by_trace_high": 0.5}
    _, rows = told([*lost.blocks(lines_of(20, 21, 21.5, 25, 24, **TRACE, **bounds))])
    assert rows["NCCL's kernels with no kernel beside them"][1] == "1200 to 1920"


def test_what_may_be_noise_is_no_reason() -> None:
    note, rows = told([*lost.blocks(lines_of(20, 20.1, 20.1, 22, 20.1, spread=0.01))])
    assert note.endswith("a step takes as long as on one device, within the noise.")
    assert rows["hooks of DistributedDataParallel"][3] == "within the noise"
    assert rows["for comparison: one all-reduce after the backward"][3] == ""
    note, _ = told([*lost.blocks(lines_of(20, 20.3, 20.6, 22, 20.9, spread=0.005))])
    assert note.endswith("4.3% of it; no part of that is larger than the noise.")


def test_a_part_that_is_sure_is_named_before_a_larger_one_that_may_be_noise() -> None:
    """The trace's part has no noise; the rest is larger, and is told from differences of noisy times."""
    facts = {"hidden_by_trace": 0.9, "communication": 0.1}
    note, _ = told([*lost.blocks(lines_of(20, 20.1, 20.2, 22, 20.9, spread=0.005, **facts))])
    assert "most to: NCCL's kernels with no kernel beside them, 209 us." in note


def test_a_step_that_is_faster_than_one_devices_loses_nothing() -> None:
    note, _ = told([*lost.blocks(lines_of(20, 20, 20, 20, 19))])
    assert note.endswith("a step takes 1.00 ms less than on one device.")


@pytest.mark.parametrize(
    ("missing", "parts"),
    [
        (
            "replicas",
            {"host and power, which devices share; hooks of DistributedDataParallel": 1.5, "communication": 1.5},
        ),
        ("no_sync", {"host and power, which devices share": 1, "hooks of DistributedDataParallel; communication": 2}),
    ],
)
def test_a_way_without_a_time_leaves_a_part_of_two_causes(missing: str, parts: dict[str, float]) -> None:
    every = [line.result.measurements[0] for line in lines_of(20, 21, 21.5, 24, 23)]
    rest = lines(run_of([m for m in every if (m.case.variant, m.case.world) != (missing, 2)]))
    found = {part.name: pytest.approx(1e3 * part.lost.value) for part in lost.parts_of(rest[-1].subject)}
    assert parts.items() <= found.items()
    assert found["all that is lost"] == sum(parts.values())


def test_without_a_time_after_the_backward_there_is_no_comparison() -> None:
    every = [line.result.measurements[0] for line in lines_of(20, 21, 21.5, 24, 23)]
    rest = lines(run_of([m for m in every if m.case.variant != "after"]))
    _, rows = told([*lost.blocks(rest)])
    assert list(rows)[-1] == "all that is lost"


def test_a_loss_that_cant_be_divided_has_no_table() -> None:
    first, *_, last = (line.result.measurements[0] for line in lines_of(20, 21, 21.5, 24, 23))
    assert [*lost.blocks(lines(run_of([first, last])))] == []


def test_a_run_of_two_devices_alone_says_which_case_its_efficiency_needs() -> None:
    every = [line.result.measurements[0] for line in lines_of(20, 21, 21.5, 24, 23)]
    (note,) = lost.blocks(lines(run_of(every[1:])))
    assert isinstance(note, Note)
    assert "no time of resnet50_scaling/replicas/float16/B8/model=resnet_toy." in note.line


def test_the_page_of_several_devices_has_the_section() -> None:
    titles = [section.title for section in hidden.sections(lines_of(20, 21, 21.5, 25, 24, **TRACE))]
    assert titles == ["What several devices lose", "Communication"]


@pytest.mark.parametrize(
    ("way", "bare", "rest"),
    [
        ("buckets", "NCCL's kernels", "the rest: hooks, copies to buckets, slower kernels beside NCCL's, gaps"),
        (
            "copies",
            "copies between devices",
            "the rest: hooks, copies to buckets, sums, waiting for other devices, slower kernels beside copies, gaps",
        ),
    ],
)
def test_hooks_of_ours_are_one_part_with_communication_which_a_trace_divides(way: str, bare: str, rest: str) -> None:
    one, replicas, *_ = [line.result.measurements[0] for line in lines_of(20, 21, 21.5, 25, 23)]
    found = lines(run_of([one, replicas, measured(replace(CASE, variant=way), 24, NO_NOISE, TRACE)]))
    note, rows = told([*lost.blocks(found)])
    assert note.endswith(f"a step loses 4.00 ms, 16.7% of it, most to: {bare} with no kernel beside them, 1.80 ms.")
    assert {name: cells[0] for name, cells in rows.items()} == {
        "host and power, which devices share": "1000",
        f"{bare} with no kernel beside them": "1800",
        rest: "1200",
        "all that is lost": "4000",
    }
