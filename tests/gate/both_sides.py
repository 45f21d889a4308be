"""Has both sides of a gate on a repository, tells their folders, and is killed or waits until nobody asks for more.

`both_sides.py REPOSITORY killed` or `both_sides.py REPOSITORY lives`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.gate.worktree import Repository

repository = Repository.find([Path(sys.argv[1]) / "mine.py"])
with repository.worktree("HEAD", "base") as base, repository.here() as now:
    print(base.folder, now.home, flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
