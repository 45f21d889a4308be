"""`harness gate --resume FOLDER`: an earlier gate whose pairs left a case undecided, and whether it may go on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import store
from harness.errors import UsageError
from harness.gate.case_lists import Cases
from harness.gate.records import GateRun, Side, UsedCode, Waiver
from harness.gate.worktree import Checkout
from harness.model import Machine

FILE = "gate.json"
_ANEW = "measure anew: the same command without --resume"


def load(folder: Path, margin: float, waivers: tuple[Waiver, ...]) -> GateRun:
    """The gate run in the folder. Raises UsageError if it holds none that could go on with this margin and waivers.

    What a case may lose is fixed before it is measured: to change it after a look at the pairs would be a choice.
    """
    file = folder / FILE
    made = read(file)
    if made.mode != "paired" or not made.cases:
        raise UsageError(f"--resume {folder}: no pairs were measured there", _ANEW)
    if asked := {found.margin.asked for found in made.cases} - {margin}:
        raise UsageError(
            f"--resume {folder}: measured with --margin {max(asked):g}, which can't change with the pairs known", _ANEW
        )
    if made.waivers != waivers:
        raise UsageError(f"--resume {folder}: the waivers aren't as they were when it was measured", _ANEW)
    return made


def read(file: Path) -> GateRun:
    """The gate run in a file. Raises UsageError for a file that holds none, such as of a gate that stopped."""
    try:
        text = file.read_text(encoding="utf-8")
        if stopped := json.loads(text).get("stopped"):
            raise UsageError(f"{file}: this gate stopped: {stopped['message']}", _ANEW)
        return store.parse(GateRun, text)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file}: holds no gate run: {why}", f"name a folder with the {FILE} of a gate") from error


def check(
    earlier: GateRun, codes: Mapping[Side, Checkout], machine: Machine, cases: Cases, used: UsedCode | None
) -> None:
    """Raise UsageError unless the earlier run measured the same codes and cases, on the same machine."""
    if differing := list(_differing(earlier, codes, machine, cases, used)):
        raise UsageError(
            f"--resume: pairs of {earlier.started} can't go on, since {'; '.join(differing)}",
            "measure the code as it is now: the same command without --resume",
        )


def _differing(
    earlier: GateRun, codes: Mapping[Side, Checkout], machine: Machine, cases: Cases, used: UsedCode | None
) -> Iterator[str]:
    base, now = codes["base"].code, codes["now"].code
    if earlier.base.revision != base.revision:
        yield f"the base was {earlier.base.revision[:12]}, and is {base.revision[:12]} now"
    elif used and earlier.used and used.base != earlier.used.base:
        yield "the base used other files, such as packages"
    if earlier.now.digest != now.digest or (used and earlier.used and used.now != earlier.used.now):
        yield "the code has changed"
    before, today = earlier.machine, machine
    if (before.fingerprint, before.driver, before.versions) != (today.fingerprint, today.driver, today.versions):
        yield "the machine or its software is another one"
    if earlier.scenarios != cases.scenarios or [f.case.id for f in earlier.cases] != [j.case.id for j in cases.all]:
        yield "the scenarios or their cases are others"
