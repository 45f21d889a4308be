"""The figures and the output of commands on pages: all of them come from the committed runs."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import store
from harness.model import Result
from harness.ops import Catalogue
from tests.one_test import one_test

ROOT = Path(__file__).parent.parent.parent


def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_tables", ROOT / "scripts" / "make_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_tables"] = module
    sys.path.insert(0, str(ROOT / "scripts"))  # what scripts share lies beside them
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
from make_gains import GAINS, measured, steps, written  # noqa: E402 - it lies beside the script

MEASURED = re.compile(r"\d+(?:\.\d+)?%|\d+\.\d+x\b|\b\d+(?:\.\d+)? (?:us|ns|ms|GB/s|TB/s|times)\b|\d+e\d+")
"""What a figure of a run looks like: a share, a factor, a time, a rate."""
GIVEN = {"100%", "1%", "2%", "0.2%", "10%", "85%", "90%", "95%"}
"""Figures that are no result: what everything would be, margins, precisions, a confidence and aims that are set."""


@pytest.fixture(scope="module")
def runs() -> Any:
    return SCRIPT.Runs()


@one_test("page", SCRIPT.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_table_and_figure_is_as_the_runs_have_it(page: Path, runs: Any) -> None:
    text = page.read_text(encoding="utf-8")
    assert SCRIPT.written(text, runs) == text, "run scripts/make_tables.py"
    assert len(SCRIPT.MARK.findall(text)) >= 3


def typed(text: str) -> list[str]:
    """Figures that no script wrote: outside of marks and of code."""
    rest = re.sub(r"```.*?```|`[^`\n]*`", "", SCRIPT.MARK.sub("", text), flags=re.DOTALL)
    return [found for found in MEASURED.findall(rest) if found not in GIVEN]


@one_test("page", SCRIPT.PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_figure_was_typed(page: Path) -> None:
    assert typed(page.read_text(encoding="utf-8")) == []


@one_test("figure", ["97.5%", "1.56x", "262 us", "4243 GB/s", "3.8 times", "2.5e12"])
def test_a_typed_figure_would_be_noticed(figure: str) -> None:
    assert typed(f"It reaches {figure} there.") != []
    assert typed(f"It reaches <!-- figure a b -->{figure}<!-- end --> there, and `{figure}` is code.") == []


def test_a_changed_figure_fails_the_check(runs: Any) -> None:
    """Each change by itself is one of the text, and all of them are put right."""
    changes: dict[str, Callable[[str], str]] = {
        "table": lambda text: text.replace("| 1024 |", "| 1025 |", 1),
        "figure": lambda text: re.sub(r"(<!-- figure [^>]*-->)[^<]*", r"\g<1>9.99x", text, count=1),
        "torch": lambda text: text.replace(" torch 2", " torch 3", 1),
    }
    text = changed = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    for name, change in changes.items():
        before, changed = changed, change(changed)
        assert changed != before, name
    assert SCRIPT.written(changed, runs) == text


@one_test(
    "mark",
    [
        "table nothing",
        "figure copy/none/* time",
        "figure one",
        "figure copy/* speedup none",
        "screen copy harness run copy --only 'none/*'",
        "command harness explain 'none/*' --run reports/h200/copy",
    ],
)
def test_a_mark_that_means_nothing_is_refused(mark: str, runs: Any) -> None:
    with pytest.raises(SystemExit, match="no "):
        SCRIPT.written(f"<!-- {mark} --><!-- end -->", runs)


def test_a_mark_without_an_end_is_refused_since_what_follows_would_be_lost() -> None:
    with pytest.raises(SystemExit, match="'table prelu' has no end"):
        SCRIPT.written("<!-- table prelu -->\n\n## Next\n\n<!-- table ops -->\n<!-- end -->", None)


def test_a_screen_has_the_command_and_the_cases_that_it_names() -> None:
    mark = "screen counters harness run prelu --only 'prelu/tuned/float32/N96-*' --only 'copy/stream/*'"
    text = SCRIPT.written(f"<!-- {mark} --><!-- end -->", None)
    lines = text.splitlines()
    assert lines[3] == f"$ {mark.partition(' ')[2].partition(' ')[2]}"
    assert "NVIDIA H200: 2 ok" in lines
    assert "stream" in text
    assert "packed" not in text
    assert SCRIPT.written(text.replace("2 ok", "3 ok"), None) == text


def test_the_check_says_which_page_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, runs: Any
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figure copy/stream/float32/N268435456 of_ceiling -->0%<!-- end -->")
    monkeypatch.setattr(SCRIPT, "PAGES", (page,))
    monkeypatch.setattr(SCRIPT, "ROOT", tmp_path)
    monkeypatch.setattr(SCRIPT, "Runs", lambda: runs)
    assert SCRIPT.main(["--check"]) == 1
    assert "page.md: differs from the runs" in capsys.readouterr().out
    assert SCRIPT.main([]) == 0
    assert SCRIPT.main(["--check"]) == 0
    assert capsys.readouterr().out.count("page.md") == 1


def test_of_two_modes_of_torch_compile_the_faster_one_stands_there_by_name(runs: Any) -> None:
    plain = runs.group("dropout", "float16", "N134217728/p=0.1")
    plain = replace(plain, results={name: plain.results[name] for name in ("eager", "compile", "tuned")})
    assert (plain.compiled, plain.mode) == ("compile", "default")
    fast = plain.results["tuned"]
    both = replace(plain, results=plain.results | {"compile_autotune": fast})
    assert both.results["compile"].time > fast.time
    assert (both.compiled, both.mode) == ("compile_autotune", "autotune")
    assert both.written("tuned", "speedup", both.compiled) == "1.00x"
    assert plain.written("tuned", "speedup", "compile_autotune") == "not run"


def test_the_newest_run_of_a_case_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run for the rows' figures alone doesn't: it lacks variants."""
    run = store.load(ROOT / "reports" / "h200" / "copy")
    for name in ("old", "new", "row_copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").touch()
    started = {"old": "2026-01-01T00:00:00", "new": "2026-02-01T00:00:00", "row_copy": "2026-03-01T00:00:00"}
    dated = {name: replace(run, header=replace(run.header, started=when)) for name, when in started.items()}
    monkeypatch.setattr("committed.known_cases.load", lambda folder: dated[folder.name])
    assert {group.folder for group in SCRIPT.Runs(tmp_path).groups.values()} == {"new"}


def test_a_figure_that_a_newer_run_lacks_is_of_the_newest_run_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of a case: each newer one has half the time, and the newest one only the first variant."""
    run = store.load(ROOT / "reports" / "h200" / "copy")
    results = {found.case.variant: found for found in run.results if found.case.group == run.results[0].case.group}
    kept, lost = list(results)[:2]
    runs = {}
    for month, variants in ((1, (kept, lost)), (2, (kept, lost)), (3, (kept,))):
        (tmp_path / str(month)).mkdir()
        (tmp_path / str(month) / "run.json").touch()
        timed = tuple(replace(results[name].measurements[0], samples=(2.0**-month,)) for name in variants)
        header = replace(run.header, started=f"2026-0{month}-01T00:00:00")
        runs[str(month)] = replace(run, header=header, measurements=timed)
    monkeypatch.setattr("committed.known_cases.load", lambda folder: runs[folder.name])
    found = SCRIPT.Runs(tmp_path)
    assert found.figure(results[kept].case.id, "time") == "125.0 ms"
    assert found.figure(results[lost].case.id, "time") == "250.0 ms"
    assert found.figure(results[lost].case.id, "speedup", kept) == "1.00x", "both are of one run"
    (newest,) = (group for group in found.groups.values() if kept in group.results)
    assert [found.newest_with(name, newest).folder for name in (kept, lost, "none")] == ["3", "2", "3"]


def test_a_later_run_of_some_rungs_in_one_process_gives_only_what_three_processes_lack(runs: Any) -> None:
    ladder = runs.group("ladder_vit_base_patch16_224", "bfloat16", "B64")
    assert ladder.folder == "ladder_vit"
    assert {len(found.measurements) for found in ladder.results.values()} == {3}
    assert "compile_autotune_graph" not in ladder.results
    cases = "ladder_vit_base_patch16_224/{}/*/B64"
    assert runs.figure(cases.format("compile_autotune_graph"), "speedup", "compile_graph").endswith("x")
    assert float(runs.figure(cases.format("patched_graph"), "training_loss")) > 0


def test_what_is_compared_with_one_device_is_compared_with_the_baseline_there(runs: Any) -> None:
    ddp = runs.groups["resnet50_scaling/float16/B256/world=2"]
    alone = runs.groups["resnet50_scaling/float16/B256"]
    items = ddp.value("ddp", "items") / alone.value("replicas", "items")
    assert ddp.value("ddp", "efficiency") == pytest.approx(items / 2)
    assert alone.value("replicas", "efficiency") is None


def test_a_texts_rungs_stand_as_graphs_too_once_they_were_run(runs: Any) -> None:
    """`tf32` and `amp` of Swin-L as graphs in 60 and 40 ms, and of Swin-T only the second one."""
    seconds = {"B128/model=swin_tiny": {"amp": 0.04}, "B64/model=swin_large": {"tf32": 0.06, "amp": 0.04}}
    graphs = {}
    for setting, times in seconds.items():
        group = runs.group("swin_train", "float16", setting)
        (one,) = group.results["amp"].measurements[:1]
        timed = {name: replace(one, samples=(time,)) for name, time in times.items()}
        results = {name: Result(found.case, (found,)) for name, found in timed.items()}
        graphs[f"{setting},step=graph"] = replace(group, results=results)
    found = SimpleNamespace(group=runs.group, found=lambda _op, _dtype, setting: graphs.get(setting))
    lines = SCRIPT.swin_text(found)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0][-2:] == ["GPU busy", "Swin-L, both as graphs"], "a column without a figure isn't there"
    rows = {row[1]: row for row in cells}
    assert rows["`amp` over `tf32`"][2] == "1.63x"
    assert rows["`amp` over `tf32`"][-1] == "1.50x"
    assert rows["`attention` over `tf32`"][-1] == ""
    without = SCRIPT.swin_text(SimpleNamespace(group=runs.group, found=lambda *_: None))
    assert "as graphs" not in "".join(without)


def test_a_newer_run_without_the_first_steps_is_not_what_a_source_tells(runs: Any) -> None:
    op, setting = Catalogue()["softmax"], "M131072-N1024"
    whole = runs.group("softmax", "float32", setting)
    less = replace(whole, folder="newer", results={"tuned": whole.results["tuned"]})
    same = replace(whole, folder="newer")
    for every, told in (((whole, less), whole.folder), ((whole, same), "newer"), ((less, whole), whole.folder)):
        found = measured(op, SimpleNamespace(every=every))
        assert found is not None
        assert (found.folder, len(steps(op, found))) == (told, len(steps(op, whole)))


def test_the_newest_measurement_of_a_case_comes_last(runs: Any) -> None:
    last = {group.name: group for group in runs.every}
    assert len(runs.every) > len(last)
    assert all(last[name].folder == group.folder for name, group in runs.groups.items())


@pytest.mark.slow  # the first test has the figures of each page
def test_every_kernel_source_says_what_its_steps_gained(runs: Any) -> None:
    for op in Catalogue().values():
        for file in (ROOT / "kernels").glob(f"*/{op.name}.cu"):
            text = file.read_text(encoding="utf-8")
            assert written(text, op, runs) == text, f"{file}: run scripts/make_gains.py"
            if GAINS in text:
                assert written(re.sub(r"\d% of ceiling", "x% of ceiling", text, count=1), op, runs) == text
