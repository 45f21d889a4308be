"""Stands in for Nsight Compute: runs the target, and leaves a report that is the CSV of its raw page.

Each case has one kernel, `copy_kernel`, launched as often as the case was called, and one mark ahead. In the run that
counts everything a launch takes 30 us, in the one that counts bytes alone 20 us.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

HEAD = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size"]
UNITS = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte"}


def main(arguments: list[str]) -> int:
    report = Path(arguments[arguments.index("--export") + 1])
    if (fails := os.environ.get("FAKE_FAILS")) and fails in report.name:
        print(os.environ.get("FAKE_SAYS", "no luck today"))
        return 1
    metrics = arguments[arguments.index("--metrics") + 1].split(",")
    target = arguments[arguments.index("--export") + 2 :]
    code = subprocess.run(target, check=False).returncode
    request = Path(target[-1])
    answers = request.with_suffix(".answers").read_text().splitlines()
    asked = json.loads(request.read_text())
    calls = 1 if asked["checked"] else asked["calls"]
    with report.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow([*HEAD, *metrics])
        writer.writerow(["", "", "", "", "", *(UNITS.get(name, "") for name in metrics)])
        for answer in map(json.loads, answers):
            if answer["status"] == "ok":
                grid = f"({answer['number']}, 1, 1)"
                writer.writerow(["0", "7", "harness_mark", f"({calls}, 1, 1)", grid, *["1"] * len(metrics)])
                kernel = ["1", "7", "copy_kernel", "(256, 1, 1)", "(64, 1, 1)", *(counted(m, metrics) for m in metrics)]
                writer.writerows([kernel] * calls)
    return code


def counted(metric: str, metrics: list[str]) -> str:
    alone = "launch__grid_size" not in ",".join(metrics) and len(metrics) == 3
    values = {
        "gpu__time_duration.sum": "20,000" if alone else "30,000",
        "dram__bytes_read.sum": "4,096",
        "dram__bytes_write.sum": "4,000.5",
        "lts__t_sector_hit_rate.pct": "50",
        "smsp__inst_executed.sum": "1,234,567",
    }
    return values.get(metric, "1")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
