"""Records what runs, with torch's profiler. It runs in the process that is watched, which has torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Watch what runs meanwhile, on the CPU and on a GPU where there is one, and write one trace at the end.

    path: of the trace; it is compressed if the name ends with .gz. The trace is written after an error, too.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    profiler = profile(activities=activities)
    profiler.start()
    try:
        yield
    finally:
        try:
            if gpu:
                torch.cuda.synchronize()  # so that no kernel is still to come
        finally:
            profiler.stop()
            profiler.export_chrome_trace(str(path))
