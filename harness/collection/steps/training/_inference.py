"""Calls of a model for inference, made one by one or as a CUDA graph, with their figures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from harness.collection.steps.training import _facts
from harness.collection.steps.training._settings import captured, math_modes, side_stream
from harness.ops import Context, Launch, Tensors

Model = Callable[[Any], Any]
Data = Callable[[Context], dict[str, Any]]
"""What an op's `make` is: it gives the one tensor that a call takes, by its name."""
WARM = 3
"""Calls before a graph is captured or memory is counted, in which libraries choose their kernels."""


def launching(ctx: Context, make_model: Callable[[Context], Model], data: Data, result: str) -> Launch:
    """A call of the model without gradients. result: the name that its result gets."""
    import torch

    before = _facts.allocated(ctx)
    choosing(ctx)
    model = make_model(ctx)
    own = Tensors(**data(ctx))
    (name,) = vars(own)

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            setattr(t, result, model(getattr(t, name)))

    for _ in range(WARM):
        launch(own)
    _facts.report_bytes(ctx, model, partial(launch, own))
    _facts.with_memory(ctx, partial(launch, own), before)
    ctx.afterwards(lambda: _facts.report_steps(ctx, partial(launch, own), ctx.s.B))
    return launch


def replaying(ctx: Context, make_model: Callable[[Context], Model], data: Data, result: str) -> Launch:
    """A replay of the model as a CUDA graph. It reads its tensor at one place, so a call's is copied there first."""
    import torch

    before = _facts.allocated(ctx)
    choosing(ctx)
    model = make_model(ctx)
    ((name, given),) = data(ctx).items()
    with torch.inference_mode():
        with side_stream():
            for _ in range(WARM):
                model(given)
            _facts.report_bytes(ctx, model, lambda: model(given))
        replay = _facts.with_memory(ctx, lambda: captured(lambda: model(given)), before)

    def launch(t: Tensors) -> None:
        with torch.inference_mode():
            given.copy_(getattr(t, name))
        setattr(t, result, replay())

    own = Tensors(**data(ctx))
    ctx.afterwards(lambda: _facts.report_steps(ctx, partial(launch, own), ctx.s.B))
    return launch


def choosing(ctx: Context) -> None:
    """Let cuDNN try its algorithms until the case is over."""
    modes = ExitStack()
    modes.enter_context(math_modes(tf32=False))
    ctx.defer(modes.close)
