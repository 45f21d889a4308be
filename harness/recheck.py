"""The check of the calls that were timed: the very graph or launches of the samples, on inputs that nobody has seen.

A case is checked first in a call of its own. That says nothing about a call that is made later, from a graph, or with
buffers that were there before. So after the samples some sets get new inputs and poisoned outputs, the batch that was
timed runs once more, and what it leaves is compared with what these inputs must give.
"""

from __future__ import annotations

import itertools
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness import check
from harness.contract import Watch, same
from harness.devices import Batch, Device
from harness.ops import Context, comparer
from harness.ops.comparer import Expected
from harness.rotation import Call, Rotation

if TYPE_CHECKING:
    import torch

_MOST = 8  # sets whose results are compared, if there is time
_FEWEST_ROUNDS, _ROUNDS = 3, 7  # of calls on new inputs, and on inputs that they have seen
_PATIENCE = 10.0  # seconds beyond its time for which a suspicion is looked into
_LOOK = 1.0  # seconds that a look at new inputs beside seen ones may take, however little time there is
_QUICK = 20e-3  # seconds of a call from which on it isn't made again alone
_SLOWER, _LEAST, _LEAST_ON_HOST = {3: 1.5, 4: 1.3, 5: 1.2}, 1.1, 1.5
"""By rounds: how many times as long calls on new inputs must take, in every round, to be told from noise, and from what
caches do. A host's caches do more: what was written last lies in the nearest one."""


_WHILE = 5e-3  # seconds in which calls are made that are timed as the check makes them
_SAVED, _BEGINNING = 1.5, 50e-6
"""How many times as long a call must take where it is made once, to be told from noise, and by how many seconds at
least all calls together: the beginning of a graph, which a longer one has once too, takes a few microseconds."""


class Recheck:
    """The timed calls of a case, and what they are checked with."""

    def __init__(self, ctx: Context, rotation: Rotation, batch: Batch, device: Device) -> None:
        self._ctx, self._rotation = ctx, rotation
        self._batch, self._device = batch, device
        self._at_once: dict[int, list[torch.Tensor]] = {}
        self._op, self._variant = ctx.op, ctx.op.variants[ctx.case.variant]
        self._is_updating = any(tensor.inplace for tensor in (*self._op.inputs, *(self._variant.inputs or ())))

    def results(self, seconds: float) -> str | None:
        """What is wrong with results of the batch, on new inputs. At least one set is compared, chosen at random."""
        if not (self._op.inputs or self._op.outputs):
            return self._in_its_own_way()
        deadline = time.monotonic() + seconds
        places = self._rotation.chosen(self._most(seconds))
        self._rotation.renew(places)
        before = {place: self._watch(self._rotation.calls[place]) for place in places}
        passes = self._again(places)
        if wrong := self._ctx.group.verdict(self._late()):
            return wrong
        for number, place in enumerate(places):
            if number and not self._ctx.group.agree(time.monotonic() < deadline):
                break
            if wrong := self._result(place, before[place], passes):
                return wrong
        return None

    def alone(self) -> str | None:
        """What is wrong with the first call where it is made alone: it must do its own work, and no other call's."""
        rotation = self._rotation
        slow = self._batch.seconds / self._batch.calls >= _QUICK
        if len(rotation.calls) == 1 or slow or self._is_updating or self._ctx.group.size > 1:
            return None
        others = [place for place in rotation.chosen(_MOST) if place]
        rotation.renew([0])
        rotation.poison(others)
        single = self._device.batch(
            rotation.calls[:1], timer=self._batch.timer, keep=1, seconds=0.0, group=self._ctx.group
        )
        rotation.poison([0])
        (single.replay or rotation.calls[0])()
        self._device.synchronize()
        if not all(map(rotation.is_poisoned, others)):
            return "a call wrote into the outputs of other calls: each call must do its own work, whenever it is made"
        return self._result(0, None, 1)

    def novelty(self, seconds: float) -> str | None:
        """A complaint if calls take longer on inputs that are new to them than on inputs that they have seen.

        None where there is no time to tell: few samples of slow calls share their inputs.
        """
        rotation, group = self._rotation, self._ctx.group
        if self._is_updating or not rotation.is_renewable:
            return None
        begin = time.monotonic()
        rotation.renew([0])
        self._device.synchronize()
        each = group.agree(time.monotonic() - begin + self._batch.seconds / self._batch.calls)
        if 2 * (_FEWEST_ROUNDS + 1) * each > max(seconds, _LOOK):
            return None
        calls = rotation.calls[: max(1, int(seconds / (2 * _ROUNDS * each)))]
        single = self._device.batch(calls, timer=self._batch.timer, keep=len(calls), seconds=0.0, group=group)
        deadline = time.monotonic() + seconds
        new: list[float] = []
        seen: list[float] = []
        # What the host does for the first time takes long, so the first round doesn't count. A suspicion is looked into
        # by all rounds, unless they take very long.
        while len(new) <= _ROUNDS and (
            len(new) <= _FEWEST_ROUNDS
            or (self._are_slower(new[1:], seen[1:]) and group.agree(time.monotonic() < deadline + _PATIENCE))
            or group.agree(time.monotonic() < deadline)
        ):
            # Other work on a host may hold calls up in each round at the same place, so either may come first.
            new_first = bool(group.agree(secrets.randbelow(2)))
            for anew in (new_first, not new_first):
                rotation.renew(range(len(calls)), anew=anew)
                (new if anew else seen).extend(group.slowest([self._timed(single, calls)]))
        if not self._are_slower(new[1:], seen[1:]):
            return self._saved(single, calls, min(*new[1:], *seen[1:]))
        first, second = (statistics.median(times[1:]) / len(calls) for times in (new, seen))
        return (
            f"calls take {first / second:.3g} times as long on inputs that they have not seen as on inputs that they "
            f"have ({first * 1e6:.4g} us beside {second * 1e6:.4g} us): an earlier call's work is used again"
        )

    def _saved(self, single: Batch, calls: Sequence[Call], once: float) -> str | None:
        """A complaint if calls that are made once take longer than calls of a graph that makes each several times.

        single: these calls, each made once, which took `once` seconds in its best round. The later passes of a graph
        find the inputs of its first pass, whose work a variant may use again while it is captured.
        """
        batch = self._batch
        is_repeated = batch.replay is not None and batch.calls > len(self._rotation.calls)
        if not is_repeated or not _is_saving(once, batch.seconds / batch.calls, len(calls)):
            return None
        # A suspicion only: what the graph took was measured at another time, and other work may have come between.
        alone: list[float] = []
        several: list[float] = []
        for _ in range(_ROUNDS):
            self._timed(single, calls)  # so that the caches hold what they hold in a graph's later passes
            alone.append(self._timed(single, calls))
            several.append(self._timed(batch, self._rotation.calls) / batch.calls)
        once, each = min(self._ctx.group.slowest(alone)), min(self._ctx.group.slowest(several))
        if not _is_saving(once, each, len(calls)):
            return None
        return (
            f"calls take {once / len(calls) / each:.3g} times as long where each is made once as in the graph that was "
            f"timed ({once / len(calls) * 1e6:.4g} us beside {each * 1e6:.4g} us): its calls share their work"
        )

    def _are_slower(self, new: Sequence[float], seen: Sequence[float]) -> bool:
        """Whether each round on new inputs took longer than the one on inputs seen before, by more than noise."""
        least = _LEAST_ON_HOST if self._device.on_host else _LEAST
        times = max(least, _SLOWER.get(len(new), 0.0))
        return all(one > times * other for one, other in zip(new, seen, strict=True))

    def _in_its_own_way(self) -> str | None:
        """What the op finds wrong with a timed call, where it declares no tensors."""
        if self._op.recheck is None:
            return None
        call = self._rotation.calls[0]
        return self._ctx.group.verdict(comparer.complaint(self._op.recheck(self._ctx, call.tensors, self._again_once)))

    def _again_once(self) -> None:
        """A timed call, until its end."""
        (self._batch.replay or self._rotation.calls[0])()
        self._device.synchronize()

    def _watch(self, call: Call) -> Watch:
        """What the form of a call's outputs is judged by."""
        return Watch(self._ctx, self._variant, SimpleNamespace(), call.tensors, encoded=False)

    def _most(self, seconds: float) -> int:
        """How many sets to compare at most: each takes a call and what is compared with."""
        if self._batch.replay:
            return _MOST
        return int(self._ctx.group.agree(max(1, min(_MOST, seconds * self._batch.calls / self._batch.seconds))))

    def _again(self, places: Sequence[int]) -> int:
        """Make the timed calls once more: the whole graph, or the calls of some sets. Gives how often each was made.

        Outputs are copied at once, behind the calls on the stream: each set's, as a thread may be in time for some.
        """
        replay, calls = self._batch.replay, self._rotation.calls
        self._at_once.clear()
        if replay:
            replay()
            self._at_once[places[-1]] = self._rotation.copies(places[-1])
        else:
            for place in places:
                calls[place]()
                self._at_once[place] = self._rotation.copies(place)
        self._device.synchronize()
        return self._batch.calls // len(calls) if replay else 1

    def _late(self) -> str | None:
        """A complaint if the outputs that were copied at once aren't what the calls left in the end."""
        if all(all(map(same, copies, self._rotation.copies(place))) for place, copies in self._at_once.items()):
            return None
        return "outputs change after the call has returned: its work isn't in the order of the stream, nor in the time"

    def _result(self, place: int, form: Watch | None, passes: int) -> str | None:
        """What is wrong with what a set's call left. passes: how often it was made with this set since `renew`."""
        ctx, variant, call = self._ctx, self._variant, self._rotation.calls[place]
        values = self._rotation.values(place)
        inputs = Watch(ctx, variant, values, call.tensors, encoded=False)
        returned = check.as_tuple(ctx, variant, call.returned)
        if wrong := ctx.group.verdict(inputs.changed() or (form.malformed(call.tensors, returned) if form else None)):
            return wrong
        after = check.collect(self._op, variant, call.tensors, returned)
        if self._is_updating and passes > 1 and not self._op.unchecked:
            return ctx.group.verdict(self._updated(values, after, passes))
        return ctx.group.verdict(check.verdict(ctx, variant, values, after, strict=False).wrong)

    def _updated(self, values: SimpleNamespace, after: SimpleNamespace, passes: int) -> str | None:
        """What is wrong where each call goes on from what the last one left, by as many calls on another set.

        The last of these calls is compared with what must come of what it found.
        """
        ctx, variant = self._ctx, self._variant
        other = Call(self._rotation.calls[0].launch, self._rotation.new_set(values))
        for _ in range(passes - 1):
            other()
        self._device.synchronize()
        own = vars(check.decoded(ctx, variant, other.tensors))
        before = check.clone(SimpleNamespace(**{tensor.name: own[tensor.name] for tensor in self._op.inputs}))
        other()
        self._device.synchronize()
        alike = check.collect(self._op, variant, other.tensors, check.as_tuple(ctx, variant, other.returned))
        if wrong := check.verdict(ctx, variant, before, alike, strict=False).wrong:
            return f"call {passes} on the same buffers: {wrong}"
        return comparer.complaint(self._differences(after, alike))

    def _differences(self, after: SimpleNamespace, alike: SimpleNamespace) -> Iterator[Expected | str]:
        """What the outputs and the updated inputs of a set must be, where another set had the same calls."""
        ctx, variant = self._ctx, self._variant
        found, wanted = (vars(check.decoded(ctx, variant, tensors)) for tensors in (after, alike))
        relative, absolute = self._op.tolerance.get(ctx.case.dtype, check.TOLERANCE.get(ctx.case.dtype, (0.0, 0.0)))
        held = (*self._op.outputs, *(each for each in self._op.inputs if each.inplace))
        # Where the op has its own check, a variant may do without some of its outputs.
        for tensor in (each for each in held if each.name in found):
            pairs = zip(_listed(found[tensor.name]), _listed(wanted[tensor.name]), strict=True)
            for got, want in pairs:
                # Sums in another order may differ by more than one call's tolerance.
                allowed = check.LEEWAY * (absolute + relative * want.abs()) if want.is_floating_point() else None
                yield Expected(tensor.name, got, want, allowed)

    def _timed(self, batch: Batch, calls: Sequence[Call]) -> float:
        """Seconds of each of the calls once.

        Ranks begin together: a collective would wait for the rank whose inputs are ready last, and new ones take long.
        """
        if self._ctx.group.size > 1:
            self._device.synchronize()
            self._ctx.group.barrier()
        if batch.timer == "launch" or (batch.timer == "host" and not batch.replay):
            return sum(batch.run(len(calls)))
        clock = self._device.clock
        begin = clock.mark()
        for call in (batch.replay,) if batch.replay else calls:
            call()
        return clock.between([begin, clock.mark()])[0]


def pace(rotation: Rotation, batch: Batch, device: Device) -> float:
    """Seconds of a call where the check makes it, in a batch as the samples are, or in fewer calls if they take long.

    A graph's calls have no such time: code of the host doesn't run in them.
    """
    if batch.timer == "launch":
        return min(batch.run(1 if batch.seconds >= _QUICK else _ROUNDS))
    device.synchronize()
    end, made = time.monotonic() + _WHILE, 0
    begin = device.clock.mark()
    for call in itertools.islice(itertools.cycle(rotation.calls), batch.calls):
        call()
        made += 1
        if time.monotonic() > end:
            break
    (elapsed,) = device.clock.between([begin, device.clock.mark()])
    each = elapsed / made
    # Results that a batch keeps, and memory that it takes anew, make a call twice as long or half.
    return each if each * batch.calls > _LOOK else batch.run(1)[0]


def _is_saving(once: float, each: float, calls: int) -> bool:
    """Whether so many calls, made once in `once` seconds, take surely longer than calls that take `each` seconds."""
    return once >= _SAVED * each * calls and once - each * calls >= _BEGINNING


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)
