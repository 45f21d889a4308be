"""How far identical code has differed, by case and machine: blocks of base against base, kept in one file a machine."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import paths
from harness.errors import MachineError, UsageError
from harness.model import Machine
from harness.verdict import Margin

_SCHEMA = 1


@dataclass(slots=True)
class Noise:
    """Means of blocks, ln(bandwidth again / bandwidth), by case id and by how it was timed."""

    file: Path
    blocks: dict[tuple[str, str], list[float]]

    def margin(self, case: str, timer: str, asked: float) -> Margin:
        """What a case may lose: `asked`, or its noise floor where that is more."""
        means = self.blocks.get((case, timer))
        return Margin(asked, -math.expm1(-max(map(abs, means))) if means else None)

    def add(self, means: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Keep more blocks. Raises MachineError if they can't be written."""
        for key, values in means.items():
            self.blocks.setdefault(key, []).extend(values)
        rows = [{"case": case, "timer": timer, "means": found} for (case, timer), found in sorted(self.blocks.items())]
        draft = self.file.with_suffix(".tmp")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"schema": _SCHEMA, "blocks": rows}, indent=1) + "\n")
            draft.replace(self.file)
        except OSError as error:
            advice = "make room, or name another file with --noise"
            raise MachineError(f"{self.file}: can't be written: {error.strerror}", advice) from error


def load(machine: Machine, file: Path | None = None) -> Noise:
    """The machine's blocks, from the user's cache folder or a file that was named. None yet if there is no file.

    Raises UsageError for a file that holds something else.
    """
    path = file or paths.cache() / f"noise-{machine.kind}-{machine.fingerprint}.json"
    if not path.exists():
        return Noise(path, {})
    try:
        content = json.loads(path.read_text())
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']}")
        rows = content["blocks"]
        return Noise(path, {(row["case"], row["timer"]): [float(mean) for mean in row["means"]] for row in rows})
    except (OSError, ValueError, TypeError, KeyError) as error:
        advice = "delete it, and let 'harness gate calibrate' write another"
        raise UsageError(f"{path}: isn't a file of noise floors: {error}", advice) from error
