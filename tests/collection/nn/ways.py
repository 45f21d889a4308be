"""Ways to call a function that torch offers: in a transform, a checkpoint, compiled, and so on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.collection.nn.examples import SEED, Call, again, gradients, leaves, ramp


def some_gradients(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of one input after the other, while no other one wants any."""
    made = []
    for wanted in range(len(inputs)):
        own = [one.detach().clone().requires_grad_(number == wanted) for number, one in enumerate(inputs)]
        y = again(function)(*own)
        made += torch.autograd.grad(y, own[wanted], ramp(y))
    return made


def without_gradients(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The output without gradients, in both ways to say so."""
    with torch.no_grad():
        first = again(function)(*leaves(inputs))
    with torch.inference_mode():
        second = again(function)(*[one.clone() for one in inputs]).clone()
    assert not first.requires_grad
    return [first, second]


def double_backward(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The gradients, and the gradients of a function of them, also for the gradient of the output."""
    own = leaves(inputs)
    y = again(function)(*own)
    slope = ramp(y).requires_grad_()
    first = torch.autograd.grad(y, own, slope, create_graph=True)
    total = sum((one.square() * ramp(one)).sum() for one in first)
    second = torch.autograd.grad(total, [*own, slope], allow_unused=True)
    return [*first, *(one for one in second if one is not None and one.any())]


def func_grad(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.func.grad for all inputs, and torch.func.vjp."""

    def total(*own: Tensor) -> Tensor:
        y = function(*own)
        return (y * ramp(y)).sum()

    made = again(torch.func.grad(total, tuple(range(len(inputs)))))(*inputs)
    torch.manual_seed(SEED)
    y, pull = torch.func.vjp(function, *inputs)
    return [*made, y, *pull(ramp(y))]


def func_jvp(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.func.jvp."""
    torch.manual_seed(SEED)
    return [*torch.func.jvp(function, tuple(inputs), tuple(map(ramp, inputs)))]


def dual_numbers(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The forward mode of torch.autograd, also where a gradient is wanted besides."""
    made = []
    for primals in (inputs, leaves(inputs)):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(one, ramp(one)) for one in primals]
            y, tangent = forward_ad.unpack_dual(again(function)(*duals))
        assert tangent is not None, "the derivative is lost"
        made += [y, tangent]
    return made


def func_vmap(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.func.vmap: the first input along its last dimension, the other inputs along their first one."""
    return [again(_mapped(function, inputs))(*_several(inputs))]


def vmap_of_grad(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients of each sample."""

    def total(*own: Tensor) -> Tensor:
        y = function(*own)
        return (y * ramp(y)).sum()

    return [again(_mapped(torch.func.grad(total), inputs))(*_several(inputs))]


def _mapped(function: Call, inputs: Sequence[Tensor]) -> Call:
    return torch.func.vmap(function, (-1, *[0] * (len(inputs) - 1)), randomness="same")  # type: ignore[no-any-return]


def _several(inputs: Sequence[Tensor]) -> list[Tensor]:
    first, *others = inputs
    return [torch.stack([first, first / 2], -1), *(torch.stack([one, one / 2]) for one in others)]


def forward_over_reverse(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """The product of the Hessian and a vector, as torch.func.jvp of torch.func.grad."""

    def total(*own: Tensor) -> Tensor:
        y = function(*own)
        return (y * ramp(y)).square().sum()

    torch.manual_seed(SEED)
    every = tuple(range(len(inputs)))
    made, product = torch.func.jvp(torch.func.grad(total, every), tuple(inputs), tuple(map(ramp, inputs)))
    return [*made, *product]


def batched_gradients(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Gradients for several gradients of the output at once, as torch.autograd.functional.jacobian makes them."""
    own = leaves(inputs)
    y = again(function)(*own)
    slopes = torch.stack([ramp(y), ramp(y) / 2 + 1])
    return [*torch.autograd.grad(y, own, slopes, is_grads_batched=True)]


def checkpointed(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.utils.checkpoint, in both ways. The generator goes on between the forward and the backward."""
    made = []
    for reentrant in (False, True):
        own = leaves(inputs)
        torch.manual_seed(SEED)
        y = checkpoint(function, *own, use_reentrant=reentrant)
        torch.rand(5, device=y.device)
        made += [y, *torch.autograd.grad(y, own, ramp(y))] if not reentrant else [y, *_backward(y, own)]
    return made


def _backward(y: Tensor, own: Sequence[Tensor]) -> list[Tensor]:
    y.backward(ramp(y))
    return [one.grad for one in own if one.grad is not None]


def offloaded(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.autograd.graph.save_on_cpu."""
    with torch.autograd.graph.save_on_cpu():
        return gradients(function, inputs)


def under_autocast(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """Autocast changes no type: the result has the type of the first input, and gradients the types of theirs."""
    kind = torch.bfloat16 if inputs[0].dtype == torch.float32 else torch.float16
    with torch.autocast(inputs[0].device.type, kind):
        made = gradients(function, inputs)
        of_halves = gradients(function, [one.to(kind) for one in inputs])
    assert {one.dtype for one in made} == {inputs[0].dtype}
    assert {one.dtype for one in of_halves} == {kind}
    return made


def compiled(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.compile without a break in the graph."""
    return gradients(torch.compile(function, fullgraph=True, backend="aot_eager"), inputs)


class Module(torch.nn.Module):  # type: ignore[misc]
    """The function as a module."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def exported(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """torch.export."""
    return [again(torch.export.export(Module(function), tuple(inputs)).module())(*inputs)]


def in_a_graph(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    """A CUDA graph of the forward and the backward."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            gradients(function, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph, own = torch.cuda.CUDAGraph(), leaves(inputs)
    with torch.cuda.graph(graph):
        y = function(*own)
        made = [y, *torch.autograd.grad(y, own, ramp(y))]
    torch.manual_seed(SEED)
    graph.replay()
    return [one.clone() for one in made]
