"""`harness compare`: several runs, their baseline, formats, and when it fails."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness import store
from harness.cli import app
from harness.model import Case, DeviceFacts, Header, Machine, Measurement

CASE = Case("mine", "eager", "float32", (("N", 8),))
HEADER = Header("a", Machine("cpu", "c0ffee", (DeviceFacts("A CPU", 1, 1),)), (), (), "2026-01-01", "", 1)


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of a case in reports/: of 10, 20 and 5 us. The run of 20 us began last."""
    monkeypatch.chdir(tmp_path)
    for name, micros, started in (("a", 10, "2026-01-01"), ("late", 20, "2026-01-03"), ("c", 5, "2026-01-02")):
        with store.create(tmp_path / "reports" / name, replace(HEADER, started=started)) as writer:
            writer.append(Measurement(CASE, "ok", tuple(1e-6 * (micros + each / 100) for each in range(7))))
    return Path("reports")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_last_row_has_the_mean(reports: Path) -> None:
    done = invoke(reports / "a", reports / "c")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[1].split()[:3] == ["case", "(us)", "(us)"]
    assert lines[3].split() == ["geomean", "1.994x"]


def test_runs_without_a_common_case_have_no_table(reports: Path) -> None:
    with store.create(reports / "other", HEADER) as writer:
        writer.append(Measurement(replace(CASE, dtype="float16"), "ok", (1e-6,) * 7))
    done = invoke(reports / "a", reports / "other")
    lines = done.stdout.splitlines()
    assert lines[0] == "no case has a time in both runs"
    assert "not in the run: mine/eager/float32/N8" in lines
    assert "case" not in lines[1].split()


def test_the_last_line_says_what_the_sign_of_noise_means(reports: Path) -> None:
    assert invoke(reports / "a", reports / "a").stdout.splitlines()[-1] == "1 within noise (~)"


def test_the_last_run_is_the_one_that_began_last(reports: Path) -> None:
    records = json.loads(invoke(reports / "a", "@last", "--format=json").stdout)
    assert [(each["run"], each["verdict"]) for each in records["differences"]] == [("late", "slower")]


def test_without_runs_there_is_no_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run in reports/" in invoke("a", "@last").stderr


@pytest.mark.parametrize("baseline", ["c", "reports/c"])
def test_any_run_may_be_the_baseline(reports: Path, baseline: str) -> None:
    done = invoke(reports / "a", reports / "late", reports / "c", f"--baseline={baseline}", "--format=csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["baseline"], row["run"], row["verdict"]) for row in rows] == [
        ("c", "a", "slower"),
        ("c", "late", "slower"),
    ]
    assert float(rows[1]["ratio"]) == pytest.approx(0.25, rel=0.01)


def test_a_table_of_several_runs_names_each(reports: Path) -> None:
    lines = invoke(reports / "a", reports / "late", reports / "c").stdout.splitlines()
    assert lines[0].split() == ["a", "late", "late", "late", "c", "c", "c"]
    assert lines[2].split()[1:] == ["10.03", "20.03", "0.501x", "slower", "5.030", "1.994x", "faster"]
    assert lines[-2:] == ["late: 1 slower", "c: 1 faster"]


def test_markdown_has_the_same_rows(reports: Path) -> None:
    text = invoke(reports / "a", reports / "c", "--format=md").stdout
    assert "| `mine/eager/float32/N8` |" in text
    assert "| `geomean`" in text


@pytest.mark.parametrize(("share", "code"), [("90%", 1), ("99.9%", 0)])
def test_it_fails_above_a_share(reports: Path, share: str, code: int) -> None:
    done = invoke(reports / "a", reports / "late", "--fail-above", share)
    assert done.exit_code == code
    assert ("the worst: mine/eager/float32/N8 in late" in done.stderr) == bool(code)


def test_nothing_to_judge_by_is_no_success(reports: Path) -> None:
    with store.create(reports / "empty", HEADER):
        pass
    assert invoke(reports / "a", reports / "empty", "--fail-above", "1%").exit_code == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reports/a"], "only reports/a is given"),
        (["reports/a", "reports/c", "--baseline=x"], "no run is named 'x'"),
        (["reports/a", "reports/c", "--format=xml"], "no format is named 'xml'"),
    ],
)
def test_what_cannot_be_compared_is_refused(reports: Path, arguments: list[str], said: str) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
