"""Noise: how far identical code has differed, by case and machine. Blocks of base against base, kept in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.errors import MachineError, UsageError
from harness.gate.records import Margin
from harness.model import Machine, Measurement
from harness.store import version1

KEPT = 20
"""How many blocks of a case are kept: the newest. The noise floor is their largest, so old blocks must be dropped."""
_SCHEMA = 2
Key = tuple[str, str]
"""A case's id, and how it was timed."""
_MachineKey = tuple[str, str, str]


@dataclass(slots=True)
class Noise:
    """Blocks of one machine, by case: the mean of ln(time / time again) over the pairs of each block.

    A file may hold blocks of several machines, as one that CI keeps does. others: the blocks of the other machines.
    """

    file: Path
    fingerprint: str
    blocks: dict[Key, list[float]]
    others: dict[_MachineKey, list[float]] = field(default_factory=dict)

    def margin(self, case: str, timer: str, asked: float) -> Margin:
        """What a case may lose: `asked`, or its noise floor where that is larger."""
        means = self.blocks.get((case, timer))
        return Margin(asked, -math.expm1(-max(map(abs, means))) if means else None)

    def add(self, means: Mapping[Key, Sequence[float]]) -> None:
        """Add blocks, and keep the newest KEPT of each case. Raises MachineError if the file can't be written."""
        for key, values in means.items():
            self.blocks[key] = [*self.blocks.get(key, ()), *values][-KEPT:]
        own: dict[_MachineKey, list[float]] = {(self.fingerprint, *key): found for key, found in self.blocks.items()}
        rows = [
            {"machine": machine, "case": case, "timer": timer, "means": found}
            for (machine, case, timer), found in sorted({**self.others, **own}.items())
        ]
        draft = self.file.with_suffix(".tmp")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"schema": _SCHEMA, "blocks": rows}, indent=1) + "\n")
            draft.replace(self.file)
        except OSError as error:
            advice = "free some space, or name another file with --noise"
            raise MachineError(f"{self.file}: can't be written: {error.strerror}", advice) from error


def load(machine: Machine, file: Path | None = None) -> Noise:
    """The machine's blocks, from `file`, or from one in the user's cache folder. No file yet: no blocks.

    Raises UsageError for a file that holds something else.
    """
    path = file or paths.cache() / f"noise-{machine.kind}-{machine.fingerprint}.json"
    noise = Noise(path, machine.fingerprint, {})
    if not path.exists():
        return noise
    try:
        content = json.loads(path.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']}, this version of the harness reads {_SCHEMA}")
        for row in content["blocks"]:
            means = [float(mean) for mean in row["means"]]
            case = version1.upgrade_id(row["case"])  # the file may be of harness 0.1.0
            if row["machine"] == machine.fingerprint:
                noise.blocks[case, row["timer"]] = means
            else:
                noise.others[row["machine"], case, row["timer"]] = means
    except (OSError, ValueError, TypeError, KeyError) as error:
        advice = "delete it, and run 'harness gate calibrate', which writes a new one"
        raise UsageError(f"{path}: isn't a file of noise floors: {error}", advice) from error
    return noise


def timer(measurements: Sequence[Measurement]) -> str:
    """How a case was timed; empty if it wasn't."""
    return next((m.timer for m in measurements if m.time is not None), "")
