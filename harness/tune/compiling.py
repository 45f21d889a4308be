"""The kernels of plans are compiled in threads, each once, before the processes that measure ask for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from harness import cuda, kept
from harness.cuda import facts as kept_facts
from harness.cuda.compile import compile_verbose, cubin
from harness.errors import CompileError
from harness.model import KernelFacts
from harness.ops import Built

_NICE = 10
_EMPTY = Path(cuda.__file__).with_name("mark.cu")
_Result = TypeVar("_Result")
_Key = tuple[Path, str, tuple[tuple[str, str | int], ...]]


class Compiling:
    """Compiles for an architecture, such as 'sm_90'. A context manager: what hasn't begun when it ends is left."""

    def __init__(self, arch: str) -> None:
        self._arch = arch
        self._loaded = False
        self._pool = ThreadPoolExecutor(os.cpu_count(), initializer=_give_way)
        self._waits = ThreadPoolExecutor(1)
        self._facts: dict[_Key, Future[KernelFacts]] = {}
        self._code: dict[_Key, Future[None]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._waits.shutdown(cancel_futures=True)

    def beside(self, work: Callable[[], _Result]) -> Future[_Result]:
        """Begin work that waits for what is compiled, in a thread of its own."""
        return self._waits.submit(work)

    def begin(self, file: Path, built: Built) -> None:
        """Compile a kernel of a file for its facts, unless that has begun.

        Raises CompileError where an empty kernel can't be compiled, and MachineError where CUDA's headers are missing.
        """
        if not self._loaded:
            # Compilers load libraries with the first program. In several threads at once that can fail, and would leave
            # plans out of a search.
            compile_verbose(_EMPTY, {}, self._arch)
            self._loaded = True
        key = (file, built.entry, _sorted(built.macros))
        if key not in self._facts:
            self._facts[key] = self._pool.submit(_facts, file, built.entry, dict(key[2]), self._arch)

    def facts(self, file: Path, built: Built) -> KernelFacts:
        """The facts of a kernel that was begun. Waits for it. Raises CompileError if it doesn't compile."""
        return self._facts[file, built.entry, _sorted(built.macros)].result()

    def keep(self, file: Path, built: Built) -> None:
        """Compile a file's code into the cache, where `cuda.load` finds it: it has the macros in this order, too."""
        key = (file, "", _sorted(built.macros))
        if key not in self._code:
            self._code[key] = self._pool.submit(_keep, file, dict(key[2]), self._arch)

    def wait(self) -> None:
        """Wait for all code that is to be kept."""
        for code in list(self._code.values()):
            code.result()


def _facts(file: Path, entry: str, macros: Mapping[str, str | int], arch: str) -> KernelFacts:
    """What `cuda.kernel_facts` says. A log without kernels, which a former search may have kept, counts as none."""
    try:
        return cuda.kernel_facts(file, entry, macros, arch)
    except CompileError:
        name = f"facts/{kept_facts._key(file, macros, arch)}.json" if file.is_file() else ""
        if not name or kept.read(name) != b"[]":
            raise
        kept.write(name, b"")
        return cuda.kernel_facts(file, entry, macros, arch)


def _keep(file: Path, macros: Mapping[str, str | int], arch: str) -> None:
    cubin(file, macros, arch)


def _sorted(macros: Mapping[str, Any]) -> tuple[tuple[str, str | int], ...]:
    return tuple(sorted(macros.items()))


def _give_way() -> None:
    """Let a process that measures meanwhile go first. On Linux a thread has a priority of its own."""
    with suppress(OSError):  # some containers forbid that
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
