"""The audit of bytes: what counters saw against what is declared, each gap with the reason that its figures allow."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness import report
from harness.model import Attachment, KernelProfile, Measurement, Run, Traffic, Work
from harness.report import audit, build, terminal
from harness.report.counted import Counted, of_run
from harness.report.formats import markdown
from harness.report.reasons import reasons

Ask = Callable[..., Counted]
SHAPE = (("N", 64),)
MB = 10**6


def attachment(case: str, read: float, written: float, *kernels: dict[str, float], **values: float) -> Attachment:
    """What ncu says of one call; each kernel is launched once unless it says otherwise."""
    profiles = tuple(
        KernelProfile(f"void k{number}<float>(int)", own.pop("launches", 1.0), tuple(own.items()))
        for number, own in enumerate(kernels)
    )
    launches = values.pop("kernels", sum(kernel.launches for kernel in profiles) or 1.0)
    known = {"kernels": launches, "read_bytes": read, "written_bytes": written, **values}
    return Attachment(case, "ncu", tuple(known.items()), (), profiles)


@pytest.fixture
def ask(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Ask:
    """A case of 1000 MB read and 500 MB written unless its work and traffic say otherwise. The L2 has 50 MB."""

    def make(
        read: float,
        written: float,
        *kernels: dict[str, float],
        work: Work | None = None,
        traffic: Traffic | None = None,
        **values: float,
    ) -> Counted:
        work = work or Work(1000 * MB, 500 * MB)
        case = measured("tuned", "float32", SHAPE, work=work, traffic=traffic or Traffic(work.read, work.written))
        found = attachment(case.case.id, read * MB, written * MB, *kernels, **values)
        (counted,) = of_run(make_run([case], attachments=(found,)))
        return counted

    return make


def told(counted: Counted) -> dict[str, dict[str, str]]:
    """The reasons of each flagged part, by the part."""
    return {gap.part: reasons(gap) for gap in counted.gaps}


def test_counters_that_agree_are_not_flagged(ask: Ask) -> None:
    for read, written in ((1000, 500), (1029, 500), (1000, 486)):
        counted = ask(read, written)
        assert (told(counted), audit.cause(counted)) == ({}, "")
    assert ask(1000, 500).share == 0


@pytest.mark.parametrize(("read", "written", "parts"), [(1031, 500, ["read"]), (1000, 516, ["written"]),
                                                        (969, 484, ["read", "written"])])  # fmt: skip
def test_more_than_three_percent_is_flagged(ask: Ask, read: float, written: float, parts: list[str]) -> None:
    assert [gap.part for gap in ask(read, written).gaps] == parts


def test_a_part_that_is_next_to_nothing_is_not_flagged(ask: Ask) -> None:
    """10 MB more written are twice of what is declared, but under 1% of all: it could be any neighbour's line."""
    work = Work(1000 * MB, 10 * MB)
    assert ask(1000, 20, work=work).gaps == ()
    assert [gap.part for gap in ask(1000, 25, work=work).gaps] == ["written"]


def test_parts_that_together_are_too_far_are_flagged(ask: Ask) -> None:
    """1.5% and 2.9% of all: 3.1% in sum, though the larger part is within 3% of its own."""
    work = Work(9000 * MB, 1000 * MB)
    counted = ask(9261, 1060, work=work)
    assert counted.share == pytest.approx(0.0321)
    assert [gap.part for gap in counted.gaps] == ["read"]


# ---- Reasons.


def test_what_batch_norm_reads_again_is_still_in_the_cache(ask: Ask) -> None:
    """x, x and z are read, y is written, 500 MB each: 48 MB less are 2.4% of all, and 3.2% of what is read."""
    work = Work(1500 * MB, 500 * MB, again=500 * MB)
    counted = ask(1452, 500, {"l2_hit": 0.28}, work=work)
    assert counted.share == pytest.approx(-0.024)
    text = "of 500.0 MB that are read again, a cache still had 48.00 MB (L2: 50.00 MB)"
    assert told(counted) == {"read": {"cache": f"{text}; the L2 had 28.0% of what was asked of it"}}


def test_what_is_missing_beyond_what_is_read_again_is_not_explained(ask: Ask) -> None:
    work = Work(1500 * MB, 500 * MB, again=40 * MB)
    assert told(ask(1452, 500, {"l2_hit": 0.28}, work=work)) == {"read": {}}
    assert audit.cause(ask(1452, 500, work=work)) == "not explained"


def test_between_kernels_only_the_l2_can_keep_bytes(ask: Ask) -> None:
    """Two kernels: 2% of 1500 MB are 30 MB, too few hits for the 48 MB that are missing."""
    twice = Traffic(1000 * MB, 500 * MB)
    work = Work(500 * MB, 500 * MB)
    few = [{"l2_hit": 0.02, "load_sectors": 10.0, "store_sectors": 10.0}] * 2
    many = [{"l2_hit": 0.04, "load_sectors": 10.0, "store_sectors": 10.0}] * 2
    assert told(ask(952, 500, *map(dict, few), work=work, traffic=twice)) == {"read": {}}
    assert list(told(ask(952, 500, *map(dict, many), work=work, traffic=twice))["read"]) == ["cache"]


def test_a_case_that_nearly_fits_the_cache_is_there_from_an_earlier_call(ask: Ask) -> None:
    def small(moved: int, hit: float) -> dict[str, dict[str, str]]:
        return told(ask(moved / 2 / MB / 2, moved / 2 / MB, {"l2_hit": hit}, work=Work(moved // 2, moved // 2)))

    assert list(small(100 * MB, 0.7)["read"]) == ["cache"]
    assert small(100 * MB, 0.2)["read"] == {}, "hits of 20 MB can't save 25 MB"
    assert small(104 * MB, 0.7)["read"] == {}, "more than twice the cache"


def test_the_last_writes_stay_in_the_cache(ask: Ask) -> None:
    text = "45.00 MB weren't written back when the counting ended; the L2 keeps up to 50.00 MB after each of 1 kernel"
    assert told(ask(1000, 455)) == {"written": {"write-back": text}}
    assert told(ask(1000, 445)) == {"written": {}}, "the L2 of 50 MB can't keep 55 MB"
    assert list(told(ask(1000, 445, {}, {}))["written"]) == ["write-back"], "after each of two kernels it can"


def test_one_kernel_writes_nothing_between_two(ask: Ask) -> None:
    """The variant declares 300 MB beside the result of 200 MB, as sums that a second kernel reads."""
    work, traffic = Work(100 * MB, 200 * MB), Traffic(400 * MB, 500 * MB)
    text = "a call is one kernel: it needn't write the 300.0 MB that the variant declares beside its result"
    assert told(ask(400, 200, {}, work=work, traffic=traffic)) == {"written": {"one kernel": text}}
    assert told(ask(400, 200, {}, {}, work=work, traffic=traffic)) == {"written": {}}, "two kernels need the sums"
    assert told(ask(100, 100, {}, work=Work(100 * MB, 200 * MB))) == {"written": {}}, "the result must be written"


def test_partial_sums_are_written_beside_the_output(ask: Ask) -> None:
    """518 MB stored are 18 MB more than declared: 3.6%, as for the gradient of layer norm."""
    counted = ask(1000, 518, {"store_sectors": 518 * MB / 32})
    text = "stores touched 18.00 MB more than declared: partial sums, or a workspace that the variant doesn't declare"
    assert told(counted) == {"written": {"partial sums": text}}
    ((_, gap),) = [(gap.part, gap) for gap in counted.gaps]
    assert gap.share == pytest.approx(0.036)


def test_without_counters_of_stores_partial_sums_are_only_likely(ask: Ask) -> None:
    assert told(ask(1000, 518))["written"]["partial sums"].startswith("18.00 MB more, as partial sums")


def test_more_is_written_than_stored_where_the_cache_was_full(ask: Ask) -> None:
    counted = ask(1000, 518, {"store_sectors": 500 * MB / 32})
    text = "stores touched only 500.0 MB: the L2 wrote back what an earlier kernel had left in it"
    assert told(counted) == {"written": {"left before": text}}
    assert told(ask(1000, 560, {"store_sectors": 500 * MB / 32})) == {"written": {}}, "60 MB weren't in 50 MB of L2"


def test_strides_use_parts_of_sectors(ask: Ask) -> None:
    """4 bytes of each sector of 32 are used: 100 MB declared, 800 MB read, 32 sectors a request of 32 threads."""
    work = Work(100 * MB, 100 * MB)
    counters = {"load_requests": 100 * MB / 4 / 32, "load_sectors": 100 * MB / 4}
    text = "loads touched sectors of 800.0 MB, 8.00x the declared bytes, 32.0 a request: they use parts of sectors"
    assert told(ask(800, 100, counters, work=work)) == {"read": {"sectors": text}}


def test_a_variant_that_declares_its_sectors_is_right(ask: Ask) -> None:
    work, traffic = Work(100 * MB, 100 * MB), Traffic(800 * MB, 100 * MB)
    counted = ask(800, 100, {"load_sectors": 100 * MB / 4}, work=work, traffic=traffic)
    assert (counted.share, counted.gaps) == (0, ())


def test_strided_stores_write_and_read_whole_sectors(ask: Ask) -> None:
    work = Work(100 * MB, 100 * MB)
    counters = {"store_requests": 100 * MB / 4 / 32, "store_sectors": 100 * MB / 4, "load_sectors": 100 * MB / 32}
    found = told(ask(900, 800, counters, work=work))
    assert list(found["written"]) == ["sectors"]
    assert found["read"] == {
        "filled sectors": "stores touched sectors of 800.0 MB to write 100.0 MB: "
        "what a store leaves of a sector has to be read"
    }


def test_what_stores_leave_of_sectors_is_no_second_pass(ask: Ask) -> None:
    """Half of each sector is stored: 100 MB are read, and 200 MB that stores leave, three times what is declared."""
    counters = {"store_requests": 100 * MB / 4 / 32, "store_sectors": 200 * MB / 32, "load_sectors": 100 * MB / 32}
    found = told(ask(300, 100, counters, work=Work(100 * MB, 100 * MB)))
    assert "filled sectors" in found["read"]
    assert "second pass" not in found["read"]


def test_a_share_above_1_is_not_believed(ask: Ask) -> None:
    assert ask(1000, 500, {"l2_hit": 0.9}).l2_hit == 0.9
    assert ask(1000, 500, {"l2_hit": 4.6}).l2_hit is None


def test_stores_of_whole_sectors_need_no_reads(ask: Ask) -> None:
    assert told(ask(1200, 500, {"store_sectors": 500 * MB / 32})) == {"read": {}}


def test_the_l2_may_read_pairs_of_sectors(ask: Ask) -> None:
    """One sector of each 64 bytes is asked for, as declared; both are read."""
    found = told(ask(200, 100, {"load_sectors": 100 * MB / 32}, work=Work(100 * MB, 100 * MB)))
    assert found["read"]["pairs of sectors"].startswith("200.0 MB were read where loads touched sectors of 100.0 MB")
    assert "sectors" not in found["read"]


@pytest.mark.parametrize(("read", "passes"), [(2010, "2 passes"), (2950, "3 passes")])
def test_a_second_pass_reads_a_multiple(ask: Ask, read: float, passes: str) -> None:
    assert told(ask(read, 500))["read"]["second pass"].endswith(f"as by {passes}")


@pytest.mark.parametrize("read", [1500, 2250, 4000])
def test_what_is_no_small_multiple_is_no_second_pass(ask: Ask, read: float) -> None:
    assert told(ask(read, 500)) == {"read": {}}


def test_several_kernels_move_bytes_between_them(ask: Ask) -> None:
    first = {"read_bytes": 1000.0 * MB, "written_bytes": 500.0 * MB}
    second = {"read_bytes": 500.0 * MB, "written_bytes": 500.0 * MB}
    found = told(ask(1500, 1000, first, second))
    assert found["read"]["kernels"] == "read by 2.00 kernels a call: k0 1.000 GB, k1 500.0 MB"
    assert list(found["written"]) == ["kernels"]
    idle = {"read_bytes": 1.0 * MB, "written_bytes": 0.0}
    assert "kernels" not in told(ask(1500, 500, {"read_bytes": 1499.0 * MB}, idle))["read"], "the second does nothing"


def test_a_kernel_that_is_launched_twice_counts_twice(ask: Ask) -> None:
    twice = {"launches": 2.0, "read_bytes": 750.0 * MB, "load_sectors": 5.0}
    counted = ask(1500, 500, twice)
    assert told(counted)["read"]["kernels"] == "read by 2.00 kernels a call: k0 1.500 GB"
    assert counted.total("load_sectors") == 10
    assert counted.total("store_sectors") is None


def test_local_memory_may_reach_the_memory(ask: Ask) -> None:
    found = told(ask(1200, 700, {"local_sectors": 400 * MB / 32}))
    assert found["written"]["local memory"] == "loads and stores of local memory touched 400.0 MB"
    assert "local memory" in found["read"]
    assert list(told(ask(1200, 500, {"local_sectors": 110 * MB / 32}))["read"]) == ["local memory"]
    assert told(ask(1200, 500, {"local_sectors": 90 * MB / 32})) == {"read": {}}, "less than half of the gap"


# ---- What reports show of it.


@pytest.fixture
def run(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Run:
    """Three cases with counters: one agrees, one has a reason, one has none; a copy without kernels; one not seen."""
    work = Work(1000 * MB, 500 * MB)
    shape = (("N", 656), ("C", 64), ("H", 56), ("W", 56))
    names = ("eager", "naive", "tuned", "memcpy", "unseen")
    cases = [measured(name, "float32", shape, work=work, traffic=Traffic(work.read, work.written)) for name in names]
    ids = [case.case.id for case in cases]
    own = cases[0].time
    assert own
    found = (
        attachment(ids[0], 1000 * MB, 500 * MB, time=own * 1.011),
        attachment(ids[1], 1600 * MB, 500 * MB, time=(cases[1].time or 0) * 0.97),
        attachment(ids[2], 1000 * MB, 518 * MB, time=cases[2].time or 0),
        attachment(ids[3], 0, 0, kernels=0),
    )
    return make_run(cases, attachments=found)


def heads(found: list[Counted]) -> dict[str, tuple[Any, ...]]:
    return {column.head: column.cells for column in audit.table(found).columns}


def test_the_table_has_a_row_for_each_case_with_counters(run: Run) -> None:
    table = heads(of_run(run))
    assert [id_.split("/")[1] for id_ in table["case"]] == ["eager", "naive", "tuned"]
    assert table["traffic"] == table["work"] == (1.5e9,) * 3
    assert table["written"] == (5e8, 5e8, 5.18e8)
    assert table["gap"] == pytest.approx((0, 0.4, 0.012))
    assert table["gap of written"] == pytest.approx((0, 0, 0.036))
    assert table["tool's time"] == pytest.approx((0.011, -0.03, 0))
    assert table["cause"] == ("", "not explained", "partial sums")
    assert audit.table(of_run(run)).kinds == ("", "warning", "")


def test_the_summary_counts_what_agrees_and_what_is_explained(run: Run) -> None:
    agreeing, timed = (note.text for note in audit.summary(of_run(run)))
    assert agreeing == (
        "1 of 3 cases within 3% of the bytes that they declare; of the other 2, 1 explained, 1 not explained."
    )
    assert timed == (
        "Times of ncu and ours, at 100 MB of work and more: 2 of 3 cases within 2%; at worst 3.00% apart, in "
        "prelu/naive/float32/N656-C64-H56-W56."
    )


def test_small_cases_have_no_part_in_the_comparison_of_times(ask: Ask) -> None:
    for moved, notes in ((99 * MB, 1), (100 * MB, 2)):
        counted = ask(0, 0, work=Work(moved, 0), traffic=Traffic(moved, 0), time=1.0)
        assert len(audit.summary([counted])) == notes


def test_times_that_are_too_far_apart_are_told_with_what_differs(ask: Ask) -> None:
    own = ask(1000, 500).line.result.time

    def notes(factor: float, **values: float) -> list[str]:
        return [note.text for note in audit._times_apart([ask(1000, 500, time=own * factor, **values)])]

    assert notes(1.019) == []
    assert notes(1.05) == ["the tool's time is +5.00% from ours: why isn't known"]
    (several,) = notes(0.95, kernels=3.0)
    assert several == "the tool's time is -5.00% from ours: a call has 3 kernels, which the tool runs one at a time"


def test_a_page_says_what_is_flagged_and_why(run: Run) -> None:
    text = markdown.render(build.page(run))
    section = text.split("## Bytes by counters")[1].split("\n## ")[0]
    assert (
        "- `prelu/naive/float32/N656-C64-H56-W56`: 60.00% more read than declared (600.0 MB): not explained" in section
    )
    assert "3.60% more written than declared (18.00 MB): 18.00 MB more, as partial sums" in section
    assert "**gap, gap of read, gap of written**: bytes by counters over" in text
    assert "**ncu.read_bytes**: DRAM read, as ncu found it" in text


def test_a_terminal_of_80_columns_shows_it(run: Run) -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    terminal.render(run, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    section = text.split("Bytes by counters")[1]
    for word in ("traffic", "written", "+40.00%", "not explained", "partial sums", "1.600 GB"):
        assert word in section


def test_a_run_without_counters_has_no_such_section(
    measured: Callable[..., Measurement], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    case = measured("eager", "float32", SHAPE)
    other = Attachment(case.case.id, "torch", (("idle", 0.5), ("read_bytes", 1.0)))
    for found in ((), (other,)):
        (page,) = report.write(make_run([case], attachments=found), tmp_path, ["markdown"])
        assert "counters" not in page.read_text()


def test_a_case_of_two_scenarios_is_audited_once(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [measured("eager", "float32", SHAPE)]
    assert len(of_run(make_run(cases, cases, attachments=(attachment(cases[0].case.id, 256, 256),)))) == 1
