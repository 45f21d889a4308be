"""Decoding one sequence by a single kernel a step, whose blocks stay: kernels/llm/decode_step.cu, which has the story.

What to expect of a Llama 1B on an H200: weights are 2.47 GB, which take 527 us at the 4.7 TB/s of a read, and 575 us at
the 4.3 TB/s that long products reach. No kernel waits for another one's end, so a step should take little more.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness import cuda
from harness.collection.models import LlamaConfig
from harness.collection.ops.elementwise import CUDA_TYPE, blocks
from harness.collection.ops.llm._few_rows import EPSILON
from harness.collection.ops.llm.decode_attention import scale_of
from harness.ops import Context

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.decoding._decoder import Decoder

_WARPS, _WARP = 8, 32
_PACK = 8  # elements that a lane copies at a time
_STAGE = 2 * 2 * _WARP * _PACK * 2  # bytes of a stage: two rows, two packs a lane
_MOST_STAGES, _FEWEST_STAGES = 16, 2
_ENOUGH = 4  # stages beside which a warp has two steps of tokens
_HEADS = 8  # of queries that a head of keys may have
_PARTS = 64  # of a head's tokens, at most
_FEW_TOKENS = 2 * _WARPS * 16  # that one block takes in two steps of each warp
_STATIC = 1024  # bytes of shared memory beside dynamic ones, at most
_ADDRESSES = 11  # of a layer's tensors


@dataclass(frozen=True, slots=True)
class Shape:
    """How the blocks of a step share its work.

    parts: of a head's tokens; tokens: of a part. input: elements of a vector in shared memory. ahead: steps of 16
    tokens of a warp's ring of tokens; stages: of its ring of weights. shared: dynamic bytes of shared memory.
    """

    parts: int
    tokens: int
    input: int
    ahead: int
    stages: int
    shared: int

    @classmethod
    def of(cls, config: LlamaConfig, tokens: int) -> Self:
        """For a sequence of so many tokens, on the current GPU."""
        most = max(1, min(cuda.multiprocessors() // config.groups, _PARTS))
        of_part = blocks(blocks(tokens, min(most, blocks(tokens, _FEW_TOKENS))), 16) * 16
        wide = blocks(config.head, 64) * 64
        attention = 4 * _HEADS * _WARPS * (2 + wide) + 2 * config.head * (_HEADS + 2)
        columns = max(config.hidden, config.intermediate, blocks(attention, 2))
        vector = blocks(columns, _PACK) * _PACK
        step = _WARPS * 16 * _WARP * (2 * blocks(config.head, 32) + 4 * wide // 64)
        rest = 2 * vector + (2 * 2 + 4) * config.hidden + 8 * _ADDRESSES * config.layers
        room, stage = cuda.shared_memory() - _STATIC - rest, _WARPS * _STAGE
        ahead = 2 if (room - 2 * step) // stage >= _ENOUGH else 1
        stages = min(_MOST_STAGES, (room - ahead * step) // stage)
        shared = stages * stage + ahead * step + rest
        return cls(blocks(tokens, of_part), of_part, vector, ahead, stages, shared)


def unfit(config: LlamaConfig, tokens: int) -> str | None:
    """Why a step of a model can't be one kernel on the current GPU; None if it can."""
    if config.hidden % _PACK or config.intermediate % _PACK or config.head % _PACK:
        return f"vectors and heads must be whole packs of {_PACK} elements"
    if config.heads // config.groups > _HEADS or config.head > 128:
        return f"for up to {_HEADS} heads of queries a head of keys, and 128 elements a head"
    if config.groups > cuda.multiprocessors():
        return "each head of keys needs a multiprocessor"
    if Shape.of(config, tokens).stages < _FEWEST_STAGES:
        return "shared memory has no room for weights beside vectors"
    return None


class OneSequence:
    """Tokens (1) to logits (1, V), as `Decoder` makes them. Calls share their result."""

    def __init__(self, ctx: Context, decoder: Decoder) -> None:
        import torch

        model, config = decoder.model, decoder.model.config
        self.weight_bytes = decoder.weight_bytes
        self._shape = shape = Shape.of(config, ctx.s.C + 1)
        options = {"device": ctx.device}
        self._logits = torch.empty((1, config.vocabulary), dtype=ctx.dtype, **options)
        table = torch.tensor(
            [addresses(decoder, layer) for layer in range(config.layers)], dtype=torch.int64, **options
        )
        words = ((config.heads + 2 * config.groups) * config.head + 3 * config.hidden) // 2
        of_parts = config.heads * shape.parts * (config.head + 2) if shape.parts > 1 else 0
        head, norm = model.head.detach(), model.model["norm"].weight.detach()
        self._decoder = decoder  # whose tensors the table has the addresses of
        self._tensors = (
            *(head, table, norm, head, *(angles.float().contiguous() for angles in decoder.angles), self._logits),
            torch.zeros(words, dtype=torch.int64, **options),
            torch.empty(2 * config.intermediate, dtype=ctx.dtype, **options),
            torch.zeros(1, dtype=torch.int64, **options),
            torch.zeros(of_parts, dtype=torch.int64, **options),
        )
        sizes = (config.layers, config.hidden, config.intermediate, config.heads, config.groups, config.vocabulary)
        own = (ctx.s.C + 1, shape.parts, shape.tokens, shape.input)
        self._numbers = *map(ctypes.c_uint32, (*sizes, *own)), scale_of(config.head), ctypes.c_float(EPSILON)
        rings = {"WARPS": _WARPS, "STAGES": shape.stages, "AHEAD": shape.ahead}
        macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[ctx.case.dtype], "HEAD": config.head, **rings}
        self._kernel = ctx.kernel("decode_step.cu", "decode_step_tuned", macros)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """One more token."""
        grid, shared = cuda.multiprocessors(), self._shape.shared
        self._kernel(grid, _WARPS * _WARP, tokens, *self._tensors, *self._numbers, shared=shared)
        return self._logits


def addresses(decoder: Decoder, number: int) -> list[int]:
    """Addresses of a layer's weights, and of its keys and values, in the order that decode_step.cu has them."""
    layer = decoder.model.model["layers"][number]
    attention, products = layer.self_attn, layer.mlp
    tensors = (
        *(attention[f"{name}_proj"].weight for name in "qkvo"),
        *(products[f"{name}_proj"].weight for name in ("gate", "up", "down")),
        *(layer.input_layernorm.weight, layer.post_attention_layernorm.weight),
        *(decoder.keys[number], decoder.values[number]),
    )
    return [tensor.data_ptr() for tensor in tensors]
