"""One case made ready: prepare it, check it, rotate its buffers, call it. Timing, profilers and audits all use it.

    with Session(case, op, device) as session:
        session.prepare()
        if wrong := session.check() or session.extremes():
            ...
        for call in session.rotation().calls:
            call()

Each step may end the case, by EndedError: the device can't do it, memory runs out. Several ranks make the same steps,
and a step that fails on one of them ends the case on all of them, alike.
"""

from __future__ import annotations

import math
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

from harness import check, extremes, units
from harness.contract import Watch
from harness.devices import FEWEST_SETS, Batch, Device, covering_sets, is_out_of_memory, too_few
from harness.errors import described
from harness.model import Case, KernelFacts, Status, Timer, Warning
from harness.ops import Context, Launch, Op, Variant, comparer
from harness.ops.closing import Closers
from harness.ranges import NvtxRange
from harness.ranks import ALONE, Group, PeerError
from harness.recheck import Recheck
from harness.rotation import Rotation

_MEMORY_SHARE = 0.8  # of the free memory that a case may plan to use; the rest is for what the variants allocate
_MOST_SETS = 1024  # beyond, a rotation of tiny sets takes longer than the time there is
_MOST_UNALIGNED = 2**26  # bytes of a set of buffers up to which a call on unaligned tensors is made
_WIDEST = 8  # bytes an element of the reference may take


class EndedError(Exception):
    """The case ends without a time. status: how it ends, such as 'wrong'. text: why, for the reader of the result."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What `prepare` leaves for the other steps. `first` is the set of buffers that was called once.

    `canonical` has the inputs until sets of buffers are made of them.
    """

    launch: Launch
    canonical: SimpleNamespace
    first: SimpleNamespace


class Session:
    """A context manager that readies one case in steps: obstacle, prepare, check, extremes, rotation, recheck.

    When it ends, also by an error, what the variant deferred is closed, and the memory is given back. Keep no call of a
    session after its end: calls hold buffers.

    warnings: what a reader of the result must know, at the end also errors of closing. phases: wall-clock seconds of
    each step that was taken, by name.
    """

    def __init__(self, case: Case, op: Op, device: Device, group: Group = ALONE) -> None:
        """Measure nothing yet.

        Raises ValueError if the group has another number of ranks than the case needs, and UsageError for a case that
        isn't one of the op's.
        """
        if group.size != case.world:
            raise ValueError(f"{case.id} is a case of {case.world} ranks, the group has {group.size}")
        op.refuse(case)
        self.case = case
        self.op = op
        self.device = device
        self.group = group
        self.warnings: list[Warning] = []
        self.phases: list[tuple[str, float]] = []
        self._closers = Closers()
        self._ctx: Context | None = None
        self._prepared: _Prepared | None = None
        self._range = NvtxRange(f"case: {case.id}")

    @property
    def variant(self) -> Variant:
        return self.op.variants[self.case.variant]

    @property
    def timer(self) -> Timer:
        """How the variant asks to be timed."""
        return self.variant.timer or self.op.timer

    @property
    def seed(self) -> int:
        """The seed of the inputs: the same for all variants of a group of cases, different between groups and ranks."""
        return zlib.crc32(self.case.group.encode()) + self.group.rank

    @property
    def facts(self) -> tuple[tuple[str, float], ...]:
        """The figures that the variant has reported until now."""
        return tuple(self._ctx.facts.items()) if self._ctx else ()

    @property
    def kernels(self) -> tuple[KernelFacts, ...]:
        """What the compiler made of the kernels that the variant has loaded."""
        return tuple(dict.fromkeys(self._ctx.kernels)) if self._ctx else ()

    def obstacle(self) -> EndedError | None:
        """Why the case can't run here, as far as that is known before it starts; None if it can."""
        if self.variant.unsupported and (reason := self.variant.unsupported(self.case)):
            return EndedError("unsupported", reason)
        if too_few := self._too_few_devices():
            return EndedError("unsupported", too_few)
        needed, free = bytes_needed(self.case, self.op), self.device.free_bytes()
        if needed > free:
            return EndedError("out_of_memory", f"needs {units.size(needed)}, {units.size(free)} are free on the device")
        return None

    def prepare(self, inputs: SimpleNamespace | None = None) -> None:
        """Make the inputs, prepare the variant, and call it once. Raises EndedError if there is an obstacle.

        inputs: to be taken in place of the op's own.
        """
        with self._together():
            if obstacle := self.obstacle():
                raise obstacle
        with self.phase("setup"):
            self._ctx = ctx = self.context()
            canonical = check.make_inputs(ctx) if inputs is None else inputs
        with self.phase("compile"):
            launch = self.variant.prepare(ctx)
            first = check.new_set(ctx, self.variant, canonical)
            self._call_once(launch, first)
        self._prepared = _Prepared(launch, canonical, first)

    def check(self) -> str | None:
        """What is wrong with a call: with the form or the values of its outputs, or with inputs that it changed.

        The first rank that has a complaint is reported; None if no rank has one. A library's result that is a little
        off isn't wrong, but there is a warning.
        """
        ctx, ready = self._ready()
        if self.op.unchecked:
            self.warn("unchecked", f"no result of this op is checked: {self.op.unchecked}", "check results elsewhere")
        with self.phase("check"):
            tensors = check.new_set(ctx, self.variant, ready.canonical)
            found = self._judged(ctx, ready.launch, ready.canonical, tensors)
            if not found.wrong and found.inexact:
                advice = "compare times with this in mind: our own variants are held to the tolerance"
                self.warn("inexact", found.inexact, advice)
            return found.wrong

    def check_unaligned(self) -> str | None:
        """What is wrong with a call on unaligned tensors.

        Cases that move much have no such call, nor have ops without inputs, whose calls go on from the last one.
        """
        ctx, ready = self._ready()
        if self.op.unchecked or not self.op.inputs or _set_bytes(self.case, self.op) > _MOST_UNALIGNED:
            return None
        with self.phase("unaligned"):
            inputs = ready.canonical
            tensors = check.new_set(ctx, self.variant, inputs, is_aligned=False)
            wrong = self._judged(ctx, ready.launch, inputs, tensors, strict=False).wrong
            return wrong and f"with tensors at addresses that 16 doesn't divide, {wrong}"

    def extremes(self) -> str | None:
        """What is wrong with calls whose inputs have extreme values, as far as the op says that they may have them.

        Only our own variants must be right there: others have a warning, libraries and what texts have published.
        `check` can't be called any more, since the inputs are gone.
        """
        ctx, ready = self._ready()
        is_held = self.variant.role == "ours"

        def judged(inputs: SimpleNamespace) -> str | None:
            return self._judged(ctx, ready.launch, inputs, check.new_set(ctx, self.variant, inputs)).wrong

        with self.phase("extremes"):
            wrong = extremes.complaint(ctx, ready.canonical, judged, thorough=is_held)
        if wrong and not is_held:
            self.warn("extremes", wrong, "compare times with this in mind: our own variants must be right here")
            return None
        return wrong

    def outcome(self) -> tuple[str | None, SimpleNamespace]:
        """What is wrong with the form of a call, None for nothing; and the tensors of the op after the call."""
        ctx, ready = self._ready()
        with self.phase("check"):
            tensors = check.new_set(ctx, self.variant, ready.canonical)
            fault, after = self._watched_call(ctx, ready.launch, ready.canonical, tensors)
            return fault, after if fault else check.decoded(ctx, self.variant, after)

    def rotation(self) -> Rotation:
        """Sets of buffers, with the variant's launch bound to each.

        Rotate over the calls: together the sets are larger than the cache. There is a single call if the case asks for
        a hot cache.
        """
        ctx, ready = self._ready()
        # Its memory is needed for the values of sets, one after the other. `check` can't be called any more.
        vars(ready.canonical).clear()
        with self.phase("setup"):
            return Rotation(ctx, ready.launch, ready.first, self.seed - self.group.rank, self._set_count())

    def calls(self) -> list[Callable[[], object]]:
        """The calls of a rotation alone, as tools that time nothing need them."""
        return [*self.rotation().calls]

    def recheck(self, rotation: Rotation, batch: Batch, seconds: float) -> str | None:
        """What is wrong with the calls that were timed; None if nothing is. seconds: what that may take, about."""
        ctx, _ = self._ready()
        with self.phase("recheck"):
            seconds = self.group.agree(seconds)
            timed = Recheck(ctx, rotation, batch, self.device)
            wrong = timed.results(seconds / 2) or timed.alone() or timed.novelty(seconds / 2)
            # What is found out after this may draw random numbers, which are to be the same in every run.
            ctx.generator.manual_seed(self.seed)
            return wrong and f"{wrong} (found in the timed calls; the first call was right)"

    def report(self) -> None:
        """Let the variant find out figures that cost more calls, after all timed ones, on every rank."""
        ctx, _ = self._ready()
        if ctx.later:
            with self.phase("facts"):
                for call in ctx.later:
                    call()

    def warn(self, code: str, message: str, advice: str) -> None:
        """Add a warning to the case's result."""
        self.warnings.append(Warning(code, message, advice))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Take a step of the case on all ranks. Profilers see it as an NVTX range: the case's id for 'sample'.

        The ranges of all steps lie in the range 'case: ID'.

        A failure of any rank ends the case on every rank, by EndedError. Errors other than that and out of memory are
        raised as they are on the rank that has them: after such an error its device may be unusable.
        """
        start = time.perf_counter()
        with NvtxRange(self.case.id if name == "sample" else f"{name}: {self.case.id}"):
            try:
                with self._together():
                    yield
            finally:
                self.phases.append((name, time.perf_counter() - start))

    def __enter__(self) -> Self:
        # Done before anything touches a device. If there is no such device, `obstacle` says so.
        if self.case.world > 1 and not self._too_few_devices():
            self.device.use(self.group.local_rank)
        self._range.__enter__()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)
        self._prepared = None
        traceback.clear_frames(trace)  # they hold buffers, too
        self.device.release()
        self._range.__exit__()

    @contextmanager
    def _together(self) -> Iterator[None]:
        """End the case on every rank if any of them fails here, or goes on to fail before it comes this far."""
        try:
            yield
            self.group.barrier()
        except PeerError as other:
            raise _ended(other) from other
        except Exception as error:
            status, text = _ending(error)
            try:
                failure = self.group.failed(status, text)
            except TimeoutError as late:
                if status != "crashed":
                    raise EndedError(status, text) from error.with_traceback(None)
                error.add_note(f"the other ranks weren't told: {late}")
                raise error from None
            if status == "crashed":
                raise
            # Its frames hold buffers, whose memory can't be given back as long as they do.
            raise _ended(failure) from error.with_traceback(None)

    def _close(self, error: BaseException | None) -> None:
        """Call what the variant deferred, the last first. What that raises becomes a warning, and a note on `error`."""
        if errors := self._closers.close_all():
            texts = "; ".join(f"{type(raised).__name__}: {raised}" for raised in errors)
            self.warn("not-closed", f"closing what the variant opened failed: {texts}", "correct what it defers")
            if error:
                error.add_note(f"closing failed, too: {texts}")

    def _judged(
        self, ctx: Context, launch: Launch, inputs: SimpleNamespace, tensors: SimpleNamespace, *, strict: bool = True
    ) -> comparer.Verdict:
        """Call the variant with new buffers, and judge inputs, form and values. strict: as in `check.verdict`."""
        fault, after = self._watched_call(ctx, launch, inputs, tensors)
        # All ranks agree before the reference runs, since it may wait for the other ranks.
        if wrong := self.group.verdict(fault):
            return comparer.Verdict(wrong)
        found = check.verdict(ctx, self.variant, inputs, after, strict=strict)
        if wrong := self.group.verdict(found.wrong):
            return comparer.Verdict(wrong)
        return comparer.Verdict(inexact=self.group.verdict(found.inexact))

    def _watched_call(
        self, ctx: Context, launch: Launch, inputs: SimpleNamespace, tensors: SimpleNamespace
    ) -> tuple[str | None, SimpleNamespace]:
        """Call the variant with new buffers. Gives what is wrong with inputs and form, and the tensors after it."""
        watch = Watch(ctx, self.variant, inputs, tensors, encoded=True)
        check.leave_poison(ctx, self.variant)
        returned = check.as_tuple(ctx, self.variant, self._call_once(launch, tensors))
        if wrong := watch.changed() or watch.malformed(tensors, returned):
            return wrong, tensors
        return None, check.collect(self.op, self.variant, tensors, returned)

    def context(self) -> Context:
        """What the op and the variant get to know of the case, anew."""
        import torch

        place = self.device.torch_device
        generator = torch.Generator(place).manual_seed(self.seed)
        dtype = getattr(torch, self.case.dtype)
        return Context(self.case, dtype, place, generator, self.op, self.group, self.warnings, closing=self._closers)

    def _ready(self) -> tuple[Context, _Prepared]:
        if self._ctx is None or self._prepared is None:
            raise RuntimeError(f"{self.case.id}: call prepare() first")
        if self._ctx.op is not self.op or self._ctx.case is not self.case:
            raise EndedError("wrong", "the context has another op or another case than it was made with")
        return self._ctx, self._prepared

    def _call_once(self, launch: Launch, tensors: SimpleNamespace) -> Any:
        returned = launch(tensors)
        self.device.synchronize()
        return returned

    def _set_count(self) -> int:
        """How many sets of buffers outgrow the cache, as far as memory allows; the same number on every rank."""
        size = _set_bytes(self.case, self.op)
        if self.case.cache == "hot" or not size:
            return 1
        needed = max(2, covering_sets(self.device.cache_bytes, size))
        fitting = min(_MOST_SETS, 1 + int(_MEMORY_SHARE * self.device.free_bytes() / size))
        if fitting < needed:
            self.warn(
                "few-sets",
                f"only {fitting} of the {needed} sets of buffers that would be larger than the cache are used",
                "free memory on the device" if fitting < _MOST_SETS else "take a larger shape, or say 'cache: hot'",
            )
        return min(self.group.exchange(min(max(needed, FEWEST_SETS), fitting)))

    def _too_few_devices(self) -> str | None:
        return too_few(self.device, self.group.local_size)


def bytes_needed(case: Case, op: Op) -> int:
    """The fewest bytes with which a case can run.

    They are the op's inputs, two sets of buffers, of which the check has filled one, and the reference's outputs.
    """
    values = case.values
    canonical = sum(tensor.bytes(values, case.dtype) for tensor in op.inputs)
    elements = sum(math.prod(shape) for tensor in op.outputs for shape in tensor.shapes(values))
    reference = elements * _WIDEST if op.reference is not None else 0
    one_set = _set_bytes(case, op)
    return canonical + 2 * one_set + reference


def _set_bytes(case: Case, op: Op) -> int:
    """Bytes of one set of buffers."""
    inputs, outputs = op.tensors(op.variants[case.variant])
    return sum(tensor.bytes(case.values, case.dtype) for tensor in (*inputs, *outputs))


def _ending(error: Exception) -> tuple[Status, str]:
    """How a case ends by an error, and the text that tells why."""
    if isinstance(error, EndedError):
        return error.status, error.text
    if is_out_of_memory(error):
        return "out_of_memory", next(iter(str(error).splitlines()), type(error).__name__)
    return "crashed", described(error)


def _ended(failure: PeerError) -> EndedError:
    return EndedError(cast(Status, failure.status), failure.text)
