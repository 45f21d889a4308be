"""The stages of a case: what each does, with what threads or processes, and how fast each is alone."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.collection.steps.pipeline import _facts, _files
from harness.collection.steps.pipeline._images import (
    Copier,
    GpuImages,
    Item,
    ThreadImages,
    decoder,
    order,
    torchvision_missing,
)
from harness.collection.steps.pipeline._shared import AT_ONCE, SharedBatches, pinned
from harness.collection.steps.pipeline._stages import Crew, Stage, named
from harness.collection.steps.pipeline._step import TrainingStep
from harness.collection.steps.pipeline._workers import Decoders, ProcessImages
from harness.collection.steps.training._settings import math_modes, seed_of
from harness.ops import Context

Way = Literal["cpu", "gpu", "decoded"]
"""How images come to the step: decoded by processes on the CPU, by the GPU, or from a list of decoded images."""
READERS = 4
"""Threads that read files, since one that waits for a disk leaves it idle in between."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of processors' time in each period, and the period: how Linux limits containers (cgroup v2)."""


def workers_of(asked: int) -> int:
    """How many processes decode, or threads resize: as asked; for 0, one for each usable processor."""
    if asked:
        return asked
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable, _quota()))


def _quota() -> int:
    """How many processors' time a container may use, at most; sys.maxsize where nothing says so."""
    try:
        time, period = CPU_QUOTA.read_text().split()
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if time == "max" else int(time) // int(period)


def files_of(ctx: Context, number: int) -> list[int]:
    """Which files the images of batch `number` come from."""
    return order(seed_of(ctx), number * ctx.s.B, ctx.s.B, ctx.s.N)


@dataclass(frozen=True)
class Rates:
    """Images a second of each stage alone, and of each part of a stage, by their names."""

    stages: dict[str, float]
    parts: dict[str, float]

    def mean(self, other: Rates) -> Rates:
        """The means of these rates and of the same rates at another time."""
        return Rates(_means(self.stages, other.stages), _means(self.parts, other.parts))


def _means(some: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    return {name: (rate + others[name]) / 2 for name, rate in some.items()}


class Parts:
    """What a case's stages need until the case is over: files, threads or processes, the model.

    overlapping: whether stages work at the same time. The facts of files are reported.
    """

    def __init__(self, ctx: Context, way: Way, *, overlapping: bool) -> None:
        import torch

        self.ctx, self.way = ctx, way
        _one_thread_each(ctx)
        modes = math_modes(tf32=True)
        modes.__enter__()
        ctx.defer(lambda: modes.__exit__(None, None, None))
        self._workers = workers_of(ctx.s.T)
        crew = Crew(self._workers, lambda: torch.set_num_threads(1))
        ctx.defer(crew.close)
        self._readers = Crew(READERS)
        ctx.defer(self._readers.close)
        self._files = _files.made(ctx.s.N, crew)
        self._cold = ctx.s.page_cache == "cold"
        self.images = self._images(crew)
        self._decoded = self._all_decoded(crew) if way == "decoded" else []
        self.step = TrainingStep(ctx, graph=way != "gpu")
        self._at_once = AT_ONCE if overlapping and way == "cpu" else 1
        self.stages = tuple(self._stages())
        self._report()

    def read(self, number: int) -> Item:
        """The files' bytes of batch `number`: a list of arrays of uint8, or where processes decode, their slot."""
        files = [self._files[one] for one in files_of(self.ctx, number)]
        if isinstance(self.images, ProcessImages):
            return self.images.read(number, files, self._readers, cold=self._cold)
        found: list[Any] = [None] * len(files)

        def one(index: int) -> None:
            found[index] = _files.read(files[index], cold=self._cold)

        self._readers.each(len(files), one)
        return Item(number, found)

    def rates(self) -> Rates:
        """Images a second of each stage alone, and of each part of a stage. The use of JPEG engines is reported."""
        stages: dict[str, float] = {}
        parts: dict[str, float] = {}
        given: Iterator[Any] = itertools.count()
        item: Any = 0
        for stage in self.stages:
            with named(stage.name):
                stages[stage.name] = self._alone(stage.work, given, stage.at_once)
                item = stage.work(item)
            given = itertools.repeat(item)
            if stage.name == "read" and not isinstance(self.images, ThreadImages):
                with named("prepare"):
                    parts = self._parts_alone(self.images, item)
        stages["train"] = self._alone(self.step, given)
        return Rates(stages, parts)

    def _parts_alone(self, images: ProcessImages | GpuImages, item: Item) -> dict[str, float]:
        """Images a second of decoding alone, and of cutting and resizing alone. item: the bytes of a batch's files."""
        decoding = self._alone(self._naming(images.decode), itertools.repeat(item), self._at_once)
        if self.way == "gpu" and (use := _facts.jpeg_engine_use()) is not None:
            self.ctx.report(_facts.ENGINE_USE, use)
        resizing = self._alone(images.resize, itertools.repeat(images.decode(item)), self._at_once)
        return {"decode": decoding, "resize": resizing}

    @property
    def shortest(self) -> float:
        """Seconds for which a stage works alone at least."""
        return _facts.SHORTEST[self.ctx.device.type]

    def _alone(self, work: Callable[[Any], Any], given: Iterator[Any], at_once: int = 1) -> float:
        images: int = self.ctx.s.B
        return images * _facts.rate_alone(work, given, self.shortest, self.step.finish, at_once)

    def _images(self, crew: Crew) -> ProcessImages | GpuImages | ThreadImages:
        """What prepares images. Processes are started, and the memory that is shared with them is made and pinned."""
        side, seed, on_gpu = side_of(self.ctx), seed_of(self.ctx), self.ctx.device.type == "cuda"
        if self.way == "gpu":
            return GpuImages(self.ctx.device, side, seed)
        if self.way == "decoded":
            return ThreadImages(crew, side, seed, pinned=on_gpu)
        batches = SharedBatches(self.ctx.s.B, max(file.stat().st_size for file in self._files), side)
        self.ctx.defer(batches.close)
        if on_gpu:
            self.ctx.defer(pinned(batches.memory))
        decoders = Decoders(self._workers, batches)
        self.ctx.defer(decoders.close)
        return ProcessImages(decoders, batches, seed)

    def _stages(self) -> Iterator[Stage]:
        """All stages but the training step, in order."""
        if isinstance(self.images, ThreadImages):
            resize = self.images.resize
            yield Stage("prepare", lambda number: resize(self._from_memory(number)))
        else:
            yield Stage("read", self.read)
            yield Stage("prepare", self._naming(self.images.both), self._at_once)
        if self.way != "gpu":
            yield Stage("copy", Copier(self.ctx.device))

    def _naming(self, work: Callable[[Item], Item]) -> Callable[[Item], Item]:
        """The same work; where it fails because a file of its batch has changed, the error names the file."""

        def named_work(item: Item) -> Item:
            try:
                return work(item)
            except Exception:
                _files.refuse_changed([self._files[one] for one in files_of(self.ctx, item.number)])
                raise

        return named_work

    def _from_memory(self, number: int) -> Item:
        return Item(number, [self._decoded[one] for one in files_of(self.ctx, number)])

    def _all_decoded(self, crew: Crew) -> list[Any]:
        """Every image (3, HEIGHT, WIDTH), decoded by the crew."""
        decode = decoder()
        found: list[Any] = [None] * len(self._files)

        def one(index: int) -> None:
            try:
                found[index] = decode(_files.read(self._files[index], cold=False))
            except Exception:
                _files.refuse_changed([self._files[index]])
                raise

        crew.each(len(found), one)
        return found

    def _report(self) -> None:
        """The facts of files, and of what decodes them. Files that are to be cold leave the page cache first."""
        report = self.ctx.report
        if self.way != "gpu":
            report(_facts.PROCESSES if self.way == "cpu" else _facts.THREADS, self._workers)
        decoder = "nvJPEG" if self.way == "gpu" else "Pillow" if torchvision_missing() else "torchvision on the CPU"
        report(_facts.DECODER, _facts.DECODERS.index(decoder))
        if self.way == "decoded":
            return
        for file in self._files:
            _files.read(file, cold=self._cold)
        report(_facts.FILE, sum(file.stat().st_size for file in self._files) / len(self._files))
        if (share := _mean_in_page_cache(self._files[:16])) is not None:
            report(_facts.CACHED, share)


def side_of(ctx: Context) -> int:
    """Pixels of a side of the model's images."""
    from harness.collection.models import MODELS

    return int(MODELS[ctx.s.model].image)  # type: ignore[union-attr] # the op's models are ResNets


def _one_thread_each(ctx: Context) -> None:
    """Let torch's operators have one thread: otherwise each thread of a crew would start a thread for each core."""
    import torch

    before = torch.get_num_threads()
    ctx.defer(lambda: torch.set_num_threads(before))
    torch.set_num_threads(1)


def _mean_in_page_cache(files: Sequence[Path]) -> float | None:
    found = [share for file in files if (share := _files.in_page_cache(file)) is not None]
    return sum(found) / len(found) if found else None
