"""Runs a user's own script under torch's profiler: `_script TRACE RANKS WAIT ACTIVE script.py ...`, or `... -m module`.

TRACE may have {rank}, which stands for the number of this process among several. RANKS are the numbers of the processes
that are recorded, such as 0,3; all are if it is empty. WAIT and ACTIVE are the steps of `_steps.Window`.

The script runs as it does with `python script.py ...`: as `__main__`, with its folder first on the path, and with its
own arguments. It ends with the exit code that it would have had. The trace is written in any case, after an error and
after Ctrl-C too.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from harness.profile._steps import Window, recording

OWN = "HARNESS_OWN"
"""The environment variable that holds, as JSON, the user's own values of the variables that the harness sets."""
RANK = "{rank}"
"""Stands for the number of a process in the name of its trace."""
_INTERRUPTED = 130  # as a shell reports a process that Ctrl-C ended
_ENDED: list[object] = []
"""What the script's names stood for. It lives until Python ends, as without us: a DDP model whose process group is gone
waits for threads of gloo, which may wait for Python at the script's end."""
_FRAMES = (__file__, runpy.__file__, "<frozen runpy>")


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name, after the path of the trace, and give its exit code."""
    trace, ranks, wait, active, *words = arguments
    _restore(os.environ.pop(OWN, "{}"))
    rank = os.environ.get("RANK", "0")
    if ranks and rank not in ranks.split(","):
        return _run(words)
    trace = trace.replace(RANK, rank)
    code, process = 0, os.getpid()
    try:
        with recording(Path(trace), Window(int(wait), int(active))):
            code = _run(words)
    except Exception as error:  # of the profiler: errors of the script have been told
        print(f"the trace {trace} couldn't be written: {error}", file=sys.stderr)  # noqa: T201
    if os.getpid() != process:
        _leave(code)
    return code


def _leave(code: int) -> NoReturn:
    """End a process that the script forked, as Python does, but for C++: the profiler's end waits for ever there."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _restore(own: str) -> None:
    """Give the script, and the processes that it starts, the user's own environment."""
    for name, value in json.loads(own).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _run(words: Sequence[str]) -> int:
    try:
        if words[0] == "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv = list(words[1:])
            _ENDED.append(runpy.run_module(words[1], run_name="__main__", alter_sys=True))
        else:
            script = Path(words[0]).absolute()  # as Python names it in `__file__`
            sys.path.insert(0, str(script.resolve().parent))
            sys.argv = list(words)
            _ENDED.append(runpy.run_path(str(script), run_name="__main__"))
    except SystemExit as ended:
        return _exit_code(ended.code)
    except BaseException as error:
        frames = _without_ours(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _exit_code(code: object) -> int:
    """The exit code that Python gives for what `sys.exit` was called with."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    """The frames from the first one of the script on."""
    while frames and frames.tb_frame.f_code.co_filename in _FRAMES:
        frames = frames.tb_next
    return frames


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
