"""Figures that a pipeline reports of itself: its stages' rates, its queues, what limits it, and who decodes."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import metrics, units
from harness.collection.steps.training._figures import PEAK_MEMORY
from harness.metrics import METRICS, Metric, Subject
from harness.units import Unit

STAGES = ("read", "prepare", "copy", "train")
"""All stages, in the order of a batch's way."""
PARTS = ("decode", "resize")
"""The two parts of the stage 'prepare'."""
DECODERS = ("Pillow", "torchvision on the CPU", "nvJPEG")
EXPECTED = "expected_rate"
DECODE_RATE = "decode_rate"
"""The fact that a pipeline has which decodes images."""
LIMITING, DOUBLED, GAIN = "limiting", "doubled", "doubled_gain"
DECODER, ENGINES, ENGINE_USE, CACHED, FILE = "decoder", "jpeg_engines", "jpeg_engine_use", "in_page_cache", "file_bytes"
THREADS, PROCESSES = "decoding_threads", "decoding_processes"
SHORTEST = {"cuda": 1.0, "cpu": 0.02}
"""Least seconds of a stage's work alone, by the kind of device. The processors of a host that other programs use too
change their speed within a second. Toys on a CPU need less."""
FEWEST = 3
"""Batches of a stage alone at least, after one that isn't timed."""


def rate_of(stage: str) -> str:
    """The name of the fact that tells the rate of a stage, or of a part of one."""
    return f"{stage}_rate"


def _named(names: tuple[str, ...]) -> Unit:
    """A unit whose values are places in a list of names."""

    def write(value: float) -> str:
        return names[round(value)]

    return Unit(write, lambda _values, _noun: ("", write), lambda _values, _noun: ("", 1.0))


def _listed(names: tuple[str, ...]) -> str:
    """The names with their numbers, for readers of files that have numbers only."""
    return ", ".join(f"{place} {name}" for place, name in enumerate(names))


def _of_expected(s: Subject) -> float | None:
    items = METRICS["items"].value(s)
    return items / s.facts[EXPECTED] if EXPECTED in s.facts and items else None


def _add() -> None:
    """Add the metrics to the list of all, in the order of tables."""
    metrics.add(
        Metric(
            "of_expected",
            "share of the expected rate",
            units.SHARE,
            _of_expected,
            "items a second of a pipeline, over the items a second expected by the rates of its stages alone",
            "higher",
            head="of expected",
            keep=6,
        ),
        after="memory",
    )
    metrics.fact(
        DECODE_RATE,
        "decode alone",
        units.ITEMS,
        "images a second of the part of a stage alone that decodes images; it is a part of 'prepare'",
        "higher",
        after=PEAK_MEMORY,
    )
    does = {
        "read": "reads files",
        "resize": "cuts and resizes images; it is a part of 'prepare'",
        "prepare": "decodes, cuts and resizes images, as far as the variant does that",
        "copy": "copies batches to the device",
        "train": "scales images and trains",
    }
    for stage, what in does.items():
        hint = f"images a second of the stage alone that {what}: with an endless source and nobody behind it, in the "
        hint += "mean of before and after the timed steps"
        hint = hint.replace("the stage", "the part of a stage") if stage in PARTS else hint
        metrics.fact(rate_of(stage), f"{stage} alone", units.ITEMS, hint)
    for stage in STAGES[1:]:
        for state in ("empty", "full"):
            hint = f"share of the time in which the queue ahead of '{stage}' was {state}"
            metrics.fact(f"{stage}_{state}", f"{stage}'s queue {state}", units.SHARE, hint)
    metrics.fact(
        EXPECTED,
        "expected",
        units.ITEMS,
        "images a second by the rates of the stages alone: the least of them where stages overlap; where one batch is "
        "on its way at a time, one over the sum of their times an image",
    )
    metrics.fact(LIMITING, "limits", _named(STAGES), f"the slowest stage alone ({_listed(STAGES)})")
    metrics.fact(
        DOUBLED,
        "limit doubled",
        units.RATIO,
        "images a second when the slowest stage does only half of its work (it gives each result twice, and takes the "
        "same number of items), over images a second with all of its work",
    )
    metrics.fact(GAIN, "expected of it", units.RATIO, "the same, by the rates of the stages alone")
    metrics.fact(DECODER, "decoder", _named(DECODERS), f"what decodes images ({_listed(DECODERS)})")
    metrics.fact(ENGINES, "JPEG engines", units.COUNT, "the GPU's engines for JPEG, as nvJPEG tells; 0 if it has none")
    hint = "share of the time in which the GPU's engines for JPEG worked, as the driver told after decoding alone"
    metrics.fact(ENGINE_USE, "engines' use", units.SHARE, hint)
    hint = "share of a file's pages that were in the page cache just before the pipeline started"
    metrics.fact(CACHED, "in page cache", units.SHARE, hint)
    metrics.fact(THREADS, "threads", units.COUNT, "threads that resize decoded images on the CPU")
    metrics.fact(PROCESSES, "processes", units.COUNT, "processes that decode and resize on the CPU")
    metrics.fact(FILE, "file", units.BYTES, "mean size of the JPEG files")


_add()


def rate_alone(
    work: Callable[[Any], Any], inputs: Iterable[Any], shortest: float, finish: Callable[[], object], at_once: int = 1
) -> float:
    """Items a second of a stage's work alone: `inputs` never end, and nobody waits for the results.

    finish: waits until all work has been done. shortest: seconds for which it works at least. at_once: how many items
    it works on at a time.
    """
    source = iter(inputs)
    if at_once == 1:  # in this thread, since a training step issues work to its current stream
        return _rate(lambda: work(next(source)), shortest, finish)
    with ThreadPoolExecutor(at_once) as threads:
        begun = deque(threads.submit(work, next(source)) for _ in range(at_once))

        def one() -> None:
            begun.popleft().result()
            begun.append(threads.submit(work, next(source)))

        return _rate(one, shortest, finish)


def _rate(one: Callable[[], object], shortest: float, finish: Callable[[], object]) -> float:
    """Calls a second."""
    one()
    finish()
    start, count = time.perf_counter(), 0
    while count < FEWEST or time.perf_counter() - start < shortest:
        one()
        count += 1
    finish()
    return count / (time.perf_counter() - start)


def jpeg_engines() -> int | None:
    """How many engines for JPEG nvJPEG finds in the GPU; None where nvJPEG isn't loaded.

    The library is the one that torchvision has loaded, wherever it lies.
    """
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    library = next((line.split(maxsplit=5)[5] for line in lines if "libnvjpeg" in line), None)
    if library is None:
        return None
    nvjpeg = ctypes.CDLL(library)
    handle, engines, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    hardware = 3  # NVJPEG_BACKEND_HARDWARE
    if nvjpeg.nvjpegCreateEx(hardware, None, None, ctypes.c_uint(0), ctypes.byref(handle)):
        return 0
    try:
        failed = nvjpeg.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
        return None if failed else engines.value
    finally:
        nvjpeg.nvjpegDestroy(handle)


def jpeg_engine_use() -> float | None:
    """The share of the last moments in which the GPU's engines for JPEG worked; None where NVML doesn't tell."""
    import pynvml

    from harness import cuda

    uuid = cuda.device().uuid
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        percent, _ = pynvml.nvmlDeviceGetJpgUtilization(handle)
        return float(percent) / 100
    except (pynvml.NVMLError, AttributeError):  # a package that is older than the function
        return None
