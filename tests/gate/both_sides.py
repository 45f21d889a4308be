"""Has both sides of a gate on a repository, tells their folders, and is killed or waits until nobody asks for more.

`both_sides.py REPOSITORY killed` or `both_sides.py REPOSITORY lives`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness import source
from harness.gate.worktree import Repository

source._PACKAGE = Path(sys.argv[1])  # to hash the real one would take most of the time
repository = Repository.find([Path(sys.argv[1]) / "mine.py"])
with repository.worktree("HEAD", "base") as base, repository.here() as now:
    print(base.folder, now.home, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
