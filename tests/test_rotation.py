"""Sets of buffers: the values that they hold, and what becomes of them when they are renewed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from harness import rotation as rotation_module
from harness.devices.cpu import Cpu
from harness.model import Case
from harness.ops import Context, Op, Tensor, Tensors
from harness.ranks import ALONE, Group
from harness.rotation import Renewal, Rotation
from harness.session import Session


class SmallCpu(Cpu):
    cache_bytes = 2**10


def rotation(
    encode: Callable[[Context, Tensors], dict[str, Any]] | None = None,
    n: int = 64,
    outputs: Sequence[str] = ("y",),
    group: Group = ALONE,
) -> Rotation:
    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=tuple(Tensor(name, ("N",)) for name in outputs),
        dtypes=("float32",),
        reference=lambda _, t: dict.fromkeys(outputs, t.x.double() * 2),
    )
    sheet.variant("ours", "doubles", devices=("cpu",), encode=encode)(lambda _: lambda t: torch.mul(t.x, 2, out=t.y))
    case = Case("twice", "ours", "float32", (("N", n),), device="cpu", world=group.size)
    with Session(case, sheet, SmallCpu(), group) as session:
        session.prepare()
        return session.rotation()


def inputs(sets: Rotation) -> list[torch.Tensor]:
    return [call.tensors.x.clone() for call in sets.calls]


@pytest.mark.parametrize("n", [512, 8])
def test_sets_hold_different_values_which_their_seeds_give(n):
    sets = rotation(n=n)
    found = inputs(sets)
    assert len(found) > 8 or n == 512
    different = {tuple(one.tolist()) for one in found}
    assert len(different) == min(8, len(found))
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(found))


def test_the_values_of_sets_are_those_of_the_rank():
    """So the first set, which was made before, has what its seed gives."""
    group = Group(1, 2, lambda value, _: [value, value])
    sets = rotation(group=group)
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(inputs(sets)))


def test_seeds_are_among_so_many_that_nobody_can_try_them_all(monkeypatch):
    given: list[int] = []
    monkeypatch.setattr("harness.rotation.secrets.randbelow", lambda most: given.append(most) or 7)
    rotation()
    [most] = given
    assert most >= 2**32


@pytest.mark.parametrize(("n", "count", "drawn"), [(8, 64, 8), (512, 4, 3)])
def test_no_more_values_are_drawn_than_there_are_and_each_is_given_up_after_its_last_set(monkeypatch, n, count, drawn):
    """The first set is there already. What is drawn takes memory until then."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    draw, new_set = Rotation.drawn, Rotation.new_set

    def noting(sets: Rotation, seed: int) -> Any:
        values = draw(sets, seed)
        made.append(weakref.ref(values.x))
        return values

    def counting(sets: Rotation, values: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        return new_set(sets, values)

    monkeypatch.setattr(Rotation, "drawn", noting)
    monkeypatch.setattr(Rotation, "new_set", counting)
    assert len(rotation(n=n).calls) == count
    assert len(made) == drawn
    assert alive[-8:] == ([8, 7, 6, 5, 4, 3, 2, 1] if count > 8 else [1, 1, 1])


@pytest.mark.parametrize(("n", "places", "drawn"), [(8, None, 8), (512, None, 4), (8, range(10), 10)])
def test_values_of_renewed_sets(monkeypatch, n, places, drawn):
    """All sets share eight values; sets that are named have each their own."""
    sets = rotation(n=n)
    seeds: list[int] = []
    draw = sets.drawn
    monkeypatch.setattr(sets, "drawn", lambda seed: seeds.append(seed) or draw(seed))
    sets.renew(places)
    assert len(seeds) == len(set(seeds)) == drawn
    found = inputs(sets) if places is None else [inputs(sets)[place] for place in places]
    assert len({tuple(one.tolist()) for one in found}) == drawn


def test_renewed_sets_have_new_inputs_in_their_memory_and_poisoned_outputs():
    sets = rotation()
    before, places = inputs(sets), [call.tensors.x.data_ptr() for call in sets.calls]
    for call in sets.calls:
        call()
    assert not any(map(sets.is_poisoned, range(len(sets.calls))))
    sets.renew()
    assert all(map(sets.is_poisoned, range(len(sets.calls))))
    assert not any(map(torch.equal, before, inputs(sets)))
    assert [call.tensors.x.data_ptr() for call in sets.calls] == places
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(inputs(sets)))


def test_some_sets_are_renewed_and_the_others_stay():
    sets = rotation()
    before = inputs(sets)
    sets.renew([1])
    assert [torch.equal(*pair) for pair in zip(before, inputs(sets), strict=True)] == [
        place != 1 for place in range(len(before))
    ]


def test_the_same_steps_without_renewing_leave_the_sets_as_they_are(monkeypatch):
    sets = rotation()
    for call in sets.calls:
        call()
    before, outputs = inputs(sets), [call.tensors.y.clone() for call in sets.calls]
    copied: list[int] = []
    copy = rotation_module._copy
    monkeypatch.setattr(rotation_module, "_copy", lambda pairs: copied.append(len(pairs)) or copy(pairs))
    sets.renew(anew=False)
    assert copied == [1] * len(sets.calls)
    assert all(map(torch.equal, before, inputs(sets)))
    assert all(torch.equal(call.tensors.y, y) for call, y in zip(sets.calls, outputs, strict=True))
    sets.renew()
    assert copied == [1] * 2 * len(sets.calls)


def test_a_set_is_poisoned_if_all_of_its_outputs_are():
    sets = rotation(outputs=("y", "z"))
    sets.renew()
    assert sets.is_poisoned(0)
    sets.calls[0]()  # writes y alone
    assert not sets.is_poisoned(0)


def test_what_takes_the_place_of_an_input_is_encoded_from_new_values():
    """The set has no memory for the op's own input then."""
    sets = rotation(lambda _, t: {"x": t.x.half()})
    sets.renew()
    for place, call in enumerate(sets.calls):
        assert torch.equal(call.tensors.x, sets.values(place).x.half())


def test_what_was_encoded_of_inputs_is_encoded_anew_into_the_same_memory():
    sets = rotation(lambda _, t: {"minus": -t.x, "table": (t.x.data_ptr(),)})
    places = [call.tensors.minus.data_ptr() for call in sets.calls]
    sets.renew()
    assert all(torch.equal(call.tensors.minus, -call.tensors.x) for call in sets.calls)
    assert [call.tensors.minus.data_ptr() for call in sets.calls] == places


def test_what_is_encoded_to_another_form_each_time_stays_as_it_is():
    """Its memory can't hold what new inputs give, so the sets keep the inputs that they were encoded from."""
    sizes = iter(range(1, 1000))
    sets = rotation(lambda _, t: {"minus": -t.x, "some": t.x[: next(sizes)].clone()})
    assert sets.is_renewable
    before = inputs(sets)
    sets.renew()
    assert not sets.is_renewable
    assert all(map(torch.equal, before, inputs(sets)))
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(before))
    sets.renew()
    assert all(map(torch.equal, before, inputs(sets)))


def test_what_holds_a_graph_of_autograd_is_not_renewed():
    sets = rotation(lambda _, t: {"kept": (t.x.clone().requires_grad_() * 2,)})
    assert not sets.is_renewable
    before = inputs(sets)
    sets.renew()
    assert all(map(torch.equal, before, inputs(sets)))


def test_what_was_encoded_to_an_expanded_tensor_is_encoded_anew_too():
    """Such as the same bias for all heads: each place in memory is written once."""
    sets = rotation(lambda _, t: {"x": t.x.clone(), "wide": t.x.clone().view(1, -1, 1).expand(3, -1, 2)})
    before = [call.tensors.wide.data_ptr() for call in sets.calls]
    sets.renew()
    for place, call in enumerate(sets.calls):
        assert call.tensors.wide.data_ptr() == before[place]
        assert call.tensors.wide.shape == (3, 64, 2)
        assert torch.equal(call.tensors.wide[1, :, 1], sets.values(place).x)


class Waited(SmallCpu):
    """A device that counts how often it was waited for."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_sets_are_renewed_at_first_and_then_in_a_twentieth_of_the_time(monkeypatch):
    """A renewal takes 0.1 s here. It is made if all renewals with the next one take 5% of the time at most."""
    now, device, sets = [100.0], Waited(), rotation()
    renewed: list[float] = []

    def renew() -> None:
        renewed.append(now[0])
        now[0] += 0.1

    monkeypatch.setattr(sets, "renew", renew)
    monkeypatch.setattr("harness.rotation.time.monotonic", lambda: now[0])
    renewal = Renewal(ALONE, device, sets)
    renewal.due()
    assert (renewed, device.waits) == ([100.0], 1)
    # 0.1 s were spent, so that with the next 0.1 s it is a twentieth from 4 s on.
    for moment in (103.9, 104.1, 105.9, 106.1):
        now[0] = moment
        renewal.due()
    assert renewed == [100.0, 104.1, 106.1]
    assert device.waits == 3


def test_values_that_lie_in_the_memory_that_they_are_copied_to_are_copied_before():
    for shape in ((8,), (3, 3)):
        memory = torch.arange(100.0)
        size = torch.Size(shape).numel()
        source, target = memory[:size].view(shape), memory[1 : size + 1].view(shape)
        wanted = source.clone()
        rotation_module._copy([(source, target)])
        assert torch.equal(target, wanted)
    square = torch.arange(9.0).view(3, 3)
    wanted = square.T.clone()
    rotation_module._copy([(square.T, square)])
    assert torch.equal(square, wanted)
