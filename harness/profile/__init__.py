"""Profilers: one file for each tool. A tool runs the cases of a plan once or a few times, and says what it saw of them.

The cases are prepared and checked as for timing, in a process of their own (`_target`), which runs under the tool. What
the tool found becomes attachments, which stand beside the results by the id of the case.

A tool of another package comes in by the entry point group `harness.tools`, which names its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from harness.discover import discover, entry_points, load
from harness.errors import MachineError, UsageError
from harness.model import Attachment

CALLS = 4
"""Calls of each case that a profiler sees. They rotate over sets of buffers, as timed calls do."""
CALLS_OF_RANKS = 12
"""Calls of a case of several devices that a profiler sees: their spread tells how ranks wait for each other."""
RunCase = Callable[[int], None]
"""Runs the case of a number, counted from 1."""
Running = Callable[..., AbstractContextManager[RunCase]]


@dataclass(frozen=True, slots=True)
class ToolOption:
    """A whole number that the command line takes for a tool: `--name`.

    meaning: a few words. usual: the value unless told. least, most: the smallest and the largest one allowed.
    """

    name: str
    meaning: str
    usual: int
    least: int = 1
    most: int = 1_000_000


class Tool(Protocol):
    """What the file of a tool offers. It may also offer what `Ways` has.

    SUMMARY: what it tells, in one line. SUFFIXES: of the files that `imported` understands.
    """

    SUMMARY: str
    SUFFIXES: tuple[str, ...]

    def refuse(self) -> None:
        """Raise MachineError if the tool can't be used here: it is missing, or too old."""

    def commands(self, target: Sequence[str], base: Path) -> list[list[str]]:
        """Command lines that run `target` under the tool, one after the other. Their files' names begin with `base`."""

    def failure(self, output: str) -> MachineError | None:
        """What a run that failed means, by what the tool wrote, and what to do; None if that isn't known."""

    def read(self, base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
        """What the tool found about each case, from the files that its commands left.

        cases: ids, in the order in which they ran; '' for one that ended without a call. calls: of each case.
        """

    def imported(self, file: Path, cases: Sequence[str]) -> list[Attachment]:
        """What the tool found, from a file of its own that was made elsewhere.

        cases: ids of the cases that the file may be about. Raises UsageError if it can't be read, or doesn't tell which
        of several cases it is about.
        """


@dataclass(frozen=True, slots=True)
class Ways:
    """What a tool may offer besides, by these names in capitals, but for `running`; a tool without them is as here.

    options: what the command line takes for the tool. examples: command lines, for the help. a_file_a_case: whether the
    tool writes what it found of a case once the case has ended, so that an interrupt leaves what was found until then.
    any_machine: whether what it finds doesn't depend on the machine, so that another one with the same device will do.
    verdicts: whether a console shows what ops say of their scenarios once the tool has run. ranks: whether the tool
    takes cases of several devices, each with a process that it watches.

    running(jobs, options, files, catalogue, device): a context in which the process that runs the jobs gets a function.
    The function runs the case of a number in the tool's own way, in the place of preparing and calling it. It raises
    harness.session.EndedError for a case that can't be run. options: their values by name. files: the beginning of the
    names of the files that the function writes. A tool with `ranks` gets the rank's `group`, a harness.ranks.Group,
    by this name as well. Every rank calls the function, and the first of them writes.
    """

    options: tuple[ToolOption, ...] = ()
    examples: tuple[str, ...] = ()
    a_file_a_case: bool = False
    any_machine: bool = False
    verdicts: bool = False
    ranks: bool = False
    running: Running | None = None

    @classmethod
    def of(cls, tool: Tool) -> Ways:
        """What this tool offers."""
        names = ("options", "examples", "a_file_a_case", "any_machine", "verdicts", "ranks")
        given: dict[str, Any] = {name: getattr(tool, name.upper()) for name in names if hasattr(tool, name.upper())}
        return cls(**given, running=getattr(tool, "running", None))

    def asked(self, given: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
        """The value of each option: the one that was given, else the usual one."""
        return tuple((option.name, given.get(option.name, option.usual)) for option in self.options)


_OFFERS = ("SUMMARY", "SUFFIXES", "refuse", "commands", "failure", "read", "imported")


@cache
def tools() -> dict[str, Tool]:
    """Every tool by name, the tools of this folder first. Raises UsageError for a module that isn't one."""
    found = dict(discover("harness.profile", _OFFERS))
    for entry in entry_points("harness.tools"):
        module = load(entry)
        if missing := [offer for offer in _OFFERS if not hasattr(module, offer)]:
            message = f"entry point '{entry.name}' ({entry.value}): defines no {' and no '.join(missing)}"
            raise UsageError(message, "harness.profile.Tool says what a tool offers")
        if entry.name in found:
            message = f"entry point '{entry.name}' ({entry.value}): there is a tool of this name already"
            raise UsageError(message, "give the entry point another name in its package, or uninstall the package")
        found[entry.name] = module
    return {name: cast(Tool, module) for name, module in found.items()}
