"""What the PyTorch baselines of several ops share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled by torch.compile for exactly the shapes that it is called with.

    Compiled functions share a budget of recompilations for one code object, after which torch silently runs them
    eagerly; a reset gives each case the whole budget.
    """
    import torch

    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True)  # type: ignore[no-any-return]
