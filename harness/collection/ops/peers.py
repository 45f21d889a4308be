"""Kernels of other libraries for language models: Liger (linkedin/Liger-Kernel) and QuACK (Dao-AILab/quack).

Both compile their kernels at their first call, by Triton and by the CuTe DSL. Neither is installed with the harness.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from harness.model import Case

_PACKAGES = {"liger_kernel": "liger-kernel", "quack": "quack-kernels"}
"""The package to install, by the name of its module."""


def lacks(module: str) -> Callable[[Case], str | None]:
    """What says why a peer can't run a case: its library isn't installed. It imports nothing."""
    package = _PACKAGES[module]
    return lambda _: None if find_spec(module) else f"{package} isn't installed: pip install {package}"


def of(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module, such as 'quack.rmsnorm'."""
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
