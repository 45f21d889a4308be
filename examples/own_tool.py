"""A profiler of your own: it counts the operators of torch that one call of a case runs.

A package offers it by an entry point, and `harness profile operators SCENARIO` runs it:

    [project.entry-points."harness.tools"]
    operators = "my_package.own_tool"

What it finds stands in the report as `operators.count`. A tool that is a program of its own gives the program's command
in `commands`, and needs no `running`: harness/profile/ncu.py is such a tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import MachineError
from harness.model import Attachment, Job
from harness.session import Session

SUMMARY = "how many operators of torch a call runs"
SUFFIXES = (".operators",)


def refuse() -> None:
    """Raise MachineError where the tool is missing. This one is always there."""


def commands(target: Sequence[str], base: Path) -> list[list[str]]:  # noqa: ARG001 - files have names of their own
    """What is started: the process that runs the cases, and nothing around it."""
    return [[*target]]


def failure(output: str) -> MachineError | None:
    """What a failed run means, where its output tells."""


@contextmanager
def running(
    jobs: Sequence[Job], _options: object, files: Path, ops: Mapping[str, Any], device: Any
) -> Iterator[Callable[[int], None]]:
    """Gives a function that runs the case of a number, and writes what it found into a file."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.count += 1
            return function(*args, **(kwargs or {}))

    def run(number: int) -> None:
        case = jobs[number - 1].case
        with Session(case, ops[case.op], device) as session, Counter() as counter:
            session.prepare()
            call = session.calls()[0]
            counter.count = 0
            call()
            Path(f"{files}-{number}.operators").write_text(json.dumps({case.id: counter.count}))

    yield run


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:  # noqa: ARG001
    """What the files say of these cases."""
    return [found for file in sorted(base.parent.glob(f"{base.name}-*.operators")) for found in imported(file, cases)]


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The same of one file, which another machine may have written."""
    counts = json.loads(file.read_text())
    return [Attachment(case, "operators", (("count", float(counts[case])),)) for case in cases if case in counts]
