"""How functions of tensors with gradients become operators of torch, and how eager calls bypass the dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from types import NoneType
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

from harness.collection.nn._memo import Memo

P = ParamSpec("P")
T = TypeVar("T")
Run = Callable[..., Any]
Saves = Callable[[Any, tuple[Any, ...], Any], None]
"""Function that keeps what the backward needs, of the inputs and of what was made."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, NoneType, int, float, bool})
# Each of these is a call into C. To find them through the module takes as long as to call them.
_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad
_modes = torch._C._len_torch_dispatch_stack
_transformed = torch._C._are_functorch_transforms_active
_tracing = torch._C._is_tracing
_compiling = torch.compiler.is_dynamo_compiling
_batched = torch._C._functorch.is_legacy_batchedtensor


def operator(  # noqa: PLR0913, PLR0917 - what makes an operator
    name: str,
    schema: str,
    run: Run,
    fake: Run,
    saves: Saves | None = None,
    backward: Run | None = None,
    *,
    slopes: int = 1,
    formula: Run | None = None,
    backward_formula: Run | None = None,
) -> Run:
    """The operator harness::<name>, which a compiler takes as it is. run: what it does. fake: makes empty outputs.

    A call may do what an earlier call of `run` did with other tensors, without `run`.

    backward: with what `saves` kept, the gradients of the inputs for the first output's; without both of them it has
    none. slopes: how many of the first outputs have gradients; `backward` gets as many, of which some may be None. A
    call of it with plain tensors, outside of a compiler, goes straight to `run`: on its way through torch's dispatcher
    the host would spend more time than on the rest of the call. So does a call from compiled code.

    formula: the outputs with gradients by torch's functions, of the same arguments. Transforms of torch.func,
    forward-mode differentiation and distributed tensors take it; without it a call raises RuntimeError there.
    backward_formula: the gradients of `backward` by torch's functions, of what `saves` kept. A backward that is to be
    differentiated (create_graph), or of a batch of slopes (is_grads_batched), takes them; without them, `backward`.

    What is made here gives the outputs with gradients alone where the operator has a backward, all of them where it has
    none.
    """
    run = quick(run)
    opaque = opaque_operator(name, schema, run, fake)
    has_gradients = saves is not None and backward is not None
    with_gradients = _refusing(f"harness.nn has no gradient of {name}")
    by_formula = formula or _refusing(f"{name} of harness.nn has no formula for torch.func, dual numbers or DTensor")
    if saves is not None and backward is not None:
        opaque.register_autograd(_of_outputs(backward, backward_formula, slopes), setup_context=_marking(saves, slopes))
        with_gradients = differentiable(name, run, saves, backward, backward_formula, slopes)

    def call(*arguments: Any) -> Any:
        if not is_eager(arguments):
            if is_for_torch(arguments):
                return by_formula(*arguments)
            made = opaque(*arguments)
        elif _grad_enabled() and _any_requires_grad(*arguments):
            return with_gradients(*arguments)
        else:
            made = run(*arguments)
        return _with_slopes(made, slopes) if has_gradients else made

    return call


def opaque_operator(name: str, schema: str, run: Run, fake: Run, tags: Sequence[torch.Tag] = ()) -> Any:
    """The operator harness::<name> without a gradient, as torch's dispatcher has it."""
    made = torch.library.custom_op(f"harness::{name}", run, mutates_args=(), schema=schema, tags=tags)
    made.register_fake(fake)
    made._opoverload._op = _Bypass(made._opoverload._op, run)
    return made


def _refusing(message: str) -> Run:
    """Function that raises RuntimeError."""

    def refuse(*_: Any) -> Any:
        raise RuntimeError(f"{message}: use torch's own functions there")

    return refuse


def straight(name: str, run: Run, saves: Saves, backward: Run, backward_formula: Run) -> Run:
    """The first output of `run`, with gradients where they are wanted, for plain tensors outside of a compiler."""
    run = quick(run)
    with_gradients = differentiable(name, run, saves, backward, backward_formula)

    def call(*arguments: Any) -> Any:
        if _grad_enabled() and _any_requires_grad(*arguments):
            return with_gradients(*arguments)
        made = run(*arguments)
        return made[0] if isinstance(made, tuple) else made

    return call


def quick(run: Run) -> Run:
    """The function `run`, by the launcher in C where that has learnt what it does."""
    memo = Memo(run)

    def call(*arguments: Any) -> Any:
        return memo.call(*arguments)

    return call


def is_eager(arguments: tuple[Any, ...]) -> bool:
    """Whether nobody looks at calls with these arguments but autograd: no compiler, tracer, mode or own tensors."""
    return not (
        _compiling()
        or not _PLAIN.issuperset(map(type, arguments))
        or _modes()
        or _transformed()
        or forward_ad._current_level >= 0
        or _tracing()
    )


def is_for_torch(arguments: tuple[Any, ...]) -> bool:
    """Whether only torch's own functions can do a call that isn't eager, since an operator would hide what it does.

    They can do it under a transform of torch.func, inside of a level of forward-mode differentiation, and for DTensor.
    """
    if _transformed() or forward_ad._current_level >= 0:
        return True
    return not _compiling() and are_distributed(arguments)


def are_distributed(arguments: Sequence[Any]) -> bool:
    """Whether some of the arguments are distributed tensors. Only who has imported torch's DTensor can have any."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(value, module.DTensor) for value in arguments)


def differentiable(  # noqa: PLR0913, PLR0917 - what an operator is made of
    name: str, run: Run, saves: Saves, backward: Run, backward_formula: Run | None, slopes: int = 1
) -> Run:
    """The first `slopes` outputs of `run` with gradients, for plain tensors of which some want a gradient."""

    def forward(ctx: Any, *arguments: Any) -> Any:
        ctx.set_materialize_grads(False)
        made = run(*arguments)
        saves(ctx, arguments, made)
        return _with_slopes(made, slopes)

    methods = {
        "forward": staticmethod(forward),
        "backward": staticmethod(_of_outputs(backward, backward_formula, slopes)),
    }
    function: Any = type(name, (torch.autograd.Function,), methods)
    # What Function.apply does before it has been done: there are no transforms and no dead wrappers of any.
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return]


def without_autocast(run: Callable[P, T]) -> Callable[P, T]:
    """The function with autocast off: what computes with torch in place of a kernel keeps its types."""

    @wraps(run)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        # A compiler knows one of both ways, which takes the host longer and is of one kind of device.
        device = arguments[0].device.type if _compiling() else None  # type: ignore[attr-defined]
        with torch._C._DisableAutocast() if device is None else torch.autocast(device, enabled=False):
            return run(*arguments, **options)

    return call


def _with_slopes(made: Any, slopes: int) -> Any:
    """The first output of what was made, or a tuple of the first ones."""
    if not isinstance(made, tuple):
        return made
    return made[0] if slopes == 1 else made[:slopes]


def _marking(saves: Saves, slopes: int) -> Saves:
    """What torch calls setup_context: all outputs but the first ones have no gradient."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # Torch would make zeros for the outputs that have no gradient, with a launch each.
        ctx.set_materialize_grads(False)
        saves(ctx, inputs, output)
        if isinstance(output, tuple):
            ctx.mark_non_differentiable(*output[slopes:])

    return setup


def _of_outputs(backward: Run, backward_formula: Run | None, slopes: int) -> Run:
    """What torch calls backward."""
    to_differentiate = backward_formula or backward

    def gradients(ctx: Any, *given: Any) -> Any:
        wanted = given[:slopes]
        if all(slope is None for slope in wanted):
            return (None,) * len(ctx.needs_input_grad)
        # Batched slopes (is_grads_batched) look like tensors, and have no memory.
        by_torch = _grad_enabled() or any(slope is not None and _batched(slope) for slope in wanted)
        return to_differentiate(ctx, *wanted) if by_torch else backward(ctx, *wanted)

    return gradients


class _Bypass:
    """What torch.ops.harness.<name>.default calls: `run` where nobody looks at the call, else torch's dispatcher.

    Code by torch.compile calls that object. Its own way, through the dispatcher and back to Python, takes the host
    longer than the rest of the call. It counts as the function that it replaces, since torch's tables have that one.
    """

    def __init__(self, dispatched: Any, run: Run) -> None:
        self._dispatched, self._run = dispatched, run

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not options and is_eager(arguments) and not (_grad_enabled() and _any_requires_grad(*arguments)):
            return self._run(*arguments)
        return self._dispatched(*arguments, **options)

    def __hash__(self) -> int:
        return hash(self._dispatched)

    def __eq__(self, other: object) -> bool:
        return bool(self._dispatched == (other._dispatched if isinstance(other, _Bypass) else other))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatched, name)
