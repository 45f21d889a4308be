"""What the PyTorch baselines of several ops share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.ops.declarations import ANY_DEVICE
from harness.ops.sheet import Context, Op
from harness.ops.variant import Launch

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Compiles a function by torch.compile in one of its modes."""

MODES = {"compile": "default", "compile_autotune": "max-autotune-no-cudagraphs"}
"""Variants of torch.compile, each with its mode. The second one tries several launches of each kernel, on GPUs only."""


def compiled(function: Callable[..., Any], mode: str = "default") -> Callable[..., Any]:
    """`function`, compiled by torch.compile for exactly the shapes that it is called with.

    Compiled functions share a budget of recompilations for one code object, after which torch silently runs them
    eagerly; a reset gives each case the whole budget.
    """
    import torch

    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True, mode=mode)  # type: ignore[no-any-return]


def compiled_variants(
    op: Op, summary: str, *, returns: bool = True, **options: Any
) -> Callable[[Callable[[Context, Compile], Launch]], Callable[[Context, Compile], Launch]]:
    """Decorator that adds a baseline for each mode of torch.compile: `compile` and `compile_autotune`.

    The decorated function is called with the context and with what compiles a function in the variant's mode. options:
    fields of Variant, the same for both. `compile` runs on any device, the other one only on cuda: on a CPU it makes
    the same code of everything but matrix products.
    """

    def add(prepare: Callable[[Context, Compile], Launch]) -> Callable[[Context, Compile], Launch]:
        for name, mode in MODES.items():
            shared = options | {"role": "baseline", "devices": (ANY_DEVICE,) if mode == "default" else ("cuda",)}
            said = summary if mode == "default" else f"{summary}; mode {mode}"
            op.variant(name, said, returns=returns, **shared)(_in_mode(prepare, mode))
        return prepare

    return add


def _in_mode(prepare: Callable[[Context, Compile], Launch], mode: str) -> Callable[[Context], Launch]:
    return lambda ctx: prepare(ctx, partial(compiled, mode=mode))
