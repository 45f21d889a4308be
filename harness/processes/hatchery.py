"""The script of a process that has torch loaded, and from which others are forked: `python -P hatchery.py SOCKET ROOT`.

What it forks goes on as if Python had been started with the command, the environment and the folder that a message
names. ROOT is the folder with the package that all of them import, which is loaded, too; empty if they may import
several revisions of it. A third argument, COMPILER, has torch's compiler loaded as well.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MOST_BYTES = 1 << 18
"""The longest message, which is the longest command with its environment, too."""
COMPILER = "compiler"
_CUSTOM = frozenset({"sitecustomize", "usercustomize"})  # modules that Python imports when it starts


def main() -> None:
    """Fork as often as a message asks for it, until the socket is closed."""
    path = list(sys.path)
    parent = socket.socket(fileno=int(sys.argv[1]))
    # Nearly all that the import makes stays, and a search for garbage would copy what the forked processes share.
    gc.disable()
    import torch

    if COMPILER in sys.argv[3:]:
        # As `Worker` does: if a module can't be imported, the first compiled case says so.
        with suppress(Exception):
            importlib.import_module("torch._inductor.compile_fx")
    # What is forked doesn't take apart torch's libraries of operators, either: it would copy the memory for that.
    for end in getattr(weakref.finalize, "_registry", ()):  # not a documented name
        end.atexit = False
    if root := sys.argv[2]:
        _load(root)
    gc.freeze()
    gc.enable()
    # The package is imported by its folder, wherever another one of its name lies.
    loaded = frozenset(name.partition(".")[0] for name in sys.modules) - {"harness"} | _CUSTOM
    parent.send(json.dumps({"path": path, "loaded": sorted(loaded)}).encode())
    while True:
        message, files, _, _ = socket.recv_fds(parent, MOST_BYTES, 3)
        if not message:
            os._exit(0)  # as `_run` does
        asked = json.loads(message)
        number = 0
        if not torch.cuda.is_initialized():
            number = _fork()
            if number < 0:
                parent.close()
                _become(asked, files, path)
                _run(asked["arguments"])
        for file in files:
            os.close(file)
        parent.send(str(number).encode())


def _fork() -> int:
    """The number of a forked process whose parent isn't this process but the next one above; in that process, -1."""
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        middle = os.getpid()
        second = os.fork()
        if second:
            os.write(write, str(second).encode())
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(1e-3)
        for file in (read, write):
            os.close(file)
        return -1
    os.close(write)
    os.waitpid(first, 0)
    number = int(os.read(read, 32) or 0)
    os.close(read)
    return number


def _become(asked: dict[str, Any], files: list[int], path: list[str]) -> None:
    """Go on as the process that was asked for. files: its standard input, its output, and the pipe of its replies."""
    os.setsid()
    stdin, log, replies = files
    for file, number in ((stdin, 0), (log, 1), (log, 2)):
        os.dup2(file, number)
    kept = os.dup(replies)
    for file in files:
        os.close(file)
    os.dup2(kept, asked["replies"])
    if kept != asked["replies"]:
        os.close(kept)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[:] = [*filter(None, asked["environment"].get("PYTHONPATH", "").split(os.pathsep)), *path]
    _forget()
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(arguments: list[str]) -> NoReturn:
    """Run a script of Python with its arguments, and end. What the script has registered for its end is called.

    Python would also take apart all modules, which takes long with torch.
    """
    sys.argv[:] = arguments
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    threading._shutdown()  # type: ignore[attr-defined] # as multiprocessing ends what it has forked
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # the script may have closed it
            stream.flush()
    os._exit(0)


def _load(root: str) -> None:
    """Load what a measuring process loads of the package and of its collection, and nothing of a plug-in."""
    start = runpy.run_path(str(Path(__file__).with_name("start.py")))
    start["import_package"](os.path.join(root, "harness"))  # noqa: PTH118 - as the forked process does it
    importlib.import_module("harness.processes.child")
    del sys.modules["harness.processes.child"]  # what is forked runs it anew
    discover = importlib.import_module("harness.discover")
    with suppress(ModuleNotFoundError):  # the collection may have been left out
        for entry in discover.entry_points("harness.ops"):
            if not discover.is_foreign(entry):
                discover.discover(entry.module, ["OP"], nested=True)


def _forget() -> None:
    """Clear what functions of the package have cached: it may depend on the variables, the path and the folder."""
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "harness"]:
        spaces = [vars(module), *(vars(kind) for kind in vars(module).values() if isinstance(kind, type))]
        for function in (function for space in spaces for function in space.values()):
            if isinstance(function, functools._lru_cache_wrapper):
                function.cache_clear()


if __name__ == "__main__":
    main()
