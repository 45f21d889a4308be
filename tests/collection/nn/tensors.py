"""Tensors and modes that torch offers: other types, layouts and devices, subclasses, DTensor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.collection.nn.examples import SEED, Call, Example, P, again, gradients, ramp

Way = Callable[[Call, list[Tensor]], list[Tensor]]


def strided(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Inputs that aren't contiguous."""
    return gradients(
        lambda *own: function(*(one.movedim(0, -1).contiguous().movedim(-1, 0) for one in _doubled(own))), inputs
    )


def _doubled(inputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The same numbers, each vector in every second element of a larger one."""
    for one in inputs:
        yield torch.stack([one, one], -1).flatten()[::2] if one.ndim == 1 else one


def empty(function: Call, inputs: list[Tensor], example: Example) -> list[Tensor]:
    """A batch of nothing."""
    return gradients(function, [one[:0] if number in example.batched else one for number, one in enumerate(inputs)])


def converted(dtype: torch.dtype) -> Way:
    """Gradients in another type."""
    return lambda function, inputs: gradients(function, [one.to(dtype) for one in inputs])


def forward_of(dtype: torch.dtype) -> Way:
    """The output for whole numbers of a type."""
    return lambda function, inputs: [again(function)(*((one * 8).round().to(dtype) for one in inputs))]


def no_dimension(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Tensors without a dimension."""
    return [again(function)(*(one.flatten()[0] for one in inputs))]


def on_meta(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Tensors that have no memory: only shapes and types are known."""
    own = [one.to("meta").requires_grad_() for one in inputs]
    y = again(function)(*own)
    made = [y, *torch.autograd.grad(y, own, torch.empty_like(y))]
    return [torch.zeros(one.shape, dtype=one.dtype) for one in made]


def fake(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Tensors of torch's FakeTensorMode."""
    torch.manual_seed(SEED)
    with FakeTensorMode() as mode:
        y = function(*map(mode.from_tensor, inputs))
    assert y.device == inputs[0].device
    return [torch.zeros(y.shape, dtype=y.dtype)]


def mixed_devices(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """One input on another device than the other inputs."""
    *others, last = inputs
    if not others:
        raise LookupError("it has one input")
    return [function(*others, last.to("meta")).cpu()]


class Marked(torch.Tensor):  # type: ignore[misc]
    """A tensor of the user's own class."""


def subclass(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """A subclass of torch.Tensor, which the result belongs to."""
    y = again(function)(*(one.as_subclass(Marked) for one in inputs))
    assert isinstance(y, Marked), type(y)
    return [y.as_subclass(torch.Tensor)]


class Names(TorchDispatchMode):  # type: ignore[misc]
    """Notes which operators are called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function.name())
        return function(*args, **(kwargs or {}))


def dispatch_mode(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """A mode that sees each operator, as torch's counters of FLOPs have it."""
    with Names() as names:
        made = gradients(function, inputs)
    assert names.seen
    return made


class Passing(TorchFunctionMode):  # type: ignore[misc]
    """Changes nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def function_mode(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """A mode that sees functions of torch, as torch.set_default_device makes one."""
    with Passing(), torch.device(inputs[0].device):
        return gradients(function, inputs)


def default_dtype(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Another default type of torch."""
    torch.set_default_dtype(torch.float64)
    try:
        return gradients(function, inputs)
    finally:
        torch.set_default_dtype(torch.float32)


def distributed(function: Call, inputs: list[Tensor], example: Example) -> list[Tensor]:
    """DTensor: the batch lies on several ranks, all other inputs are the same on each. Torch draws masks of its own."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    with one_rank(inputs[0].device.type) as mesh:
        own = [
            distribute_tensor(one, mesh, [Shard(0) if number in example.batched else Replicate()]).requires_grad_()
            for number, one in enumerate(inputs)
        ]
        y = again(function)(*own)
        assert isinstance(y, DTensor)
        y = y.redistribute(placements=[Replicate() if one.is_partial() else one for one in y.placements])
        slope = distribute_tensor(ramp(y.full_tensor()), mesh, y.placements)
        made = [one.full_tensor() for one in (y, *torch.autograd.grad(y, own, slope))]
    if not example.draws:
        return made
    # Torch's mask, which ours doesn't repeat: each element is dropped or multiplied by one number.
    full = ramp(made[0])
    factors = (made[1][full != 0] / full[full != 0]).tolist()
    assert {round(factor, 4) for factor in factors} == {0.0, round(1 / (1 - P), 4)}
    return []


@contextmanager
def one_rank(device: str) -> Iterator[Any]:
    """A process group of this process alone, as a mesh.

    Torch has its hook for exceptions say the rank of a process group, and leaves the hook there: it is put back.
    """
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    hook = sys.excepthook
    dist.init_process_group("gloo" if device == "cpu" else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook
