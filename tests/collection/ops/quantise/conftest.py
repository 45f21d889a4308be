"""What the tests of the family share: a call of a variant on the GPU, and what the op's check says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.model import Case
from harness.ops import Catalogue, Context, Tensors, comparer


@pytest.fixture(scope="session")
def judge(catalogue: Catalogue, launch: Any, placed: Any) -> Callable[..., str | None]:
    """judge(op, variant, dtype, M, C, scales, offsets, change) is the check's complaint about a call on the GPU.

    offsets: elements by which tensors begin past an aligned address, by name. change(inputs): changes the op's own
    inputs before the call.
    """
    import torch

    def call(
        name: str,
        variant: str,
        dtype: str,
        rows: int,
        columns: int,
        *,
        scales: str = "channel",
        offsets: Mapping[str, int] | None = None,
        change: Callable[[dict[str, Any]], object] = lambda _: None,
    ) -> str | None:
        op, values = catalogue[name], {"M": rows, "C": columns, "scales": scales}
        case = Case(name, variant, dtype, (("M", rows), ("C", columns)), (("scales", scales),))
        generator = torch.Generator("cuda").manual_seed(rows + columns)
        ctx = Context(case, getattr(torch, dtype), torch.device("cuda"), generator, op)
        assert op.make is not None
        assert op.check is not None
        made = op.make(ctx)
        change(made)
        tensors = {}
        for tensor in (*op.inputs, *op.outputs):
            (shape,) = tensor.shapes(values)
            tensors[tensor.name] = placed(shape, tensor.dtype_of(dtype), (offsets or {}).get(tensor.name, 0))
            if tensor.name in made:
                tensors[tensor.name].tensor.copy_(made[tensor.name])
        after = launch(name, variant, dtype, values, **tensors)
        before = Tensors(**{tensor.name: getattr(after, tensor.name) for tensor in op.inputs})
        outputs = {tensor.name: getattr(after, tensor.name) for tensor in op.outputs}
        return comparer.complaint(op.check(ctx, Tensors(before=before, **outputs)))

    return call
