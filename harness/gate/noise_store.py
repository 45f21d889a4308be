"""Noise: how far identical code has differed, by case and machine. Blocks of base against base, kept in a file.

The noise of a case guards against what the pairs of one gate run can't show: differences that all pairs of a run
share. `offsets` says what blocks tell of these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from harness import paths
from harness.errors import MachineError, UsageError
from harness.gate.offsets import ASSUMED, Block, Offset, offsets
from harness.gate.records import Margin
from harness.model import Machine, Measurement
from harness.ops.catalogue import LOADED
from harness.ops.known_cases import translated

KEPT = 20
"""How many blocks of a case are kept: the newest, since a machine changes with time."""
NOISE_OF = 3.0
"""The noise of a case is so many standard deviations of its offsets."""
_MOST = 0.99
"""The largest noise: at a loss of 100% there is no limit to compare with."""
_SCHEMA = 3
_READ = (2, _SCHEMA)
"""Schemas that are read. Blocks of schema 2 have no errors."""
Key = tuple[str, str]
"""A case's id, and how it was timed."""
_MachineKey = tuple[str, str, str]


@dataclass
class Noise:
    """Blocks of one machine, by case: of ln(time / time again) over the pairs of each block.

    A file may hold blocks of several machines, as a file that CI keeps does. others: the blocks of the other machines.
    """

    file: Path
    fingerprint: str
    blocks: dict[Key, list[Block]]
    others: dict[_MachineKey, list[Block]] = field(default_factory=dict)

    @cached_property
    def offsets(self) -> dict[Key, Offset]:
        """The scale of the offsets of each case that has enough blocks."""
        return offsets(self.blocks)

    def margin(self, case: str, timer: str, asked: float, family: int = 1, waived: float = 0.0) -> Margin:
        """What a case may lose in a run of `family` cases: `asked`, or what offsets need where that is larger.

        waived: the largest loss that a waiver lets pass. A case without enough blocks has no noise; its offsets are
        ASSUMED.
        """
        offset = self.offsets.get((case, timer))
        noise = None if offset is None else _share(NOISE_OF * offset.scale)
        scale = offset or ASSUMED
        margin = Margin(asked, noise, _share(scale.allowed(family)), waived=waived)
        return Margin(asked, noise, margin.allowed, scale.chance(-margin.fail_limit), waived)

    def add(self, found: Mapping[Key, Sequence[Block]]) -> None:
        """Add blocks, and keep the newest KEPT of each case. Raises MachineError if the file can't be written."""
        for key, values in found.items():
            self.blocks[key] = [*self.blocks.get(key, ()), *values][-KEPT:]
        self.__dict__.pop("offsets", None)
        own: dict[_MachineKey, list[Block]] = {(self.fingerprint, *key): blocks for key, blocks in self.blocks.items()}
        rows = [
            {
                "machine": machine,
                "case": case,
                "timer": timer,
                "means": [block.mean for block in blocks],
                "errors": [block.error for block in blocks],
            }
            for (machine, case, timer), blocks in sorted({**self.others, **own}.items())
        ]
        draft = self.file.with_suffix(".tmp")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"schema": _SCHEMA, "blocks": rows}, indent=1) + "\n")
            draft.replace(self.file)
        except OSError as error:
            advice = "free some space, or name another file with --noise"
            raise MachineError(f"{self.file}: can't be written: {error.strerror}", advice) from error


def _share(change: float) -> float:
    """A difference of logarithms as the share of the speed that it loses."""
    return min(-math.expm1(-change), _MOST)


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
        if content["schema"] not in _READ:
            raise ValueError(f"schema {content['schema']}, this version of the harness reads {_READ[0]} and {_SCHEMA}")
        for row in content["blocks"]:
            errors = row.get("errors") or [0.0] * len(row["means"])
            means = [Block(float(mean), float(error)) for mean, error in zip(row["means"], errors, strict=True)]
            if not all(math.isfinite(number) for block in means for number in block):
                raise ValueError(f"the blocks of {row['case']} hold something that isn't a number")
            case = translated(row["case"], LOADED)  # an earlier harness wrote whole ids
            if row["machine"] == machine.fingerprint:
                noise.blocks[case, row["timer"]] = means
            else:
                noise.others[row["machine"], case, row["timer"]] = means
    except (OSError, ValueError, TypeError, KeyError) as error:
        advice = "delete it, and run 'harness gate calibrate', which writes a new one"
        raise UsageError(f"{path}: isn't a noise file: {error}", advice) from error
    return noise


def timer(measurements: Sequence[Measurement]) -> str:
    """How a case was timed; empty if it wasn't."""
    return next((m.timer for m in measurements if m.time is not None), "")
