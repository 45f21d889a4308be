"""A training step that a pipeline feeds, as a launch; and what it reports when the case is over."""

from __future__ import annotations

import gc
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.collection.steps.pipeline import _facts, _files
from harness.collection.steps.pipeline._expected import expected, gain, slowest
from harness.collection.steps.pipeline._images import by_pillow, crops, resized, resized_together
from harness.collection.steps.pipeline._parts import Parts, Rates, Way, files_of, side_of
from harness.collection.steps.pipeline._stages import Pipeline, Stage, halved
from harness.collection.steps.pipeline._step import LOGS, statistics_of
from harness.collection.steps.training._settings import seed_of
from harness.collection.steps.training._timed_step import State
from harness.ops import Context, Launch, Tensors

if TYPE_CHECKING:
    import torch

CHECKED = 2
"""Calls before a case is timed: the harness makes one to prepare a case, and one to check it."""
WHOLE = 8
"""Batches at least by which the whole is measured with and without the slowest stage's work halved: an even number."""
COMPARED = 8
"""Images of a batch that the check decodes itself."""
ALLOWED = 2.0
"""Levels of 255 by which an image may be off in the mean. Decoders round differently, by less than one level; with
another crop, or another image, it is off by tens."""


def prepare(ctx: Context, way: Way, *, overlapping: bool = True, log: str = "") -> Launch:
    """Make files, threads, processes and model, and start the pipeline. log: how the loss is logged, a name in LOGS."""
    gc.collect()  # an earlier case is in a cycle, and would keep its model and its decoded images
    parts = Parts(ctx, way, overlapping=overlapping)
    logged = None
    if log:
        folder = tempfile.TemporaryDirectory(prefix="harness-log-")
        ctx.defer(folder.cleanup)
        logged = LOGS[log](Path(folder.name) / "steps.jsonl")
        ctx.defer(logged.close)
    before = parts.rates()
    fed = FedStep(parts, overlapping, logged)
    ctx.defer(fed.pipeline.close)
    ctx.afterwards(lambda: fed.report(before))
    return fed


class FedStep:
    """The launch of a case: takes the next batch from the pipeline, and trains with it.

    overlapping: whether stages work at the same time; otherwise one batch is on its way at a time, until its step has
    ended. log: what the loss and the weights' norms are given to after each step.
    """

    def __init__(self, parts: Parts, overlapping: bool, log: Callable[[torch.Tensor], object] | None = None) -> None:
        """Start the pipeline's threads."""
        self._parts, self._overlapping, self._log = parts, overlapping, log
        self._weights = parts.step.weights
        self._calls = 0
        self.pipeline = self._started(parts.stages)

    def __call__(self, t: Tensors) -> None:
        """A step. t is given the batch's number, its images as they came, its loss, and what trains."""
        self._calls += 1
        if self._calls == CHECKED + 1:
            # What lay ready when timing begins would make the first steps faster than the pipeline is.
            for _ in range(self.pipeline.ready):
                self._one(t)
            self.pipeline.reset()
        self._one(t)

    def report(self, before: Rates) -> None:
        """Close the pipeline, and report the rates of all stages alone and what limits the whole.

        before: the rates before the timed steps. What is reported is the mean of these rates and of the rates measured
        now, since processors that other programs use too may become faster or slower meanwhile.
        """
        self.pipeline.close()
        report, stages = self._parts.ctx.report, self._parts.stages
        for stage, following in itertools.pairwise([*(stage.name for stage in stages), "train"]):
            for state, share in zip(("empty", "full"), self.pipeline.queues[stage].shares, strict=True):
                report(f"{following}_{state}", share)
        alone = before.mean(self._parts.rates())
        rates = alone.stages
        for name, rate in (rates | alone.parts).items():
            report(_facts.rate_of(name), rate)
        limit = slowest(rates)
        report(_facts.EXPECTED, expected(rates, overlapping=self._overlapping))
        report(_facts.LIMITING, _facts.STAGES.index(limit))
        report(_facts.GAIN, gain(rates, limit, overlapping=self._overlapping))
        report(_facts.DOUBLED, self._seconds("") / self._seconds(limit))
        if self._parts.way == "gpu" and (engines := _facts.jpeg_engines()) is not None:
            report(_facts.ENGINES, engines)

    def _one(self, t: Tensors) -> None:
        t.number, t.images = item = self.pipeline.take()
        t.loss, t.step = self._parts.step(item), self._parts.step
        if self._log is not None:
            self._log(statistics_of(t.loss, self._weights))
        if not self._overlapping:
            self._parts.step.finish()
        self.pipeline.done()

    def _started(self, stages: Sequence[Stage]) -> Pipeline:
        return Pipeline(stages) if self._overlapping else Pipeline(stages, 1, on_the_way=1)

    def _seconds(self, name: str) -> float:
        """Seconds of a step of the whole, without a log, with half of the work of the stage of this name, if any."""
        step = halved(self._parts.step) if name == "train" else self._parts.step
        stages = [replace(s, work=halved(s.work)) if s.name == name else s for s in self._parts.stages]
        pipeline = self._started(stages)

        def steps(count: int) -> None:
            for _ in range(count):
                step(pipeline.take())
                if not self._overlapping:
                    self._parts.step.finish()
                pipeline.done()

        try:
            # Nothing lies ready in a new pipeline: first all queues come to be as full as they stay.
            steps(WHOLE)
            start, count = time.perf_counter(), 0
            while count < WHOLE or time.perf_counter() - start < self._parts.shortest:
                steps(2)
                count += 2
            # Nobody waits for the device before the clock is read, at either end. The same number of steps is on its
            # way at the start and at the end, so that the steps of the start aren't counted too.
            return (time.perf_counter() - start) / count
        finally:
            pipeline.close()
            self._parts.step.finish()


# ---- The check.


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """A complaint about a loss that is no number, and about the first image that isn't what its file has."""
    if not math.isfinite(loss := t.loss.item()):
        yield f"loss: it is {loss}"
    yield from _wrong_images(ctx, t)


def recheck(ctx: Context, t: Tensors, call: Callable[[], object]) -> Iterator[str]:
    """Complaints about timed steps: each must have the next batch, with its own images, and train with these.

    Under load a stage may overwrite what another one reads, so the last step's images are looked at, too.
    """
    import torch

    yield from _wrong_images(ctx, t)
    number, state = t.number, State(t.step.trainer)
    call()
    t.step.finish()
    if t.number != number + 1:
        yield f"batches: a timed step had batch {t.number} after batch {number}; each must have the next one"
    yield from check(ctx, t)
    trainer = t.step.trainer
    if not torch.equal(t.step.scaled(t.images), trainer.batch.images):
        yield "images: a timed step trained with others than came"
    yield from state.complaints(trainer.batch, float(t.loss))


def _wrong_images(ctx: Context, t: Tensors) -> Iterator[str]:
    """A complaint about the first image of the batch that isn't what its file has.

    Some images of the batch are decoded by Pillow, and cut and resized as the variant does it, on the CPU.
    """
    images = t.images.float().cpu()
    by_cpu = t.images.shape[-1] == 3
    for place in range(0, ctx.s.B, max(1, ctx.s.B // COMPARED)):
        want = _wanted(ctx, t.number, place, by_cpu)
        off = float((images[place] - want).abs().mean())
        if not off <= ALLOWED:
            yield (
                f"images: number {place} of batch {t.number} is off by {off:.1f} levels of 255 in the mean, allowed "
                f"are {ALLOWED:g}"
            )
            return


def _wanted(ctx: Context, number: int, place: int, by_cpu: bool) -> torch.Tensor:
    """An image of a batch before it is scaled: (side, side, 3) by the CPU's resizing, else (3, side, side)."""
    import numpy as np

    box = crops(seed_of(ctx), number, ctx.s.B)[place]
    file = _files.place(files_of(ctx, number)[place])
    image = by_pillow(np.frombuffer(file.read_bytes(), np.uint8))
    if by_cpu:
        return resized(image, box, side_of(ctx)).float()
    return resized_together(image[None], box[None], side_of(ctx))[0]
