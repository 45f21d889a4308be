"""Calls of single variants on tensors that a test makes, outside of `measure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.model import Case
from harness.ops import Catalogue, Context, Tensors


@pytest.fixture(scope="session")
def launch() -> Callable[..., None]:
    """launch(op, variant, dtype, shape, tensors...) prepares the variant on the GPU, calls it once and waits."""
    import torch

    catalogue = Catalogue()

    def call(op: str, variant: str, dtype: str, shape: dict[str, int], **tensors: Any) -> None:
        case = Case(op, variant, dtype, tuple(shape.items()))
        place = torch.device("cuda")
        ctx = Context(case, getattr(torch, dtype), place, torch.Generator(place).manual_seed(0), catalogue[op])
        catalogue[op].variants[variant].prepare(ctx)(Tensors(**tensors))
        torch.cuda.synchronize()

    return call
