"""What a report tells besides figures of a plain run: choices, worlds, roles, tools, limits, older code."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import cli, report, source, store
from harness.model import (
    Attachment,
    Code,
    ComputePoint,
    Curve,
    DeviceFacts,
    Limits,
    LinkPoint,
    Machine,
    Measurement,
    Run,
    Scenario,
    Work,
)
from harness.ops.codes import Codes
from harness.report import plotting, preface
from harness.report.roles import foremost, roles

Build = Callable[..., Measurement]
MakeRun = Callable[..., Run]
SHAPE = (("N", 64),)
LAYOUTS = ("nchw", "nhwc")


@pytest.fixture
def tables(tmp_path: Path) -> Callable[[Run], list[list[list[str]]]]:
    """Every table of the page, as rows of cells, without the tables of the summary."""

    def read(run: Run) -> list[list[list[str]]]:
        (path,) = report.write(run, tmp_path, ["markdown"])
        found: list[list[list[str]]] = [[]]
        parts = path.read_text().split("\n## ")
        kept = [part for part in parts if part.partition("\n")[0] not in ("Summary", "Each op", "Fastest variants")]
        for line in "\n".join(kept).splitlines():
            if line.startswith("|"):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
            elif found[-1]:
                found.append([])
        return [table for table in found if table]

    return read


Tables = Callable[[Run], list[list[list[str]]]]


def columns(table: list[list[str]]) -> dict[str, list[str]]:
    head, _, *rows = table
    return {name: [row[place] for row in rows] for place, name in enumerate(head)}


# ---- Choices and worlds.


def test_choices_have_a_column_where_some_case_has_them(measured: Build, make_run: MakeRun, tables: Tables) -> None:
    cases = [measured("eager", "float32", SHAPE, choices=(("layout", name), ("p", 0.1))) for name in LAYOUTS]
    found = columns(tables(make_run(cases))[0])
    assert (found["shape"], found["choices"]) == (["N64"] * 2, ["layout=nchw, p=0.1", "layout=nhwc, p=0.1"])
    assert "choices" not in columns(tables(make_run([measured("eager", "float32", SHAPE)]))[0])


def test_the_number_of_devices_has_a_column_where_it_isn_t_one(
    measured: Build, make_run: MakeRun, tables: Tables
) -> None:
    work = Work(8, 8, items=4, item="rows")
    cases = [measured("eager", "float32", SHAPE, world=world, work=replace(work, items=4 * world)) for world in (1, 2)]
    found = columns(tables(make_run(cases))[0])
    assert (found["world"], found["efficiency"]) == (["1", "2"], ["", "100.0%"])
    assert "world" not in columns(tables(make_run(cases[:1]))[0])


def test_other_programs_get_choices_by_name(measured: Build, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run([measured("eager", "float32", SHAPE, choices=(("layout", "nhwc"), ("time", 0.1)))])
    report.write(run, tmp_path, ["csv", "json"])
    (row,) = csv.DictReader((tmp_path / "results.csv").open(newline=""))
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (row["N"], row["layout"], row["time_choice"], row["choices"], row["world"]) == (
        "64", "nhwc", "0.1", "layout=nhwc,time=0.1", "1",
    )  # fmt: skip
    assert (result["N"], result["layout"], result["time_choice"]) == (64, "nhwc", 0.1)


def test_bars_tell_choices_apart_as_they_do_sizes(measured: Build, make_run: MakeRun) -> None:
    cases = [
        measured("eager", "float32", (("N", n),), choices=(("layout", name), ("p", 0.1)))
        for n in (64, 128)
        for name in LAYOUTS
    ]
    (plot,), _ = plotting.plan(make_run(cases))
    assert (plot.layout, plot.axis) == ("bars", "p=0.1")
    assert list(plot.labels.values()) == ["N=64\nnchw", "N=64\nnhwc", "N=128\nnchw", "N=128\nnhwc"]
    assert len(plot.rows["setting"].unique()) == 4


def test_a_choice_that_is_a_number_is_named(measured: Build, make_run: MakeRun) -> None:
    cases = [measured("eager", "float32", SHAPE, choices=(("p", p),)) for p in (0.1, 0.25, 0.5, 0.75)]
    (plot,), _ = plotting.plan(make_run(cases))
    assert (plot.layout, list(plot.labels.values())) == ("bars", ["p=0.1", "p=0.25", "p=0.5", "p=0.75"])


def test_lines_may_go_over_the_number_of_devices(measured: Build, make_run: MakeRun) -> None:
    cases = [measured("eager", "float32", SHAPE, world=world) for world in (1, 2, 4, 8)]
    (plot,), _ = plotting.plan(make_run(cases))
    assert (plot.layout, plot.axis, sorted(plot.swept.values())) == ("lines", "world", [1, 2, 4, 8])


def test_a_curve_has_a_table_and_a_figure_for_each_choice(measured: Build, make_run: MakeRun, tables: Tables) -> None:
    refused = {"status": "unsupported", "error": "no nhwc here"}
    cases = [
        measured(v, "float32", (("N", n),), choices=(("layout", name),), **(refused if (v, name) == odd else {}))
        for odd in [("tuned", "nhwc")]
        for name in LAYOUTS
        for n in (64, 128)
        for v in ("eager", "tuned")
    ]
    run = make_run(cases, curve=Curve("N", "elements"))
    plots, _ = plotting.plan(run)
    assert [(plot.name, plot.title, len(plot.rows)) for plot in plots] == [
        ("prelu-float32-layout_nchw", "prelu float32, layout=nchw", 4),
        ("prelu-float32-layout_nhwc", "prelu float32, layout=nhwc", 4),
    ]
    nchw, nhwc, stops = (columns(table) for table in tables(run)[:3])
    assert (nchw["tuned"], nhwc["tuned"]) == (["**50.0%**"] * 2, ["-"] * 2)
    assert (stops["dtypes"], stops["without"]) == (["float32 layout=nhwc"], ["64 to 128"])


# ---- Roles.


def test_roles_are_those_stored_with_the_scenario() -> None:
    stored = Scenario("a", "", "op", (), roles=(("eager", "baseline"), ("first", "ours"), ("tuned", "published")))
    assert roles(stored, ["tuned", "eager"]) == {"eager": "baseline", "first": "ours", "tuned": "published"}
    assert foremost(roles(stored, [])) == "first"


def test_runs_of_schema_1_have_roles_by_their_variants_names() -> None:
    names = ("eager", "compile", "tuned", "peer:apex", "naive")
    scenario = Scenario("a", "", "prelu", ())
    assert list(roles(scenario, names).values()) == ["baseline", "baseline", "ours", "peer", "published"]
    # The gate says the same of these: the report and the gate ask one function.
    assert roles(Scenario("a", "", "copy", ()), ["eager", "memcpy"]) == {"eager": "control", "memcpy": "control"}
    assert foremost({"eager": "baseline"}) == ""


def test_of_several_of_ours_the_last_stands_out() -> None:
    assert foremost({"eager": "baseline", "first": "ours", "last": "ours", "odd": "peer"}) == "last"


# ---- What tools found.


@pytest.fixture
def profiled(measured: Build, make_run: MakeRun) -> Run:
    cases = [measured(variant, "float32", SHAPE) for variant in ("eager", "tuned")]
    found = Attachment(cases[1].case.id, "ncu", (("bandwidth", 3.1e12), ("stalls", 0.25)), ("ncu/tuned.ncu-rep",))
    return make_run(cases, attachments=(found, Attachment("another/case", "ncu", (("stalls", 1.0),))))


def test_what_tools_found_is_in_the_table(profiled: Run, tables: Tables) -> None:
    found = columns(tables(profiled)[0])
    assert (found["ncu.bandwidth (GB/s)"], found["ncu.stalls"]) == (["", "3100"], ["", "0.2500"])


def test_figures_of_timelines_have_their_units(measured: Build, make_run: MakeRun, tables: Tables) -> None:
    case = measured("eager", "float32", SHAPE)
    found = Attachment(case.case.id, "torch", (("idle", 0.25), ("gap", 1.5e-6), ("host", 0.125)))
    row = columns(tables(make_run([case], attachments=(found,)))[0])
    assert (row["torch.idle"], row["torch.gap (us)"], row["torch.host"]) == (["25.0%"], ["1.500"], ["12.5%"])


def test_the_page_names_the_files_that_tools_left(profiled: Run, tables: Tables) -> None:
    (files,) = [found for table in tables(profiled) if "tool" in (found := columns(table))]
    assert files == {"case": ["`prelu/tuned/float32/N64`"], "tool": ["ncu"], "files": ["`ncu/tuned.ncu-rep`"]}


def test_what_tools_found_is_there_for_other_programs(profiled: Run, tmp_path: Path) -> None:
    report.write(profiled, tmp_path, ["csv", "json"])
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    whole = json.loads((tmp_path / "results.json").read_text())
    assert [(row["ncu.bandwidth"], row["ncu.stalls"]) for row in rows] == [("", ""), ("3.1e+12", "0.25")]
    assert [result["ncu.stalls"] for result in whole["results"]] == [None, 0.25]
    assert whole["attachments"][0] == {
        "case": "prelu/tuned/float32/N64", "tool": "ncu", "values": [["bandwidth", 3.1e12], ["stalls", 0.25]],
        "files": ["ncu/tuned.ncu-rep"], "kernels": [], "series": [], "ranges": [], "notes": [],
    }  # fmt: skip
    assert len(whole["attachments"]) == 2


# ---- JSON.


def test_json_has_the_header_and_one_result_a_case(run: Run, tmp_path: Path) -> None:
    report.write(run, tmp_path, ["json"], notes=["2 results are old"])
    whole = json.loads((tmp_path / "results.json").read_text())
    assert list(whole) == ["schema", "header", "results", "attachments", "notes"]
    assert (whole["schema"], whole["header"]["name"], whole["header"]["schema"]) == (2, "a-run", 2)
    assert [result["case"] for result in whole["results"]] == [result.case.id for result in run.results]
    assert whole["notes"] == ["results.jsonl: the last line is cut; one result is lost", "2 results are old"]
    crashed = next(result for result in whole["results"] if result["status"] == "crashed")
    assert (crashed["time"], crashed["of_ceiling"], crashed["read_bytes"]) == (None, None, 4 * 64 * 128 * 56 // 2)


def test_json_of_a_case_of_two_scenarios_has_it_once(measured: Build, make_run: MakeRun, tmp_path: Path) -> None:
    case = [measured("eager", "float32", SHAPE)]
    report.write(make_run(case, case, name="first"), tmp_path, ["json"])
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert result["scenario"] == "first"


def test_a_number_that_json_cannot_hold_is_null(measured: Build, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run([measured("eager", "float32", SHAPE, facts=(("depth", float("nan")),))])
    report.write(run, tmp_path, ["json"])
    text = (tmp_path / "results.json").read_text().partition('"results"')[2]
    assert '"depth": null' in text


# ---- Limits.


@pytest.fixture
def computing(limits: Limits) -> Limits:
    """The streams, 800 TFLOP/s in float16 (650 settled), and a link of 300 GB/s between two devices."""
    points = (
        ComputePoint("float16", 4096, 4096, 4096, 7e14, "torch.mm"),
        ComputePoint("float16", 8192, 8192, 8192, 8e14, "torch.mm"),
        ComputePoint("float16", 8192, 8192, 8192, 6.5e14, "torch.mm", "settled"),
    )
    return replace(limits, compute=points, links=(LinkPoint(2, 3 * 10**8, 1e-3, "nccl"),))


def held_to(run: Run, limits: Limits) -> Run:
    return replace(run, header=replace(run.header, limits=limits))


def test_the_limit_that_binds_is_told_where_operations_were_held_to_a_peak(
    measured: Build, make_run: MakeRun, tables: Tables, computing: Limits
) -> None:
    heavy = Work(10**6, 10**6, (("float16", 10**12),))
    light = Work(10**9, 10**9, (("float16", 10**9),), sent=10**6)
    cases = [
        measured("a", "float16", SHAPE, work=heavy, samples=(2e-3,) * 7),
        measured("b", "float16", SHAPE, work=heavy, samples=(2e-3,) * 7, timer="steady"),
        measured("c", "float16", SHAPE, work=light, samples=(2e-3,) * 7),
        measured("d", "float16", SHAPE, work=replace(light, read=1, written=1, sent=10**9), world=2),
    ]
    run = held_to(make_run(cases, baseline="a"), computing)
    main, *others = (columns(table) for table in tables(run))
    assert main["bound by"] == ["float16, burst", "float16, settled", "memory", "link"]
    assert main["of ceiling"][:3] == ["62.5%", "76.9%", "25.0%"]
    assert main["TFLOP/s"][:3] == ["500.0", "500.0", "0.5000"]
    assert main["FLOP/B"][:3] == ["500000", "500000", "0.5000"]
    compute = next(table for table in others if "burst" in table)
    assert (compute["type"], compute["burst"], compute["settled"]) == (["float16"], ["800.0"], ["650.0"])
    assert compute["product"] == ["8192 x 8192 x 8192, torch.mm"]
    link = next(table for table in others if "bytes sent" in table)
    assert (link["world"], link["GB/s"]) == (["2"], ["300.0"])


def test_without_peaks_of_compute_nothing_is_said_of_them(measured: Build, make_run: MakeRun, tables: Tables) -> None:
    run = make_run([measured("a", "float16", SHAPE, work=Work(10**6, 10**6, (("float16", 10**12),)))])
    main, *others = (columns(table) for table in tables(run))
    assert {"bound by", "TFLOP/s", "FLOP/B"} & set(main) == set()
    assert not any("burst" in table for table in others)


def test_what_computing_binds_is_drawn_in_operations_a_second(
    measured: Build, make_run: MakeRun, computing: Limits
) -> None:
    def drawn(operations: int) -> str:
        work = Work(10**6, 10**6, (("float16", operations),))
        (plot, _), _ = plotting.plan(held_to(make_run([measured("a", "float16", SHAPE, work=work)]), computing))
        return plot.metric.name

    assert (drawn(10**12), drawn(10**3)) == ("flops", "bandwidth")


def test_limits_of_compute_and_links_are_written(gpu: Machine, computing: Limits, tmp_path: Path) -> None:
    paths = report.write_limits(gpu, computing, tmp_path)
    assert [path.name for path in paths] == [
        "peak.md", "peak.csv", "peak_compute.csv", "peak_links.csv", "peak.svg",
    ]  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "peak_compute.csv").open(newline="")))
    assert [(row["kind"], row["rate"], row["state"]) for row in rows] == [
        ("float16", "7e+14", "burst"), ("float16", "8e+14", "burst"), ("float16", "6.5e+14", "settled"),
    ]  # fmt: skip


def test_the_devices_of_a_machine_are_told() -> None:
    big, small = DeviceFacts("A GPU", 2 * 10**9, 10**6), DeviceFacts("A GPU", 10**9, 10**6)
    alike = dict(preface.machine(Machine("cuda", "f00d", (big, big))).pairs)
    assert (alike["device"], alike["each device: memory"]) == ("2 x A GPU", "2.000 GB")
    odd = dict(preface.machine(Machine("cuda", "f00d", (big, small))).pairs)
    assert (odd["device 0: memory"], odd["device 1: memory"]) == ("2.000 GB", "1.000 GB")


# ---- Older code.


def coded(measured: Build, op: str, digest: str, variant: str = "eager") -> Measurement:
    return measured(variant, "float32", SHAPE, op=op, code=Code(op, digest * 64))


def present(**digits: str) -> Codes:
    """The present code of each variant that these tests measure: its hash has one digit only."""
    variants = ("eager", "tuned")
    return {(op, variant): Code(op, digit * 64) for op, digit in digits.items() for variant in variants}


def test_results_of_older_code_are_counted_with_their_op(measured: Build, make_run: MakeRun) -> None:
    cases = [coded(measured, "a", "1"), coded(measured, "a", "1", "tuned"), coded(measured, "b", "2")]
    run = make_run(cases)
    assert report.stale(run, present(a="1", b="2")) == []
    assert report.stale(run, present(a="3", b="2")) == [
        "2 results were measured with older code: a (code 111111111111, now 333333333333)."
    ]
    assert report.stale(run, present(a="1", b="3")) == [
        "1 result was measured with older code: b (code 222222222222, now 333333333333)."
    ]


def test_an_op_that_is_not_there_cannot_be_compared(measured: Build, make_run: MakeRun) -> None:
    run = make_run([coded(measured, "mine", "1"), measured("tuned", "float32", SHAPE, op="mine")])
    assert report.stale(run, {}) == ["2 results can't be checked for older code: the code of mine isn't here."]


def test_a_run_that_does_not_know_its_code_says_so(run: Run) -> None:
    old = replace(run, measurements=tuple(replace(m, code=None) for m in run.measurements))
    assert report.stale(old, present(prelu="1")) == [
        "This run doesn't say which code measured each result. A new run says it."
    ]


def test_the_page_tells_of_older_code_ahead_of_the_numbers(run: Run, tmp_path: Path) -> None:
    report.write(run, tmp_path, ["markdown"], notes=["1 result is old."])
    page = (tmp_path / "report.md").read_text()
    assert "**Code**: 1 result is old." in page.partition("##")[0]


PLUGIN = """
from harness import metrics, units
from harness.ops import Op

metrics.fact("depth_of_queue", "depth", units.COUNT, "how deep the queue was")
OP = Op("mine", "a plug-in", symbols={"N": "elements"}, reference=lambda ctx, t: {})
OP.variant("eager", "")(lambda ctx: print)
"""


@pytest.mark.slow  # the tests above have what is told of older code
def test_the_command_compares_with_the_code_that_is_there(measured: Build, make_run: MakeRun, tmp_path: Path) -> None:
    plugin, folder = tmp_path / "mine.py", tmp_path / "run"
    plugin.write_text(PLUGIN)
    facts = (("depth_of_queue", 3.0),)
    ours = measured("eager", "float32", SHAPE, op="mine", code=source.code("mine", plugin), facts=facts)
    run = make_run([coded(measured, "copy", "1"), ours])
    with store.create(folder, run.header) as writer:
        for measurement in run.measurements:
            writer.append(measurement)

    def page(*options: str) -> str:
        arguments = ["report", str(folder), "--format=markdown", *options]
        if options:  # ops that are loaded stay, and need a process of their own
            subprocess.run([sys.executable, "-m", "harness", *arguments], check=True, capture_output=True)
        else:
            assert CliRunner().invoke(cli.app, arguments).exit_code == 0
        return (folder / "report.md").read_text()

    older = "1 result was measured with older code: copy (code 111111111111, now "
    without, with_plugin = page(), page(f"--ops={plugin}")
    assert [older in text for text in (without, with_plugin)] == [True, True]
    unknown = "1 result can't be checked for older code: the code of mine isn't here."
    assert [unknown in text for text in (without, with_plugin)] == [True, False]
    # What the op says of its fact is known where the op is.
    assert ["**depth**: how deep the queue was" in text for text in (without, with_plugin)] == [False, True]
    plugin.write_text(f"{PLUGIN}CHANGED = 1\n")
    assert "mine (code " in page(f"--ops={plugin}")
