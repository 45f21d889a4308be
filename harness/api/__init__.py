"""What a notebook or a program calls.

    import harness as hb

- `hb.time(f, x)`: how long a call takes; `hb.race({"ours": f, "eager": g}, x)`: which function is faster, by how much.
- `hb.op(...)`: an op of your own in a cell, or a bundled one, with sizes, types, a reference and variants.
- `hb.run("softmax")`: scenarios in processes of their own, as `harness run` does; `hb.load(folder)`: a stored run.
- `hb.compare(old, new)`: which times of runs differ.

Times are in microseconds where a name says so (`us`), and in seconds elsewhere. Shares are fractions: 1 is 100%.
`harness.measure` and `harness.check` are modules of the package, no functions: a check is the argument `check=`.
"""

from __future__ import annotations

from harness.api.declared import DeclaredOp, op
from harness.api.runs import Differences, StoredRun, compare, load, run
from harness.api.timing import Race, Raced, Time, race, time
from harness.errors import HarnessError, MachineError, UsageError, WrongResultError
from harness.interleaved import Ratio

__all__ = [
    "DeclaredOp",
    "Differences",
    "HarnessError",
    "MachineError",
    "Race",
    "Raced",
    "Ratio",
    "StoredRun",
    "Time",
    "UsageError",
    "WrongResultError",
    "compare",
    "load",
    "op",
    "race",
    "run",
    "time",
]
