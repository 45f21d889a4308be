"""Records what runs, with torch's profiler. It runs in the process that is watched, which has torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def recording(path: Path) -> Iterator[Callable[[str], None]]:
    """Watch what runs meanwhile, on the CPU and on an accelerator that torch knows, and write one trace at the end.

    path: of the trace; it is compressed if the name ends with .gz. The trace is written after an error, too. Gives a
    function that writes an annotation of this name and of no length into the trace.
    """
    import torch
    from torch.profiler import profile

    profiler = profile()  # of everything that this torch can watch
    profiler.start()
    try:
        yield _mark
    finally:
        try:
            if torch.accelerator.is_available():
                torch.accelerator.synchronize()  # so that no kernel is still to come
        finally:
            profiler.stop()
            profiler.export_chrome_trace(str(path))


def _mark(name: str) -> None:
    from torch.profiler import record_function

    with record_function(name):
        pass
