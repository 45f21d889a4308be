"""Sets of buffers: the values that they hold, and what becomes of them when they are renewed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.devices.cpu import Cpu
from harness.model import Case
from harness.ops import Context, Op, Tensor, Tensors
from harness.ranks import ALONE
from harness.rotation import MOST_DRAWN, Renewal, Rotation
from harness.session import Session


class SmallCpu(Cpu):
    cache_bytes = 2**10


def rotation(encode: Callable[[Context, Tensors], dict[str, Any]] | None = None, n: int = 64) -> Rotation:
    sheet = Op(
        "twice",
        "y = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",)),),
        outputs=(Tensor("y", ("N",)),),
        dtypes=("float32",),
        reference=lambda _, t: {"y": t.x.double() * 2},
    )
    sheet.variant("ours", "doubles", devices=("cpu",), encode=encode)(lambda _: lambda t: torch.mul(t.x, 2, out=t.y))
    with Session(Case("twice", "ours", "float32", (("N", n),), device="cpu"), sheet, SmallCpu()) as session:
        session.prepare()
        return session.rotation()


def inputs(sets: Rotation) -> list[torch.Tensor]:
    return [call.tensors.x.clone() for call in sets.calls]


@pytest.mark.parametrize("n", [512, 8])
def test_sets_hold_different_values_which_their_seeds_give(n):
    sets = rotation(n=n)
    found = inputs(sets)
    assert len(found) > MOST_DRAWN or n == 512
    different = {tuple(one.tolist()) for one in found}
    assert len(different) == min(MOST_DRAWN, len(found))
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(found))


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


def test_the_same_steps_without_renewing_leave_the_sets_as_they_are():
    sets = rotation()
    for call in sets.calls:
        call()
    before, outputs = inputs(sets), [call.tensors.y.clone() for call in sets.calls]
    sets.renew(anew=False)
    assert all(map(torch.equal, before, inputs(sets)))
    assert all(torch.equal(call.tensors.y, y) for call, y in zip(sets.calls, outputs, strict=True))


def test_what_was_encoded_of_inputs_is_encoded_anew_into_the_same_memory():
    sets = rotation(lambda _, t: {"minus": -t.x, "table": (t.x.data_ptr(),)})
    places = [call.tensors.minus.data_ptr() for call in sets.calls]
    sets.renew()
    assert all(torch.equal(call.tensors.minus, -call.tensors.x) for call in sets.calls)
    assert [call.tensors.minus.data_ptr() for call in sets.calls] == places


def test_what_is_encoded_to_another_form_each_time_stays_as_it_is():
    """Its memory can't hold what new inputs give, so the sets keep the inputs that they were encoded from."""
    sizes = iter(range(1, 1000))
    sets = rotation(lambda _, t: {"some": t.x[: next(sizes)].clone()})
    assert sets.is_renewable
    before = inputs(sets)
    sets.renew()
    assert not sets.is_renewable
    assert all(map(torch.equal, before, inputs(sets)))
    assert all(torch.equal(sets.values(place).x, one) for place, one in enumerate(before))
    sets.renew()
    assert all(map(torch.equal, before, inputs(sets)))


def test_what_holds_a_graph_of_autograd_is_not_renewed():
    assert not rotation(lambda _, t: {"kept": (t.x.clone().requires_grad_() * 2,)}).is_renewable


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
