"""One case -> one measurement: set up, check, rotate, warm up, sample."""

from __future__ import annotations

import math
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from harness import check, stats, units
from harness.devices import FEWEST_SETS, Batch, Device, covering_sets
from harness.model import Case, Conditions, Job, Measurement, Status, Timing, Warning
from harness.ops import Context, Launch, Op, Variant
from harness.ranks import Group

_FEWEST_SAMPLES = 20
_FEWEST_FOR_INTERVAL = 6  # below, no pair of samples covers the median with 95%
_SAMPLES_A_ROUND = 10  # queued together; fewer where a single one takes long
_BATCH_SECONDS = 5e-3
_WARM_SECONDS = 0.05
_CALL_ROUNDS = 5
_SHORT = 100e-6  # seconds of a call below which the cost of timing it alone shows
_MEMORY_SHARE = 0.8  # of the free memory that a case may plan to use; the rest is for what the variants allocate
_MOST_SETS = 1024  # beyond, a rotation of tiny sets takes longer than the time there is
_WIDEST = 8  # bytes an element of the reference may take


def measure(job: Job, op: Op, device: Device, group: Group | None = None, process: int = 0) -> Measurement:
    """Check and time one case on `device`.

    What a variant can't do, memory that doesn't suffice and a wrong result become the measurement's status. Any other
    error is the caller's: after it the device may be unusable.
    """
    return _Measuring(job, op, device, group or Group(), process).run()


def bytes_needed(case: Case, op: Op) -> int:
    """Bytes without which a case can't be measured.

    The op's inputs to compare with, and beside them two sets of buffers, or one and the reference's outputs.
    """
    symbols = case.symbols
    canonical = sum(tensor.bytes(symbols, case.dtype) for tensor in op.inputs)
    elements = sum(math.prod(shape) for tensor in op.outputs for shape in tensor.shapes(symbols))
    reference = elements * _WIDEST if op.reference is not None else 0
    one_set = _set_bytes(case, op)
    return canonical + one_set + max(one_set, reference)


def prepared_calls(job: Job, op: Op, device: Device) -> list[Callable[[], object]]:
    """The calls that `measure` would time, one a set of buffers: for another timer or a profiler."""
    return _Measuring(job, op, device, Group(), 0).calls()


@dataclass(slots=True)
class _Measuring:
    """The state of one case on its way through the phases."""

    job: Job
    op: Op
    device: Device
    group: Group
    process: int
    phases: list[tuple[str, float]] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)

    @property
    def case(self) -> Case:
        return self.job.case

    @property
    def variant(self) -> Variant:
        return self.op.variants[self.case.variant]

    def run(self) -> Measurement:
        if self.variant.unsupported and (reason := self.variant.unsupported(self.case)):
            return self._without_time("unsupported", reason)
        if too_much := self._too_much_memory():
            return self._without_time("out_of_memory", too_much)
        try:
            return self._checked_and_timed()
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            return self._without_time("out_of_memory", str(error).splitlines()[0])
        finally:
            self.device.release()

    def calls(self) -> list[Callable[[], object]]:
        """The variant's launch bound to each set of the rotation, unchecked."""
        ctx = self._context()
        canonical = check.make_inputs(ctx)
        launch = self.variant.prepare(ctx)
        return [_bind(launch, tensors) for tensors in self._rotation(ctx, canonical, self._set(ctx, canonical))]

    def _checked_and_timed(self) -> Measurement:
        ctx = self._context()
        with self._phase("setup"):
            canonical = check.make_inputs(ctx)
        with self._phase("compile"):
            launch = self.variant.prepare(ctx)
            first = self._set(ctx, canonical)
            self._call_once(launch, first)
        with self._phase("check"):
            found = self._check(ctx, launch, canonical)
        if found:
            return self._without_time("wrong", found)
        with self._phase("setup"):
            sets = self._rotation(ctx, canonical, first)
        calls = [_bind(launch, tensors) for tensors in sets]
        with self._phase("warm"):
            batch = self._batch(calls)
        before = self.device.conditions()
        with self._phase("sample"):
            samples, stopped = self._sample(batch)
        after = self.device.conditions()
        with self._phase("calls"):
            call_samples = self._call_samples(calls)
        self._judge(samples, stopped, batch, before, after)
        return self._measurement(
            "ok",
            samples=tuple(samples),
            call_samples=tuple(call_samples),
            timer=batch.timer,
            stopped=stopped,
            batch=batch.calls,
            sets=len(sets),
            before=before,
            after=after,
            kernels=tuple(dict.fromkeys(ctx.kernels)),
        )

    def _context(self) -> Context:
        import torch

        place = self.device.torch_device
        generator = torch.Generator(place).manual_seed(self._seed)
        return Context(self.case, getattr(torch, self.case.dtype), place, generator, self.op, self.group)

    @property
    def _seed(self) -> int:
        """The same for all variants of a group, so that they get the same data; different between groups."""
        return zlib.crc32(self.case.group.encode()) + self.group.rank

    def _set(self, ctx: Context, canonical: SimpleNamespace) -> SimpleNamespace:
        """Inputs and outputs as the variant declares them, in memory of their own."""
        inputs = check.clone(canonical)
        if self.variant.encode is not None:
            inputs = check.merged(inputs, SimpleNamespace(**self.variant.encode(ctx, inputs)))
        return check.merged(inputs, check.make_outputs(ctx, self.variant))

    def _call_once(self, launch: Launch, tensors: SimpleNamespace) -> Any:
        returned = launch(tensors)
        self.device.synchronize()
        return returned

    def _check(self, ctx: Context, launch: Launch, canonical: SimpleNamespace) -> str | None:
        tensors = self._set(ctx, canonical)
        check.leave_poison(ctx, self.variant)
        returned = self._call_once(launch, tensors)
        return check.complaint(ctx, self.variant, canonical, check.collect(self.op, self.variant, tensors, returned))

    def _rotation(self, ctx: Context, canonical: SimpleNamespace, first: SimpleNamespace) -> list[SimpleNamespace]:
        """Sets of buffers that together outgrow the cache; a single one if the case asks for a hot cache."""
        size = _set_bytes(self.case, self.op)
        if self.case.cache == "hot" or not size:
            return [first]
        needed = max(2, covering_sets(self.device.cache_bytes, size))
        fitting = min(_MOST_SETS, 1 + int(_MEMORY_SHARE * self.device.free_bytes() / size))
        if fitting < needed:
            self._warn(
                "few-sets",
                f"only {fitting} of the {needed} sets of buffers that would outgrow the cache are used",
                "free memory on the device" if fitting < _MOST_SETS else "take a larger shape, or say 'cache: hot'",
            )
        count = int(self.group.agree(min(max(needed, FEWEST_SETS), fitting)))
        return [first, *(self._set(ctx, canonical) for _ in range(count - 1))]

    def _batch(self, calls: list[Callable[[], object]]) -> Batch:
        batch = self.device.batch(
            calls,
            capture=self.variant.capture and self.group.size == 1,
            keep=len(calls),
            seconds=_BATCH_SECONDS,
            agree=self.group.agree,
        )
        deadline = time.monotonic() + _WARM_SECONDS
        while self.group.agree(time.monotonic() < deadline):
            batch.run(1)
        return batch

    def _sample(self, batch: Batch) -> tuple[list[float], str]:
        """Samples until the median is known to the precision asked for, or the time is up; says which."""
        timing: Timing = self.job.timing
        samples: list[float] = []
        a_round = max(1, min(_SAMPLES_A_ROUND, int(self.group.agree(timing.max_time / batch.seconds / 4))))
        deadline = time.monotonic() + timing.max_time
        while True:
            self.group.barrier()
            samples += self.group.slowest(batch.run(a_round))
            if len(samples) >= _FEWEST_SAMPLES and stats.relative_width(samples) <= timing.precision:
                return samples, "interval"
            if len(samples) >= _FEWEST_FOR_INTERVAL and self.group.agree(time.monotonic() >= deadline):
                return samples, "time"

    def _call_samples(self, calls: list[Callable[[], object]]) -> list[float]:
        """Seconds per call that a host loop sees, from the first call's issue to the last one's end."""
        samples: list[float] = []
        rounds = 1
        deadline = time.monotonic() + self.job.timing.max_time
        while not samples or (len(samples) < _CALL_ROUNDS and self.group.agree(time.monotonic() < deadline)):
            start = time.perf_counter()
            for _ in range(rounds):
                for call in calls:
                    call()
            self.device.synchronize()
            elapsed = time.perf_counter() - start
            if self.group.agree(elapsed >= _BATCH_SECONDS):
                samples.append(elapsed / (rounds * len(calls)))
            else:
                rounds *= 2
        return samples

    def _judge(self, samples: list[float], stopped: str, batch: Batch, before: Conditions, after: Conditions) -> None:
        """Warn of what a reader of the number must know."""
        width = stats.relative_width(samples)
        if stopped == "time":
            self._warn(
                "noisy",
                f"the median's 95% interval is still {units.percent(width)} wide after {self.job.timing.max_time:g} s"
                f" (asked for {units.percent(self.job.timing.precision)})",
                "free the machine of other work, or raise --max-time",
            )
        if reasons := sorted({*before.reasons, *after.reasons}):
            self._warn(
                "throttled",
                f"the device lowered its clocks: {', '.join(reasons)}",
                "let it cool, check its power limit and what else runs on it, and measure again",
            )
        if batch.timer == "launch" and statistics.median(samples) < _SHORT:
            self._warn(
                "launch-timed",
                "each call was timed alone, between two events and with the L2 flushed, not in a CUDA graph",
                "take about 3 us off for the launch, or compare only with times taken alike",
            )

    def _too_much_memory(self) -> str | None:
        """Why the case can't fit into the memory that is free now, from its declared sizes."""
        needed, free = bytes_needed(self.case, self.op), self.device.free_bytes()
        if needed <= free:
            return None
        return f"needs {units.size(needed)}, {units.size(free)} are free on the device"

    def _warn(self, code: str, message: str, advice: str) -> None:
        self.warnings.append(Warning(code, message, advice))

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Record the wall-clock seconds of a phase, and show it to the profilers as an NVTX range."""
        import nvtx

        start = time.perf_counter()
        with nvtx.annotate(self.case.id if name == "sample" else f"{name}: {self.case.id}", domain="harness"):
            try:
                yield
            finally:
                self.phases.append((name, time.perf_counter() - start))

    def _without_time(self, status: Status, error: str) -> Measurement:
        return self._measurement(status, error=error)

    def _measurement(self, status: Status, **fields: Any) -> Measurement:
        symbols, dtype = self.case.symbols, self.case.dtype
        return Measurement(
            self.case,
            status,
            work=self.op.essential(symbols, dtype),
            traffic=self.op.traffic(self.variant, symbols, dtype),
            warnings=tuple(self.warnings),
            process=self.process,
            seed=self._seed,
            phases=tuple(self.phases),
            **fields,
        )


def _bind(launch: Launch, tensors: SimpleNamespace) -> Callable[[], object]:
    return lambda: launch(tensors)


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU allocator has no class of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def _set_bytes(case: Case, op: Op) -> int:
    """Bytes of one set of buffers."""
    inputs, outputs = op.tensors(op.variants[case.variant])
    return sum(tensor.bytes(case.symbols, case.dtype) for tensor in (*inputs, *outputs))
