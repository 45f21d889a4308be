"""Modules of torch that run by our kernels: their class is replaced by one with another forward.

A class is replaced, not the module: its parameters, hooks, mode and place in the model stay. `modules` and `calls` give
(name, was, now or why, undo); where undo is None, the module stays as it was, for the reason that stands in place of
`now`.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from harness.collection.nn._dropout import dropout
from harness.collection.nn._patched_attention import attention
from harness.collection.nn._patched_compiled import layer_norm, rms_norm, softmax

Found = tuple[str, str, str, Callable[[], object] | None]
_TRIED = ((4,), (2, 3), (2, 3, 5))
"""Sizes before the last one of the random numbers with which a class of somebody else is tried."""
CLOSE = 1e-4
"""How near a class of somebody else must be to ours in a try."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module keeps its hooks."""
HALVES = (torch.float16, torch.bfloat16)
_CHECKPOINTS = ("gradient_checkpointing", "grad_checkpointing")
"""What transformers' and timm's models say where they keep no activations."""
_EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""The names under which norms keep their epsilon."""


# ---- Forwards of ours. Arguments have the names that those of torch have, since a caller may write them.


def _layer_norm(module: Any, input: Tensor) -> Tensor:
    return layer_norm(input, module.weight, module.bias, epsilon_of(module))


def _rms_norm(module: Any, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight, epsilon_of(module))


def _softmax(module: Any, input: Tensor) -> Tensor:
    return softmax(input, module.dim)


def _dropout(module: Any, input: Tensor) -> Tensor:
    return dropout(input, module.p, module.training)


def epsilon_of(module: nn.Module) -> Any:
    """The epsilon of a norm; None where it has none, or one that depends on the type."""
    return next((getattr(module, name) for name in _EPSILONS if hasattr(module, name)), None)


# ---- Which modules they stand for.


def modules(model: nn.Module) -> Iterator[Found]:
    """Swap norms, softmax and dropout; say why others of their kind stay."""
    for name, module in list(model.named_modules()):
        kind = _kind(module)
        if not kind:
            continue
        was = type(module).__name__
        forward, why = _OURS[kind][1], untouchable(module) or _WHY[kind](module)
        if why:
            yield name, was, why, None
        else:
            yield name, was, f"nn.{kind}", swap(module, forward)


def _kind(module: nn.Module) -> str:
    """What a module may be: one of the names of `_OURS`; '' for all others, and for what is ours already."""
    if getattr(type(module), "is_ours", False):
        return ""
    found = next((kind for kind, (base, _) in _OURS.items() if isinstance(module, base)), "")
    return found or ("rms_norm" if "rmsnorm" in type(module).__name__.lower() else "")


def untouchable(module: nn.Module) -> str:
    """Why the class of a module can't be replaced; '' if it can."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a module of torch.jit"
    if is_parametrized(module):
        return "it is parametrized, by a class of its own"
    return "its forward was replaced by somebody" if "forward" in vars(module) else ""


def is_watched(module: nn.Module) -> bool:
    """Whether a module has hooks."""
    return any(getattr(module, name) for name in HOOKS)


def swap(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Give a module this forward. What is returned gives it its class back.

    That raises RuntimeError if the module has got another class meanwhile, by whoever did so.
    """
    before: Any = type(module)
    after = _with_forward(before, forward)
    module.__class__ = after

    def undo() -> None:
        if type(module) not in (before, after):
            raise RuntimeError(
                f"a {before.__name__} has become a {type(module).__name__} since it was patched: undo the patch before"
            )
        module.__class__ = before

    return undo


@cache
def _with_forward(kind: Any, forward: Callable[..., Any]) -> type:
    """A class like `kind` with another forward. Modules of one class share it, so that a compiler sees one class."""
    return type(kind.__name__, (kind,), {"forward": forward, "is_ours": True, "__module__": kind.__module__})


def _why_no_layer_norm(module: Any) -> str:
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or bias is None:
        return "it has no weight or no bias"
    if weight.ndim != 1:
        return f"it normalises over {weight.ndim} dimensions, ours over the last one"
    return _why_not_alike(
        module, nn.LayerNorm, lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b, epsilon_of(module))
    )


def _why_no_rms_norm(module: Any) -> str:
    weight = getattr(module, "weight", None)
    if weight is None or getattr(module, "bias", None) is not None:
        return "it has no weight, or a bias"
    if weight.ndim != 1:
        return f"it normalises over {weight.ndim} dimensions, ours over the last one"
    if epsilon_of(module) is None:
        named = any(hasattr(module, name) for name in _EPSILONS)
        none = f"it has no epsilon of the name {' or '.join(_EPSILONS)}"
        return "its epsilon isn't given, so it depends on the type" if named else none
    return _why_not_alike(module, nn.RMSNorm, lambda x, w: functional.rms_norm(x, x.shape[-1:], w, epsilon_of(module)))


def _why_not_alike(module: Any, base: Any, like: Callable[..., Tensor]) -> str:
    """Why a module doesn't compute what torch's function does, by a try with random numbers; '' if it does."""
    if isinstance(module, base) and type(module).forward is base.forward:
        return ""
    if any(True for _ in module.buffers()):
        return "it has buffers, which its own forward may change"
    own = [name for name, value in module.named_parameters(recurse=False)]
    generator = torch.Generator().manual_seed(1)
    width = len(module.weight)
    drawn = {name: torch.randn(width, generator=generator) for name in own}
    tried = bare(module)
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            for sizes, training in product(_TRIED, (True, False)):
                x, tried.training = torch.randn(*sizes, width, generator=generator), training
                got = torch.func.functional_call(tried, drawn, (x,))
                want = like(x, *(drawn[name] for name in ("weight", "bias") if name in drawn))
                alike = isinstance(got, Tensor) and got.shape == want.shape
                if not alike or not torch.allclose(got, want, CLOSE, CLOSE):
                    return "its own forward computes something else"
    except Exception as error:  # whatever somebody else's forward wants, it isn't what ours takes
        return f"its own forward can't be tried: {type(error).__name__}"
    return why_changed(tried, module)


def bare(module: Any) -> Any:
    """The module without its hooks, whose calls nobody asked for."""
    made = object.__new__(type(module))
    vars(made).update(vars(module))
    for name in HOOKS:
        vars(made)[name] = {}
    return made


def why_changed(tried: nn.Module, module: nn.Module) -> str:
    """Why a module that `bare` gave shows that a call stores something in the module; '' if it doesn't."""
    before, after = ({**vars(one), "training": None} for one in (bare(module), tried))
    names = [name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)]
    stored = sorted(set(names) - {*HOOKS})
    return f"its own forward stores {', '.join(stored)}" if stored else ""


def _why_no_softmax(module: Any) -> str:
    if type(module).forward is not nn.Softmax.forward:
        return "its class has a forward of its own"
    return "" if module.dim == -1 else f"its dimension is {module.dim}, ours is the last one, -1"


def _why_no_dropout(module: Any) -> str:
    if type(module).forward is not nn.Dropout.forward:
        return "its class has a forward of its own"
    if module.inplace:
        return "it works in place"
    return "" if module.p else "it drops nothing"


_OURS: dict[str, tuple[type, Callable[..., Any]]] = {
    "layer_norm": (nn.LayerNorm, _layer_norm),
    "rms_norm": (nn.RMSNorm, _rms_norm),
    "softmax": (nn.Softmax, _softmax),
    "dropout": (nn.Dropout, _dropout),
}
_WHY: dict[str, Callable[[Any], str]] = {
    "layer_norm": _why_no_layer_norm,
    "rms_norm": _why_no_rms_norm,
    "softmax": _why_no_softmax,
    "dropout": _why_no_dropout,
}


# ---- Functions that a forward calls.


def calls(model: nn.Module) -> Iterator[Found]:
    """Let functions of torch that a module's own forward calls be ours, where ours does the same."""
    checkpoints = any(getattr(one, flag, False) for one in model.modules() for flag in _CHECKPOINTS)
    for name, module in list(model.named_modules()):
        kind: Any = type(module)
        is_ours = getattr(kind, "is_ours", False) and not getattr(kind.forward, "is_rewritten", False)
        if _is_of_torch(kind.__module__) or is_ours:
            continue
        if named := sorted(_called(kind) & _FUNCTIONS.keys()):
            was = f"{kind.__name__} with {', '.join(named)}"
            if why := untouchable(module):
                yield name, was, why, None
            else:
                yield name, was, "the same functions of nn", swap(module, _with_ours(kind.forward, checkpoints))


@cache
def _with_ours(forward: Callable[..., Any], checkpoints: bool) -> Callable[..., Any]:
    def with_ours(self: Any, *args: Any, **kwargs: Any) -> Any:
        if checkpoints and torch.compiler.is_compiling():  # within a checkpoint, a mode stops the compiler
            return forward(self, *args, **kwargs)
        with _Calls():
            return forward(self, *args, **kwargs)

    return with_ours


def _called(kind: Any) -> set[str]:
    """Names of functions and methods that a forward uses, with what it calls by name: functions, methods of its own."""
    forward: Any = inspect.unwrap(kind.forward)  # below its decorators
    code = getattr(forward, "__code__", None)
    if code is None:
        return set()
    known = getattr(forward, "__globals__", {})
    below = [known.get(name) or getattr(kind, name, None) for name in code.co_names]
    own = [one for one in below if isinstance(one, types.FunctionType) and not _is_of_torch(one.__module__)]
    return set().union(*(_used(one) for one in (code, *(one.__code__ for one in own))))


def _used(code: types.CodeType) -> set[str]:
    """Names in a code, but for attributes of `self`, which are modules and settings."""
    steps = [*dis.get_instructions(code)]
    return {step.argval for before, step in pairwise(steps) if step.argval in code.co_names and before.argval != "self"}


def _is_of_torch(module: str | None) -> bool:
    return (module or "torch").partition(".")[0] == "torch"


class _Calls(TorchFunctionMode):
    """While it is on, functions of torch are ours where ours does the same."""

    def __torch_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = _BY_FUNCTION.get(function)
        made = ours(*args, **kwargs) if ours else None
        return function(*args, **kwargs) if made is None else made


# Each gives None where torch's function must do it.


# Arguments have torch's names, since a forward may give them by these.


def _call_softmax(input: Any, dim: int | None = None, *rest: Any, **more: Any) -> Tensor | None:
    plain = not rest and not any(value is not None for name, value in more.items() if name != "_stacklevel")
    fits = plain and input.ndim and dim in (-1, input.ndim - 1) and input.is_floating_point()
    return softmax(input, -1) if fits else None


def _call_layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor | None:
    fits = weight is not None and bias is not None and len(normalized_shape) == 1
    return layer_norm(input, weight, bias, eps) if fits else None


def _call_rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor | None:
    if weight is None or eps is None or len(normalized_shape) != 1:
        return None
    return rms_norm(input, weight, eps)


def _call_dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor | None:
    return dropout(input, p, training) if not inplace and input.is_floating_point() else None


_FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (_call_softmax, (functional.softmax, torch.softmax, Tensor.softmax)),
    "layer_norm": (_call_layer_norm, (functional.layer_norm,)),
    "rms_norm": (_call_rms_norm, (functional.rms_norm,)),
    "dropout": (_call_dropout, (functional.dropout,)),
}
_BY_FUNCTION = {
    **{function: ours for ours, functions in _FUNCTIONS.values() for function in functions},
    # Only in modules that call one of these, too: attention of timm and transformers is also written out, with softmax.
    functional.scaled_dot_product_attention: attention,
    Tensor.unflatten: torch.unflatten,  # within a mode, the compiler doesn't know the method
}
