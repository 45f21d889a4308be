"""Records of version 1 as records of version 2: on lines of runs of that time, and on what no run holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.model import Case, Header, Job, Measurement, Traffic
from harness.store import parse, version1

RUNS = Path(__file__).parent / "version1"
"""Every ninth line of runs of an H200, as they were stored."""


def lines(run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUNS / run / "results.jsonl").read_text().splitlines()]


def header(run: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RUNS / run / "run.json").read_text())
    return loaded


def old_id(case: dict[str, Any]) -> str:
    """The id as version 1 made it."""
    shape = "-".join(f"{symbol}{size}" for symbol, size in case["shape"])
    hot = ["hot"] if case["cache"] == "hot" else []
    return "/".join([case["op"], case["variant"], case["dtype"], shape, *hot])


@pytest.mark.parametrize("run", ["bn", "dropout", "dropout_fused", "prelu"])
def test_every_line_of_a_stored_run_is_a_measurement(run: str) -> None:
    for old in lines(run):
        new = parse(Measurement, json.dumps(version1.upgrade_measurement(old)))
        assert new.case.id == version1.upgrade_id(old_id(old["case"]))
        assert new.samples == tuple(old["samples"])
        assert new.status == old["status"]
        assert new.work
        assert (new.work.read, new.work.written) == (old["work"]["read"], old["work"]["written"])
        assert new.work.flops == ((("float32", old["work"]["flops"]),) if old["work"]["flops"] else ())
        assert new.traffic == Traffic(old["traffic"]["read"], old["traffic"]["written"])


@pytest.mark.parametrize(
    ("run", "line", "id"),
    [
        ("bn", 0, "bn_add_relu/eager/float32/N168-C64-H112-W112/layout=nchw"),
        ("dropout", 0, "dropout/eager/float32/N4194304/p=0.1"),
        ("prelu", 0, "prelu/eager/float32/N96-C64-H112-W112"),
    ],
)
def test_a_size_that_was_an_option_is_a_choice(run: str, line: int, id: str) -> None:
    new = parse(Measurement, json.dumps(version1.upgrade_measurement(lines(run)[line])))
    assert new.case.id == id
    assert new.case.world == 1


@pytest.mark.parametrize("run", ["bn", "dropout"])
def test_the_header_of_a_stored_run(run: str) -> None:
    old = header(run)
    new = parse(Header, json.dumps(version1.upgrade_header(old)))
    assert new.schema == 1
    assert new.machine.name == new.machine.device.name == old["machine"]["name"]
    assert new.machine.fingerprint == old["machine"]["fingerprint"]
    assert new.machine.device.cache_bytes == old["machine"]["cache_bytes"]
    assert new.machine.device.power_limit_w == old["machine"]["power_limit_w"]
    assert new.machine.cpu == old["machine"]["cpu"]
    assert new.limits
    assert [asdict(point) for point in new.limits.points] == old["ceilings"]["points"]
    assert [asdict(point) for point in new.limits.end] == old["ceilings"]["end"]
    measured = {version1.upgrade_measurement(line)["case"]["op"] for line in lines(run)}
    assert {scenario.op for scenario in new.scenarios} >= measured
    planned = {case for scenario in new.scenarios for case in scenario.cases}
    assert {version1.upgrade_id(old_id(line["case"])) for line in lines(run)} <= planned
    assert all("layout=" in case or "p=" in case for case in planned)
    assert [scenario.roles for scenario in new.scenarios] == [()] * len(new.scenarios)


def test_a_run_that_has_not_finished_has_no_limits() -> None:
    old = {**header("prelu"), "ceilings": None, "finished": None}
    assert parse(Header, json.dumps(version1.upgrade_header(old))).limits is None


def test_patterns_of_claims_and_floors_are_upgraded_with_the_ids() -> None:
    old = header("bn")
    [scenario, *_] = old["scenarios"]
    scenario["expect"] = [{"variant": "tuned", "metric": "speedup", "value": 1.0, "where": "*-H56-W56-L1"}]
    new = parse(Header, json.dumps(version1.upgrade_header(old)))
    assert new.scenarios[0].expect[0].where == "*-H56-W56/layout=nhwc"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "bn_add_relu_grad/tuned/float16/N2-C3-H4-W5-L1/hot",
            "bn_add_relu_grad/tuned/float16/N2-C3-H4-W5/layout=nhwc/hot",
        ),
        ("dropout_add/float32/N32-P7", "dropout_add/float32/N32/p=0.07"),
        ("random_mask/tuned/bool/N32-P0", "random_mask/tuned/bool/N32/p=0"),
        ("bias_dropout_residual/tuned/float32/R3-C4-P100", "bias_dropout_residual/tuned/float32/R3-C4/p=1"),
        ("mine/tuned/float32/N32-P10-L1", "mine/tuned/float32/N32-P10-L1"),
    ],
)
def test_ids_and_groups(old: str, new: str) -> None:
    assert version1.upgrade_id(old) == new


@pytest.mark.parametrize("run", ["bn", "dropout_fused", "prelu"])
def test_a_case_survives_the_way_there_and_back(run: str) -> None:
    for line in lines(run):
        assert version1.downgrade_case(version1.upgrade_measurement(line)["case"]) == line["case"]


def test_a_run_that_can_not_be_gone_on_with_is_left_as_it_is(tmp_path: Path) -> None:
    """Its last line lacks the line end. As a line of version 2 it would count as cut."""
    for name, cut in (("run.json", 0), ("results.jsonl", 1)):
        content = (RUNS / "prelu" / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) - cut])
    before = (tmp_path / "results.jsonl").read_bytes()
    run, writer = store.reopen(tmp_path)
    writer.close()
    assert run.losses == ()
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "case",
    [
        Case("bn_add_relu", "tuned", "float32", (("N", 8),), (("layout", "nc32hw32"),)),
        Case("dropout", "tuned", "float32", (("N", 8),), (("p", 0.125),)),
        Case("prelu", "tuned", "float32", (("N", 8),), (("layout", "nhwc"),)),
    ],
)
def test_what_version_1_has_no_words_for_is_none(case: Case) -> None:
    assert version1.downgrade_case(asdict(case)) is None


def test_the_ranks_of_a_job_are_the_devices_of_its_case() -> None:
    case = {"op": "all_reduce", "variant": "gloo", "dtype": "float32", "shape": [["N", 8]], "device": "cpu"}
    timing = {"precision": 0.1, "max_time": 1.0, "timeout": 9.0}
    job = parse(Job, json.dumps(version1.upgrade_job({"case": case, "timing": timing, "ranks": 2})))
    assert job.case == Case("all_reduce", "gloo", "float32", (("N", 8),), world=2, device="cpu")
    assert job.timing.timeout == 9.0


@pytest.mark.parametrize(
    "damaged", [{}, [], None, {"case": None}, {"case": {"op": "bn_add_relu", "shape": [["L", 7]]}}]
)
def test_what_is_no_record_of_version_1_is_a_value_error(damaged: Any) -> None:
    with pytest.raises(ValueError, match="isn't a record of version 1"):
        version1.upgrade_measurement(damaged)
