"""NVTX ranges inside a training step, for a profiler that listens: forward, backward, optimizer, and each block.

Blocks have ranges in the forward and in the backward. Without such a profiler nothing of a step is changed. Compiled
code has no ranges of blocks. A replay of a graph has no range at all; its capture has them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from harness.collection.models.files import blocks_of
from harness.ranges import NvtxRange

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.training._trainer import Trainer

PROFILER = "NVTX_INJECTION64_PATH"
"""The environment variable by which a profiler tells NVTX of itself: its library's path."""
PARTS = {"_forward": "forward", "_differentiate": "backward", "_update": "optimizer"}
"""The methods of a trainer that are the parts of a step, and the ranges that they run in."""


def add_where_wanted(trainer: Trainer) -> None:
    """Put the trainer's steps in ranges, if a profiler listens."""
    if not os.environ.get(PROFILER):
        return
    for method, name in PARTS.items():
        setattr(trainer, method, _within(name, getattr(trainer, method)))
    if not trainer.rung.compiled:
        for name, block in blocks_of(trainer.model).items():
            _watch(block, f"block {name}")


def _within(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(part)
    def ranged(*arguments: Any) -> Any:
        with NvtxRange(name):
            return part(*arguments)

    return ranged


def _watch(module: torch.nn.Module, name: str) -> None:
    """Open a range around the module's forward, and around its backward on the thread that makes it."""
    forward, backward = NvtxRange(name), NvtxRange(name)
    module.register_forward_pre_hook(lambda *_: forward.__enter__())
    module.register_forward_hook(lambda *_: forward.__exit__())
    module.register_full_backward_pre_hook(lambda *_: backward.__enter__())
    module.register_full_backward_hook(lambda *_: backward.__exit__())
