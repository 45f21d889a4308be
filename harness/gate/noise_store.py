"""Noise: how far identical code has differed, by case and machine. Blocks of base against base, kept in a file.

The noise of a case guards against what the pairs of one gate run can't show: differences that all pairs of a run
share. A block is a small gate run of a code against itself, so blocks show such differences.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.errors import MachineError, UsageError
from harness.gate.records import Margin
from harness.model import Machine, Measurement
from harness.ops.catalogue import LOADED
from harness.ops.known_cases import translated

KEPT = 20
"""How many blocks of a case are kept: the newest, since a machine changes with time."""
LEAST_BLOCKS = 5
"""A case with fewer blocks has no measured noise."""
OUTLIER = 3.0
"""Blocks that differ by more than this many robust standard deviations don't raise the noise further."""
_NORMAL = statistics.NormalDist().inv_cdf(0.75)
"""Median of the absolute value of a standard normal variable."""
_MOST = 0.99
"""The largest noise: at a loss of 100% there is no limit to compare with."""
_SCHEMA = 2
Key = tuple[str, str]
"""A case's id, and how it was timed."""
_MachineKey = tuple[str, str, str]


@dataclass(slots=True)
class Noise:
    """Blocks of one machine, by case: the mean of ln(time / time again) over the pairs of each block.

    A file may hold blocks of several machines, as a file that CI keeps does. others: the blocks of the other machines.
    """

    file: Path
    fingerprint: str
    blocks: dict[Key, list[float]]
    others: dict[_MachineKey, list[float]] = field(default_factory=dict)

    def margin(self, case: str, timer: str, asked: float) -> Margin:
        """What a case may lose: `asked`, or its noise where that is larger."""
        return Margin(asked, noise_of(self.blocks.get((case, timer), ())))

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


def noise_of(means: Sequence[float]) -> float | None:
    """The noise that blocks with these means give, as a share; None for fewer than LEAST_BLOCKS.

    It is the largest difference of a block, but at most OUTLIER robust standard deviations. So a few bad blocks can't
    raise it: the robust standard deviation is the median difference over a standard normal variable's, and stays
    small until half of the blocks are bad. Differences are counted from zero, since the code is identical.

    With n blocks of normal noise, the next block of identical code loses more than this noise with a chance of about
    1 / (2n + 2), as if the noise were simply the largest difference: 9% for 5 blocks, 5% for 10, 2.4% for 20.
    """
    if len(means) < LEAST_BLOCKS:
        return None
    differences = [abs(mean) for mean in means]
    highest = min(max(differences), OUTLIER * statistics.median(differences) / _NORMAL)
    return min(-math.expm1(-highest), _MOST)


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
            if not all(map(math.isfinite, means)):
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
