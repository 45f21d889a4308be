"""The fork server of multiprocessing, forked by server.py: torch, which it would import for seconds, is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

Spawn = Callable[[bytes, Sequence[str], Sequence[int]], int]
"""What multiprocessing.util.spawnv_passfds is."""


def forking(spawn: Spawn) -> Spawn:
    """The function that starts processes, but for the fork server, which becomes this script in the place of `-c`."""

    def spawned(path: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
        code = arguments[-1]
        if "multiprocessing.forkserver" in code:
            path, arguments = os.fsencode(sys.executable), [sys.executable, "-P", __file__, code]
        return spawn(path, arguments, files)

    return spawned


if __name__ == "__main__":
    exec(sys.argv[1])
