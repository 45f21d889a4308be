"""Write the audit of bytes of each machine, reports/<machine>/audit.md, from the committed runs that have counters.

    harness profile ncu SCENARIO --output reports/<machine>/<run>
    python scripts/make_audit.py

The page compares the bytes that hardware counters saw with the bytes that ops and variants declare. With --check
nothing is written: the exit code is 1 if a page isn't as it would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import store
from harness.ops import known_cases
from harness.report import build
from harness.report.formats.markdown import render

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "reports"
PAGE = "audit.md"


def audit(machine: Path) -> str | None:
    """The page of the machine whose runs lie in this folder; None if no case of them has counters."""
    # Most runs have no attachment, and reading all of them takes a while.
    folders = sorted(file.parent for file in machine.glob(f"*/{store.ATTACHMENTS}"))
    page = build.page_of_audit({folder.name: known_cases.load(folder) for folder in folders})
    return None if page is None else f"{render(page)}\nMade by `python scripts/make_audit.py`.\n"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check say which of them isn't as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    check = parser.parse_args(arguments).check
    stale = False
    for machine in sorted(folder for folder in REPORTS.iterdir() if folder.is_dir()):
        page, after = machine / PAGE, audit(machine)
        before = page.read_text(encoding="utf-8") if page.exists() else None
        told = page.relative_to(REPORTS.parent)
        if after is None and before is None:
            print(f"{told}: not written, since no run of this machine has counters; `harness profile ncu` adds them")
        elif after is None:
            stale = True
            print(f"{told}: no run of this machine has counters any more; remove the page, or add them again")
        elif after != before:
            stale = stale or check
            print(f"{told}: {'differs from the runs; run scripts/make_audit.py' if check else 'written'}")
            if not check:
                page.write_text(after, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
