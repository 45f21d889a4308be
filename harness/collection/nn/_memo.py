"""Functions that do what their first call did, by the launcher in C: no Python runs between a call and the driver.

A call is known by the sizes, strides, types and devices of its tensors and by all other arguments. What it did is known
if it launched one of the catalogue's kernels, and nothing else, on its arguments and on what it gives back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

# `from harness.collection.nn import` would name every kernel of the package as code of whoever imports this file.
import harness.collection.nn._kernels as _kernels  # noqa: PLR0402
from harness.collection.nn._kernels import KernelLaunch
from harness.cuda import native
from harness.cuda.replay import Replay, TorchWatch

_KEPT = 4096  # calls that a function knows; the one that it learnt first goes first


class Memo:
    """The function `run` of tensors and numbers; `call` is how to call it. Where nothing is known, it is `run`."""

    every: ClassVar[list[Memo]] = []

    def __init__(self, run: Callable[..., Any]) -> None:
        self.call: Callable[..., Any] = self._first
        self._run = run
        self._known: dict[Any, Any] = {}
        self.every.append(self)

    def forget(self) -> None:
        """Know nothing any more."""
        self._known.clear()

    def _first(self, *arguments: Any) -> Any:
        """The first call with tensors of a GPU finds the launcher: without a GPU it isn't needed."""
        if not any(isinstance(value, Tensor) and value.is_cuda for value in arguments):
            return self._run(*arguments)
        launcher = native.launcher()
        self.call = self._run if launcher is None else self._by(launcher)
        return self.call(*arguments)

    def _by(self, launcher: Any) -> Callable[..., Any]:
        # The compiled function looks for the key and the plan; where it finds none, it calls `_learn`.
        ways = _kernels._EMPTY, _kernels._DEVICE, _kernels._STREAM
        made: Callable[..., Any] = launcher.Memo(
            self._learn, self._known, Tensor, torch.nn.Parameter, *ways, _kernels.LAUNCHED
        )
        return made

    def _learn(self, key: Any, *arguments: Any) -> Any:
        """Make the call, and note what it does. key: what the call is known by, or None if by nothing."""
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if key is None or key in self._known or len({*map(id, tensors)}) < len(tensors):
            # Two arguments that are the same tensor couldn't be told from each other in a launch.
            return self._run(*arguments)
        with _kernels.CALLS.taken() as calls, TorchWatch() as watch:
            made = self._run(*arguments)
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)), None)
        self._known[key] = _plan(calls, arguments, made) if watch.harmless else None
        return made


def _plan(calls: Sequence[tuple[KernelLaunch, Replay | None, Sequence[Tensor]]], given: Any, made: Any) -> Any:
    """The plan that repeats a call: its launch, if there was one and no more, on what was given and made."""
    launch, replay, tensors = calls[0] if len(calls) == 1 else (None, None, ())
    if launch is None or replay is None:
        return None
    outputs = made if isinstance(made, tuple) else (made,)
    places = {id(value): place for place, value in enumerate((*given, *outputs))}
    wanted = [tensor for tensor in tensors if tensor.numel()]
    is_whole = all(id(tensor) in places for tensor in wanted) and not {*map(id, given)} & {*map(id, outputs)}
    launcher = native.launcher()
    if launcher is None or not is_whole:
        return None
    try:
        return launcher.Plan(
            launch.wanted.op.name,
            len(given),
            tuple((tuple(output.shape), output.stride(), output.dtype) for output in outputs),
            not isinstance(made, tuple),
            ((replay.workspace,), (1,), torch.uint8) if replay.workspace else None,
            launch.device,
            [places[id(tensor)] if tensor.numel() else -1 for tensor in tensors],
            replay.offsets,
            replay.words,
            [
                (function, shape.blocks, shape.block, shape.shared, shape.cluster or 0, row)
                for function, shape, row in replay.steps
            ],
        )
    except ValueError:  # more tensors or arguments than the launcher has room for
        return None
