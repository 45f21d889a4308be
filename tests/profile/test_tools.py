"""A tool of another package: found by its entry point, with options and a way of its own to run cases."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import harness.profile
from harness.cli import app, tool_options
from harness.errors import UsageError
from harness.model import Attachment, Case, Job
from harness.profile import Tool, ToolOption, Ways, _procedure, _request, _target, tools
from harness.session import EndedError

CASE = Case("prelu", "eager", "float32", (("N", 1), ("C", 1), ("H", 1), ("W", 1)), device="cpu")


@contextmanager
def running(
    jobs: Sequence[Job], options: Mapping[str, int], files: Path, _catalogue: object, _device: object
) -> Iterator[Callable[[int], None]]:
    """Writes how often each case is to be run, but for the second case, which it can't run."""

    def run(number: int) -> None:
        if number == 2:
            raise EndedError("unsupported", "not this one")
        files.with_name(f"{files.name}-{number}").write_text(f"{jobs[number - 1].case.id} {options['rounds']}")

    yield run


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Tool]]]:
    """Every tool, with a module that an entry point names; keywords replace what the module offers."""

    def caches() -> None:
        tools.cache_clear()
        tool_options.parameters.cache_clear()

    def make(name: str = "mine", **changes: object) -> dict[str, Tool]:
        module = ModuleType("a_tool")
        offers = {
            "SUMMARY": "how often",
            "SUFFIXES": (".mine",),
            "OPTIONS": (ToolOption("rounds", "rounds of a case", 3),),
            "VERDICTS": True,
            "refuse": lambda: None,
            "commands": lambda target, base: [[*target]],
            "failure": lambda output: None,
            "read": lambda base, cases, calls: [Attachment(case, "mine") for case in cases if case],
            "imported": lambda file, cases: [],
            "running": running,
        }
        vars(module).update({key: value for key, value in (offers | changes).items() if value is not None})
        monkeypatch.setitem(sys.modules, "a_tool", module)
        point = EntryPoint(name, "a_tool", "harness.tools")
        monkeypatch.setattr(harness.profile, "entry_points", lambda group: [point])
        caches()
        return tools()

    yield make
    monkeypatch.undo()
    caches()


def test_a_tool_stands_beside_those_of_the_instrument(offered: Callable[..., dict[str, Tool]]) -> None:
    found = offered()
    assert list(found) == ["ncu", "nsys", "torch", "mine"]
    ways = Ways.of(found["mine"])
    assert (ways.verdicts, ways.any_machine, ways.asked({}), ways.asked({"rounds": 5})) == (
        True, False, (("rounds", 3),), (("rounds", 5),),
    )  # fmt: skip
    assert Ways.of(found["ncu"]) == Ways()


def test_what_isnt_a_tool_is_refused(offered: Callable[..., dict[str, Tool]]) -> None:
    with pytest.raises(UsageError, match=r"entry point 'mine' \(a_tool\): defines no read and no imported"):
        offered(read=None, imported=None)
    with pytest.raises(UsageError, match="there is a tool of this name already"):
        offered("torch")


def test_its_options_are_those_of_the_command(offered: Callable[..., dict[str, Tool]]) -> None:
    offered()
    told = " ".join(CliRunner().invoke(app, ["profile", "--help"]).output.split())
    assert "--rounds" in told
    assert "mine: rounds of a case; 3 unless told." in told
    assert "mine how often" in told
    assert "losses" not in told, "tools of a package that isn't there"
    with pytest.raises(UsageError, match="torch takes no --rounds: it is for mine"):
        tool_options.refuse_others("torch", {"rounds": 2})
    tool_options.refuse_others("mine", {"rounds": 2})


def test_it_runs_cases_in_its_own_way(offered: Callable[..., dict[str, Tool]], tmp_path: Path) -> None:
    offered()
    part = _procedure.prepared(
        "mine", [Job(CASE), Job(CASE)], device="cpu", plugins=[], folder=tmp_path, options={"rounds": 7}
    )
    assert _target.main([str(part.request_file)]) == 0
    ran = _request.answers(_request.answers_file(part.request_file))
    assert [(each.status, each.error) for each in ran] == [("ok", ""), ("unsupported", "not this one")]
    assert part.base.with_name(f"{part.base.name}-1").read_text() == f"{CASE.id} 7"
