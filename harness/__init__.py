"""Measure GPU operators honestly: bundled CUDA kernels beside PyTorch, against what the memory can do.

    import harness as hb

    t = hb.time(torch.softmax, x, -1)
    r = hb.race({"ours": f, "eager": g}, x, baseline="eager")
    run = hb.run("softmax", variants=["tuned"])

`harness.api` says what each of them does. They are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.api import compare, load, op, race, run, time

__version__ = "0.2.0"
__all__ = ["compare", "load", "op", "race", "run", "step", "time"]
_watching: list[Callable[[], None]] = []
"""What wants to know of steps: a profiler around the program."""


def step() -> None:
    """Say that a step of this program ends here.

    `harness profile torch -- python train.py` counts these steps in place of an optimizer's. Elsewhere it does nothing.
    """
    for told in _watching:
        told()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    from harness import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
