"""References of other projects' forms: what they offer, and how results are compared with theirs."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from harness import devices, intact
from harness.judge import data
from harness.judge.records import Sheet
from harness.ops import Expected, comparer

if TYPE_CHECKING:
    import torch

NAME = "judged"
"""The name of the op."""
TOLERANCE = {"float64": 1e-7, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Relative and absolute error that a result may have, as KernelBench allows it for halves and floats."""

IN_ONE_FILE = (
    "The reference stands in the candidate's own file, which could bend it: --reference FILE names another one."
)

Function = Callable[[Any], Any]
"""Gives the outputs for a form's data."""


class Reference(Protocol):
    """A form's reference, loaded. call: as its author wrote it. precisely: in float64. weights: bytes of parameters."""

    weights: int

    def inputs(self, arguments: dict[str, Any], seed: int) -> Any: ...

    def call(self, values: Any) -> Any: ...

    def precisely(self, values: Any) -> Any: ...

    def complaint(self, values: Any, outputs: Any) -> str | None: ...

    @property
    def decides(self) -> bool:
        """Whether `complaint` says what is right."""

    def vary(self, arguments: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]: ...


Loads = Callable[[Sheet], Reference]
Makes = Callable[[Sheet, Reference], Function]
"""Gives the candidate's function."""


def torch_device(sheet: Sheet) -> torch.device:
    """Torch's device of the sheet's kind."""
    return devices.kinds()[sheet.device].torch_device


def seed_all(place: torch.device, seed: int) -> None:
    """Seed the generators of torch, of numpy if it is loaded, and of Python.

    torch.manual_seed takes milliseconds where no GPU is.
    """
    import torch

    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if place.type == "cuda":
        torch.cuda.manual_seed_all(seed)


@contextmanager
def exactly() -> Iterator[None]:
    """Without TF32 or anything else less precise than the type, and without gradients."""
    import torch

    with intact.settings_kept():
        for part in intact.precisions():
            part.fp32_precision = "ieee"
        with torch.no_grad():
            yield


def copied(values: Any) -> Any:
    """The same data with tensors in memory of their own."""
    return data.mapped(values, lambda tensor: tensor.clone())


def compared(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> Iterator[Expected | str]:
    """Each output with what it must be. The absolute error is scaled where outputs are small: zeros are never right."""
    for number, (one, want) in enumerate(zip(got, wanted, strict=True)):
        relative = TOLERANCE.get(str(one.dtype).removeprefix("torch."), 0.0)
        if one.shape != want.shape or not want.dtype.is_floating_point or not want.numel():
            yield Expected(f"y{number}", one, want)
            continue
        absolute = relative * min(1.0, _typical(want))
        flat, wide = one.reshape(-1), want.reshape(-1)
        for start in range(0, wide.numel(), comparer.CHUNK):
            here = slice(start, start + comparer.CHUNK)
            allowed = absolute + relative * wide[here].abs()
            yield Expected(f"y{number}", flat[here], wide[here], allowed, start)


def _typical(values: torch.Tensor) -> float:
    """The root of the mean square of the values that are finite."""
    import torch

    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    if not norm.isfinite():
        norm = torch.linalg.vector_norm(values[values.isfinite()], dtype=torch.float64)
    return float(norm) / math.sqrt(values.numel())
