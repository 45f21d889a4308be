"""Why techniques lose: the figures come from committed runs, each entry is of a loss, and the commands can be run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.model import KernelProfile
from harness.ops import Catalogue
from harness.profile import tools
from harness.scenario import Selection, find, load, plan
from tests.one_test import one_test

ROOT = Path(__file__).parent.parent.parent
MEASURED = re.compile(r"\d+(?:\.\d+)?%|\d+\.\d+x\b|\b\d+(?:\.\d+)? (?:us|ns|ms|[kMG]?B|GB/s|TB/s|times)\b")


def script() -> Any:
    spec = importlib.util.spec_from_file_location("why", ROOT / "scripts" / "why.py")
    assert spec
    assert spec.loader
    sys.path.insert(0, str(ROOT / "scripts"))  # what scripts share lies beside them
    module = sys.modules["why"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WHY = script()
ENTRIES = {
    f"{row} {name}": (row, name, entry)
    for row, entries in yaml.safe_load(WHY.FILE.read_text(encoding="utf-8")).items()
    for name, entry in entries.items()
}
CATALOGUE = Catalogue()


@pytest.mark.slow  # the next test reads each reason
@one_test("entry", ENTRIES.values(), ids=ENTRIES)
def test_each_reason_is_of_a_variant_that_is_slower_in_its_run(entry: Any) -> None:
    reason = WHY._reason(*entry)
    assert len(reason.text) > 100
    assert {reason.variant, reason.over} <= CATALOGUE[reason.op].variants.keys()
    own, over = (WHY.line(reason.run, reason.case, each) for each in (reason.variant, reason.over))
    assert own.case.variant == reason.case.split("/")[1] == reason.variant
    assert own.result.time > over.result.time, "it wins now: its reason is to go"
    assert any(claim.row == reason.row for claim in own.scenario.claims), "its scenario makes no claim of the row"


def test_no_figure_of_a_run_is_typed() -> None:
    for key, (_, _, entry) in ENTRIES.items():
        assert MEASURED.findall(WHY.MARK.sub("", entry["why"])) == [], key
    assert MEASURED.findall("It takes 262 us and moves 3.1 GB, 1.56x as much or 43%") != []


@pytest.mark.parametrize("command", [each for *_, entry in ENTRIES.values() for each in entry.get("missing", ())])
def test_a_command_for_missing_counters_names_cases(command: str) -> None:
    harness, profile, tool, scenario, *options = shlex.split(command)
    assert (harness, profile) == ("harness", "profile")
    assert tool in tools()
    given: dict[str, list[str]] = {}
    for flag, text in zip(options[::2], options[1::2], strict=True):
        given.setdefault(flag, []).append(text)
    assert given.keys() <= {"--only", "--variants", "--output"}
    variants = tuple(",".join(given.get("--variants", [])).split(",")) if "--variants" in given else ()
    asked = Selection("cuda", only=tuple(given["--only"]), variants=variants)
    jobs = plan(load(find([scenario]), CATALOGUE), CATALOGUE, asked).jobs
    assert len(jobs) > 1
    assert not variants or {job.case.variant for job in jobs} == {*variants}


def text(why: str, **entry: Any) -> str:
    case = "layer_norm_window_partition/fused/float16/B256-H56-W56-C96-window7-shift3"
    known = {"over": "unfused", "run": "counters_more", "case": case, "why": why}
    return str(WHY._reason("S17", "layer_norm_window_partition/fused", known | entry).text)


def test_a_mark_has_the_figure_of_its_case_of_another_variant_or_a_ratio() -> None:
    fused, unfused = (
        WHY.line("counters_more", "layer_norm_window_partition/fused/float16/B256-H56-W56-C96-window7-shift3", other)
        for other in ("", "unfused")
    )
    assert (
        text("{time} of {time of unfused}") == f"{fused.result.time * 1e6:.1f} us of {unfused.result.time * 1e6:.1f} us"
    )
    counted = [
        sum(kernel.launches * dict(kernel.values)["instructions"] for kernel in line.attachments[0].kernels)
        for line in (fused, unfused)
    ]
    assert len(unfused.attachments[0].kernels) == 2
    assert text("{instructions over unfused}") == f"{counted[0] / counted[1]:.2f}x"
    assert text("{read_bytes}") == "154.2 MB", "by counters, not what the op declares"
    assert text("{kernel of unfused}") == "`layer_norm_tuned`"
    assert text("{time at softmax/tuned/float32/M131072-N1024 in softmax}").endswith(" us")


@one_test(
    ("why", "told"),
    [
        ("{nothing}", "doesn't tell nothing of layer_norm_window_partition/fused"),
        ("{time of none}", "has 0 cases like layer_norm_window_partition/none"),
        ("{time at softmax/*}", "has 0 cases like softmax"),
        ("{time at softmax/*/float32/M131072-N1024 in softmax}", "one is needed"),
        ("{kernel over unfused}", "is no number"),
        ("{time in a b}", "no figure is meant by '{time in a b}'"),
        ("{instructions in windows}", "doesn't tell instructions"),
    ],
)
def test_a_mark_without_a_figure_is_refused(why: str, told: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(told)):
        text(why)


def test_counters_of_several_kernels_are_added_weighted_or_of_the_longest() -> None:
    base = (("time", 3e-6), ("clock", 2e9), ("read_bytes", 10.0), ("written_bytes", 5.0), ("block", 64.0))
    long, short = KernelProfile("long", 1, base), KernelProfile("short", 2, (*base[1:], ("time", 0.5e-6)))
    kernels = [
        replace(short, values=(*short.values, ("issue_active", 0.8))),
        replace(long, values=(*long.values, ("issue_active", 0.4))),
    ]
    found = [WHY._of_kernels(kernels, name) for name in ("kernel", "bytes", "block", "cycles", "issue_active")]
    assert found == ["long", 45.0, 64.0, pytest.approx(8000), pytest.approx(0.5)]
    assert WHY._of_kernels([*kernels, short], "issue_active") is None
