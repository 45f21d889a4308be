"""The ladder of a Llama's step: `_rungs.LLAMA`, and products in float8 where the model is in bfloat16.

Torch's kernels and ours meet there with all that torch has: the model in bfloat16, float8, a graph.
"""

from __future__ import annotations

from harness.collection.steps.training import _rungs
from harness.collection.steps.training._rungs import Rung, on

_BY_NAME = {rung.name: rung for rung in _rungs.LLAMA}


def _in_float8(name: str) -> tuple[Rung, Rung]:
    """The rung of a name with products of blocks in float8, and the same as a CUDA graph of the step."""
    rung = on(_BY_NAME[name], f"{name}_fp8", f"{name} with products of blocks in float8", fp8=True)
    return rung, on(rung, f"{rung.name}_graph", f"{rung.name} as a CUDA graph of the step", graph=True)


LLAMA = (*_rungs.LLAMA, *_in_float8("compile_half"), *_in_float8("compile_ours"))
