"""How functions of tensors with gradients become operators of torch, and how eager calls bypass the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import torch

Run = Callable[..., Any]
Saves = Callable[[Any, tuple[Any, ...], Any], None]
"""What torch calls setup_context: it keeps what the backward needs, of the inputs and the output."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, NoneType, int, float, bool})


def operator(  # noqa: PLR0913, PLR0917 - what makes an operator
    name: str, schema: str, run: Run, fake: Run, saves: Saves | None = None, backward: Run | None = None
) -> Run:
    """The operator harness::<name>, which a compiler takes as it is. run: what it does. fake: makes empty outputs.

    backward: with what `saves` kept, the gradients of the inputs; without both of them it has none. Autocast changes
    nothing inside of it. A call of it with plain tensors, outside of a compiler, goes straight to `run`: on its way
    through torch's dispatcher the host would spend more time than on the rest of the call.
    """
    opaque = torch.library.custom_op(f"harness::{name}", _without_autocast(run), mutates_args=(), schema=schema)
    opaque.register_fake(fake)
    if saves and backward:
        opaque.register_autograd(backward, setup_context=saves)
        straight = differentiable(name, run, saves, backward)
    else:
        straight = _refusing_gradients(opaque, _without_autocast(run))

    def call(*arguments: Any) -> Any:
        return straight(*arguments) if is_eager(arguments) else opaque(*arguments)

    return call


def is_eager(arguments: tuple[Any, ...]) -> bool:
    """Whether nobody looks at calls with these arguments but autograd: no compiler, tracer, mode or own tensors."""
    return (
        not torch.compiler.is_compiling()
        and _PLAIN.issuperset(map(type, arguments))
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._is_tracing()
    )


def differentiable(name: str, run: Run, saves: Saves, backward: Run) -> Run:
    """The function `run` with gradients, for plain tensors. Its first output alone has a gradient."""
    direct = _without_autocast(run)

    def forward(ctx: Any, *arguments: Any) -> Any:
        # Torch would make zeros for the outputs that have no gradient, with a launch each.
        ctx.set_materialize_grads(False)
        made = direct(*arguments)
        saves(ctx, arguments, made)
        return made

    def gradients(ctx: Any, *slopes: Any) -> Any:
        return (None,) * len(ctx.needs_input_grad) if slopes[0] is None else backward(ctx, *slopes)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    function: Any = type(name, (torch.autograd.Function,), methods)

    def call(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return function.apply(*arguments)
        return direct(*arguments)

    return call


def _refusing_gradients(opaque: Run, direct: Run) -> Run:
    """The function `direct`, but where a gradient is wanted the operator itself, whose backward is an error."""

    def call(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return opaque(*arguments)
        return direct(*arguments)

    return call


def _without_autocast(run: Run) -> Run:
    def call(*arguments: Any) -> Any:
        with torch._C._DisableAutocast():
            return run(*arguments)

    return call
