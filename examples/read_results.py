"""A stored run in pandas: `python examples/read_results.py reports/mine`.

results.csv has SI units without a prefix: `time`, `low`, `high` in seconds, `bandwidth` in bytes a second, `flops` in
operations a second, bytes in bytes. Shares such as `of_ceiling` and `noise` are fractions: 1 is 100%. A case without a
time has an empty `time`, and `status` and `error` say why. `harness report FOLDER --format csv` writes the file again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def table(folder: Path) -> pd.DataFrame:
    """The fastest variant of each shape and dtype, in the units that people read."""
    results = pd.read_csv(folder / "results.csv")
    timed = results[results["status"] == "ok"]
    best = timed.loc[timed.groupby(["op", "shape", "dtype"])["time"].idxmin()]
    return pd.DataFrame(
        {
            "op": best["op"],
            "shape": best["shape"],
            "dtype": best["dtype"],
            "fastest": best["variant"],
            "time (us)": best["time"] * 1e6,
            "GB/s": best["bandwidth"] * 1e-9,
            "of ceiling (%)": best["of_ceiling"] * 100,
        }
    )


if __name__ == "__main__":
    print(table(Path(sys.argv[1])).round(2).to_string(index=False))
