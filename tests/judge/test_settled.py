"""What a candidate is, as a process tells, and the cases of it that are checked and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import devices, store
from harness.errors import InputError, MachineError, UsageError
from harness.judge import asking, declared, isolated, procedure
from harness.judge.records import Asked, Sheet, Sized
from harness.judge.sources import Source
from harness.model import Case, Job
from harness.scenario import Setting
from tests.judge.test_procedure import ASKED, SHEET, Watcher, case, op


@pytest.fixture
def sources() -> list[Source]:
    """What the form was asked to know."""
    return []


@pytest.fixture
def settling(monkeypatch, sources, tmp_path):
    """Gives a request whose candidate is a file; what is asked of a process ends as `answers` says."""

    def made(name: str, answers: Callable[..., dict[str, Any]], **more: Any) -> Asked:
        (tmp_path / name).write_text("def double(x): ...\n")
        (tmp_path / "k.cu").write_text("// kernel")
        form = SimpleNamespace(sheet=lambda asked, _: replace(SHEET, candidate=str(asked.candidate), **more))
        monkeypatch.setattr(procedure, "form_of", lambda _, source: sources.append(source) or form)
        monkeypatch.setattr(asking, "ask", answers)
        return replace(ASKED, candidate=tmp_path / name)

    return made


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (lambda: None, ()),
        (lambda: "no driver", ("It ran on the device cpu; cuda can't be used here: no driver.",)),
    ],
)
def test_the_sheet_is_what_a_process_answers(
    settling, sources: list[Source], tmp_path: Path, monkeypatch, missing, told
) -> None:
    def answers(action: str, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert (action, seconds) == ("survey", 9.0)
        sheet = store.parse(Sheet, request["sheet"])
        return {"sheet": store.dump(replace(sheet, notes=("looked at",)))}

    monkeypatch.setattr(
        devices, "kinds", lambda: dict.fromkeys(("cuda", "cpu"), SimpleNamespace(on_host=True, missing=missing))
    )
    asked = settling("mine.py", answers)
    found = procedure._settled(asked, tmp_path)
    assert (found.candidate, found.notes) == (str(asked.candidate), ("looked at", *told))
    assert [source.public for source in sources] == [["double"]]


@pytest.mark.parametrize(("reference", "raises"), [("", asking.AnswerError), ("mine.py", asking.AnswerError),
                                                   ("theirs.py", UsageError)])  # fmt: skip
def test_a_process_that_is_lost_is_the_reference_s_fault_where_it_is_a_file_of_its_own(
    settling, tmp_path: Path, reference, raises
) -> None:
    def answers(*_: object) -> dict[str, Any]:
        raise asking.AnswerError("it ended")

    asked = settling("mine.py", answers, reference=str(tmp_path / reference) if reference else "")
    with pytest.raises(raises, match="it ended"):
        procedure._settled(asked, tmp_path)


def test_an_isolated_candidate_is_a_manifest_for_a_gpu(settling, sources: list[Source], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    manifest = '{"source": "k.cu", "kernels": [{"entry": "k", "grid": [1], "block": 32, "arguments": []}]}'
    asked = replace(settling("k.json", lambda *_: {}), isolated=True)
    asked.candidate.write_text(manifest)
    with pytest.raises(MachineError, match="the device 'cpu' runs none"):
        procedure._settled(asked, home)
    assert (home / f"{isolated.CODE}.cu").read_text() == "// kernel"
    assert sources == [Source(asked.candidate)], "no code of it is looked at"


def test_a_file_of_python_exports_its_manifest_without_a_gpu(settling, tmp_path: Path) -> None:
    given: list[Any] = []

    def answers(action: str, request: dict[str, Any], seconds: float, **options: Any) -> dict[str, Any]:
        given.append((action, request, seconds, options))
        return {"manifest": "{}"}

    asked = settling("mine.py", answers)
    with pytest.raises(InputError, match=r"mine\.py: export\(\)"):
        procedure._manifest(asked)
    file = str(asked.candidate.resolve())
    assert given == [("export", {"file": file}, 9.0, {"variables": {"CUDA_VISIBLE_DEVICES": ""}})]


# ---- Its cases.


@pytest.fixture
def cases(monkeypatch) -> Callable[..., procedure._Prepared]:
    """The cases of a sheet; of a bundled op, of these settings and of these unseen cases."""

    def made(sheet: Sheet, settings: tuple[Setting, ...] = (), unseen: tuple[Case, ...] = ()) -> procedure._Prepared:
        monkeypatch.setattr(declared, "write", lambda *_: Path("judged.py"))
        monkeypatch.setattr(procedure, "Catalogue", lambda plugins: {sheet.op: op()})
        monkeypatch.setattr(procedure, "_settings", lambda *_: [("float32", one) for one in settings])
        monkeypatch.setattr(procedure, "_other_cases", lambda *_: list(unseen))
        asked = replace(ASKED, plugins=(Path("own.py"),))
        found = procedure._prepared(asked, sheet, Path("home"), Watcher())
        assert found.plugins == (Path("own.py"), Path("judged.py"))
        assert {job.timing for job in (*found.timed, *(job for _, job in found.checked))} <= {asked.timing}
        return found

    return made


def checked(found: procedure._Prepared) -> list[tuple[str, Case]]:
    return [(kind, job.case) for kind, job in found.checked]


def test_of_a_bundled_op_the_first_timed_case_is_checked_before_unseen_ones(cases) -> None:
    settings = tuple(Setting((("M", m), ("N", 5))) for m in (1, 2, 1))
    found = cases(SHEET, settings, (case(7, 5), case(8, 5)))
    assert [job.case for job in found.timed] == [case(1, 5), case(2, 5)], "each case once"
    assert checked(found) == [("given", case(1, 5)), ("unseen", case(7, 5)), ("unseen", case(8, 5))]
    assert found.sheet is SHEET


def test_of_another_form_the_cases_of_its_sheet_are_checked_and_timed(cases) -> None:
    timed, tested, unseen = (tuple(Sized({"M": m, "N": 5}, {}) for m in sizes) for sizes in ((1, 2), (3, 4), (6, 7)))
    sheet = replace(SHEET, form="gpumode", timed=timed, tested=tested, unseen=unseen)
    found = cases(sheet)
    assert list(found.timed) == [Job(case(m, 5), ASKED.timing) for m in (1, 2)]
    assert checked(found) == [
        (kind, case(m, 5)) for m, kind in ((3, "tested"), (4, "tested"), (6, "unseen"), (7, "unseen"))
    ]
    without = cases(replace(sheet, tested=()))
    assert checked(without)[0] == ("given", case(1, 5)), "where the form brings no tests"
