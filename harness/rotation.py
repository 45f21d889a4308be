"""The sets of buffers that timed calls rotate over, and the values in them.

A set has inputs and outputs in memory of its own, and the sets hold different values. `renew` gives sets new inputs and
poisons their outputs, in the same memory, since a graph that was captured has the addresses. So no call finds its work
done, and a result that was kept from an earlier call is wrong.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness import check
from harness.devices import Device
from harness.ops import Context, Launch
from harness.ranks import Group

if TYPE_CHECKING:
    import torch

MOST_DRAWN = 8
"""Different values of a set's inputs at a time; where there are more sets, several hold the same ones."""
_SEEDS = 2**48
_RENEWAL_SHARE = 0.05  # of the time of sampling, which new inputs between rounds may take


class Call:
    """The variant's launch bound to a set of buffers.

    returned: what the last call gave. A graph's calls are made once, at its capture, so these are its own outputs.
    """

    __slots__ = ("launch", "returned", "tensors")

    def __init__(self, launch: Launch, tensors: SimpleNamespace) -> None:
        self.launch = launch
        self.tensors = tensors
        self.returned: Any = None

    def __call__(self) -> Any:
        self.returned = made = self.launch(self.tensors)
        return made


class Rotation:
    """Sets of buffers, each with its call, in the order of the rotation."""

    def __init__(self, ctx: Context, launch: Launch, first: SimpleNamespace, seed: int, count: int) -> None:
        """Make the other sets. first: the first set, whose inputs `drawn(seed)` gives. count: of all sets.

        is_renewable: whether sets can get new inputs: there are some, and the variant keeps nothing of the old ones but
        tensors, which can be filled anew.
        """
        self._ctx = ctx
        self._variant = ctx.op.variants[ctx.case.variant]
        self._inputs = [tensor.name for tensor in ctx.op.inputs]
        # Seeds that nobody knows before the case runs; every rank draws the same ones.
        self._random = random.Random(int(ctx.group.agree(secrets.randbelow(_SEEDS))))
        own = [seed, *(self._random.randrange(_SEEDS) for _ in range(min(count, MOST_DRAWN) - 1))]
        self._seeds = [own[place % len(own)] for place in range(count)]
        values: dict[int, SimpleNamespace] = {}
        self.calls = [Call(launch, first)]
        for place in range(1, count):
            part = place % MOST_DRAWN
            if part not in values:
                values[part] = self.drawn(self._seeds[place])
            self.calls.append(Call(launch, self.new_set(values[part])))
            if place + MOST_DRAWN >= count:
                del values[part]
        self.is_renewable = bool(self._inputs) and all(map(_is_plain, _parts(vars(first))))

    def drawn(self, seed: int) -> SimpleNamespace:
        """The op's inputs that a seed gives, each rank its own."""
        self._ctx.generator.manual_seed(seed + self._ctx.group.rank)
        return check.make_inputs(self._ctx)

    def values(self, place: int) -> SimpleNamespace:
        """The op's inputs that a set was given."""
        return self.drawn(self._seeds[place])

    def new_set(self, values: SimpleNamespace) -> SimpleNamespace:
        """Copies of inputs, and outputs as the variant declares them, in memory of their own."""
        return check.new_set(self._ctx, self._variant, values)

    def renew(self, places: Sequence[int] | None = None, *, anew: bool = True) -> None:
        """Draw new inputs for sets, in their memory, and poison their outputs.

        places: which sets, each of which gets values of its own; all unless told, of which several share values.
        anew: False makes the same steps, and leaves the sets as they are.
        """
        every = range(len(self.calls)) if places is None else places
        groups = min(len(every), MOST_DRAWN) if places is None else len(every)
        for group in range(groups if self.is_renewable else 0):
            members, seed = every[group::groups], self._random.randrange(_SEEDS)
            if anew:
                self._fill(members, seed)
            else:
                values = vars(self.drawn(seed))
                other = {name: check.copied(values[name]) for name in self._inputs}
                _copy([(values[name], other[name]) for _ in members for name in self._inputs])
        if anew:
            self.poison(every)

    def poison(self, places: Sequence[int]) -> None:
        """Fill the outputs of sets with wrong values, also outputs that the variant made itself in its last calls."""
        check.poison(self._outputs_of(places))

    def copies(self, place: int) -> list[torch.Tensor]:
        """Copies of a set's outputs."""
        return [output.clone() for output in self._outputs(self.calls[place])]

    def is_poisoned(self, place: int) -> bool:
        """Whether a set's outputs are as `poison` left them."""
        return all(map(check.is_poison, self._outputs(self.calls[place])))

    def chosen(self, most: int) -> list[int]:
        """Up to so many sets, at random: which ones, nobody knows before."""
        return self._random.sample(range(len(self.calls)), min(most, len(self.calls)))

    def _fill(self, places: Sequence[int], seed: int) -> None:
        """Give sets the inputs of a seed. What was encoded of inputs is encoded anew, into the same memory."""
        values = vars(self.drawn(seed))
        alike: list[tuple[Any, Any]] = []
        for place in places:
            own = vars(self.calls[place].tensors)
            alike += [(values[name], own[name]) for name in self._inputs if _is_alike(values[name], own[name])]
        _copy(alike)
        for place in places:
            if self._variant.encode and not self._encode(self.calls[place].tensors, values):
                # From here on the sets keep the inputs that they have been encoded from.
                self.is_renewable = False
                for left in places[places.index(place) :]:
                    before, own = vars(self.values(left)), vars(self.calls[left].tensors)
                    _copy([(before[name], own[name]) for name in self._inputs if _is_alike(before[name], own[name])])
                return
            self._seeds[place] = seed

    def _encode(self, tensors: SimpleNamespace, values: dict[str, Any]) -> bool:
        """Encode new inputs; False where what they are encoded to has another form than before."""
        assert self._variant.encode is not None
        own = vars(tensors)
        # Where the variant has an input of another form, the set has no memory for the op's.
        foreign = {name: values[name] for name in self._inputs if not _is_alike(values[name], own[name])}
        made = self._variant.encode(self._ctx, SimpleNamespace(**own | foreign))
        if not all(_is_alike(value, own[name]) for name, value in made.items()):
            return False
        _copy([(value, own[name]) for name, value in made.items()])
        return True

    def _outputs_of(self, places: Sequence[int]) -> list[torch.Tensor]:
        return [part for place in places for part in self._outputs(self.calls[place])]

    def _outputs(self, call: Call) -> Iterator[torch.Tensor]:
        if self._variant.returns:
            return _parts(call.returned)
        _, outputs = self._ctx.op.tensors(self._variant)
        return _parts([getattr(call.tensors, tensor.name) for tensor in outputs])


class Renewal:
    """New inputs and poisoned outputs for all sets of buffers, as often as a share of the time allows."""

    def __init__(self, group: Group, device: Device, rotation: Rotation) -> None:
        self._group, self._device, self._rotation = group, device, rotation
        self._begin = time.monotonic()
        self._spent = self._last = 0.0

    def due(self) -> None:
        """Renew the sets, if all renewals stay below their share of the time; the first time, always."""
        now = time.monotonic()
        if self._last and self._group.agree(self._spent + self._last > _RENEWAL_SHARE * (now - self._begin)):
            return
        self._rotation.renew()
        self._device.synchronize()
        self._last = time.monotonic() - now
        self._spent += self._last


def _copy(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Copy the tensors of each first value into the tensors of the second one, which has the same form."""
    import torch

    sources = [part for value, _ in pairs for part in _parts(value)]
    targets = [part for _, value in pairs for part in _parts(value)]
    for at, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr():
            sources[at] = source.clone()
    if targets:
        with torch.inference_mode():  # which may write into tensors of any mode
            torch._foreach_copy_([*map(_once, targets)], [*map(_once, sources, targets)])


def _once(tensor: torch.Tensor, expanded: torch.Tensor | None = None) -> torch.Tensor:
    """The part of a tensor that has each place in memory once, where `expanded`, or the tensor itself, is expanded."""
    of = tensor if expanded is None else expanded
    for dimension, (size, stride) in enumerate(zip(of.shape, of.stride(), strict=True)):
        if size > 1 and not stride:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _parts(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, which may be one, or a list, tuple or dict of such values."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _parts(part)
    elif isinstance(value, dict):
        yield from _parts([*value.values()])


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether new values can be written into a tensor, and nothing else depends on the old ones."""
    import torch

    return tensor.layout == torch.strided and not tensor.requires_grad


def _is_alike(one: Any, other: Any) -> bool:
    """Whether two values have tensors of the same forms, so that the first one's fit into the second one's memory."""
    return _forms(one) == _forms(other)


def _forms(value: Any) -> list[tuple[Any, ...]]:
    return [(part.shape, part.dtype, part.device, part.layout) for part in _parts(value)]
