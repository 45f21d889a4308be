"""Answers a request as the process does that a profiler watches, but runs nothing: a variant's name says how it ends.

$LIGHT_WRONG names a variant that is wrong. It uses nothing of the package, which would take most of its time.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def name(case: dict[str, Any]) -> str:
    shape = "-".join(f"{symbol}{size}" for symbol, size in case["shape"] if symbol not in case["usual"])
    choices = ",".join(f"{choice}={value}" for choice, value in case["choices"] if choice not in case["usual"])
    return "/".join(filter(None, [case["op"], case["variant"], case["dtype"], shape, choices]))


def main(file: Path) -> None:
    with file.with_suffix(".answers").open("a") as answers:
        for number, job in enumerate(json.loads(file.read_text())["jobs"], 1):
            variant = job["case"]["variant"]
            if variant == "abort":
                os.abort()
            status = "crashed" if variant == "crashed" else "ok"
            if variant in ("wrong", os.environ.get("LIGHT_WRONG")):
                status = "wrong"
            error = "" if status == "ok" else "not as it should be"
            answer = {"case": name(job["case"]), "number": number, "status": status, "error": error}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
            if status == "crashed":
                sys.exit(1)
            if variant == "abort_later":
                print("double free", flush=True)
                os.abort()


main(Path(sys.argv[1]))
