"""A random mask of bytes, 1 with a given probability: row O18. Twin of random_mask.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.dropout._dropout import CALL, NARROW, WIDE, arguments, expected_share, seed
from harness.collection.ops.elementwise import BLOCK, BOTH, PACK_BYTES, aligned, blocks
from harness.ops import Choice, Compile, Context, Launch, Op, Tensor, Tensors, compiled_variants

if TYPE_CHECKING:
    import torch

STATE_BYTES = 48
_THREADS = "min(cdiv(N, 16), 2**15)"  # one for each 16 elements, but no more than an eighth of what an H200 holds
_STATE = Tensor("state", (f"{STATE_BYTES} * {_THREADS}",), "uint8", inplace=True)
_FEWEST_WAVES = 4  # of threads with four packs each: with fewer waves, two packs a thread are faster


def check(ctx: Context, t: Tensors) -> Iterator[str]:
    """Every byte is 0 or 1, and the right share is 1."""
    import torch

    if bool((t.mask.view(torch.uint8) > 1).any()):
        yield "mask: has bytes other than 0 and 1"
    yield from expected_share(ctx, t.mask)


OP = Op(
    "random_mask",
    "mask = 1 with a probability of 1 - p, else 0",
    symbols={"N": "elements"},
    choices={"p": Choice("share of zeros", low=0.0, high=1.0, default=0.1)},
    inputs=(CALL,),
    outputs=(Tensor("mask", ("N",)),),
    dtypes=("bool",),
    check=check,
    items="N",
    item="samples",
)


@OP.variant("eager", "torch.empty(N).bernoulli_(1 - p)", role="baseline", devices=BOTH, returns=True)
def eager(ctx: Context) -> Launch:
    """PyTorch makes a Philox call for four elements, and stores a byte at a time. rand and < would be two kernels."""
    import torch

    n, probability, device = ctx.s.N, 1 - ctx.s.p, ctx.device
    return lambda _: (torch.empty(n, dtype=torch.bool, device=device).bernoulli_(probability),)


@compiled_variants(OP, "torch.compile of torch.rand(N) < 1 - p")
def compile_(ctx: Context, compiled: Compile) -> Launch:
    """Inductor makes one kernel of the two steps, so that no floats pass through memory."""
    import torch

    n, probability, device = ctx.s.N, 1 - ctx.s.p, ctx.device
    function = compiled(lambda: torch.rand(n, device=device) < probability)
    return lambda _: (function(),)


def fresh_state(threads: int, key: int, device: Any) -> torch.Tensor:
    """The state of generators that have drawn nothing yet, 48 bytes each, as uint8.

    Words 0 to 3 of a generator are the next counter, with the thread in the upper half; 4 to 7 the words drawn last, 8
    and 9 the key, and 10 says how many of the four words are used.
    """
    import torch

    state = torch.zeros(threads, STATE_BYTES // 4, dtype=torch.int64, device=device)
    state[:, 2] = torch.arange(threads, device=device)
    state[:, 8], state[:, 9], state[:, 10] = key & 0xFFFFFFFF, key >> 32, 4
    return state.to(torch.int32).view(torch.uint8).view(-1)


def _encode(ctx: Context, _: Tensors) -> dict[str, Any]:
    return {"state": fresh_state(_state_bytes(ctx) // STATE_BYTES, seed(ctx), ctx.device)}


def _state_bytes(ctx: Context) -> int:
    return _STATE.bytes(ctx.case.symbols, ctx.case.dtype)


_STATEFUL: dict[str, Any] = {"role": "published", "rows": ("O18",), "inputs": (_STATE,), "encode": _encode}


@OP.variant("scalar", "a generator of 48 bytes for each of few threads, one byte a store", **_STATEFUL)
def scalar(ctx: Context) -> Launch:
    """The text starts here."""
    kernel, (grid, *sizes) = ctx.kernel("random_mask.cu", "random_mask_scalar"), _stateful(ctx)
    return lambda t: kernel(grid, BLOCK, t.state, t.mask, *sizes)


@OP.variant("packed", "the same generators, 16 results in one store of 16 bytes", **_STATEFUL)
def packed(ctx: Context) -> Launch:
    """The text's optimisation: threads are as few, but they wait less."""
    kernel, (grid, *sizes) = ctx.kernel("random_mask.cu", "random_mask_packed"), _stateful(ctx)
    return lambda t: kernel(grid, BLOCK, t.state, t.mask, *sizes, ctypes.c_uint32(aligned(t.mask)))


def _stateful(ctx: Context) -> tuple[Any, ...]:
    """The grid and the scalars of a launch: (grid, n, threads, threshold)."""
    _, threshold, _ = arguments(ctx, WIDE)
    threads = _state_bytes(ctx) // STATE_BYTES
    return blocks(threads), ctypes.c_uint64(ctx.s.N), ctypes.c_uint64(threads), threshold


@OP.variant("tuned", "no state: 16 elements a store from two Philox calls on their index", rows=("O18",))
def tuned(ctx: Context) -> Launch:
    """Each thread makes a few stores; see random_mask.cu."""
    many = _FEWEST_WAVES * cuda.resident_threads() * 4 * PACK_BYTES
    packs = 4 if many <= ctx.s.N else 2
    kernel = ctx.kernel("random_mask.cu", "random_mask_tuned", {"PACKS": packs})
    key, threshold, _ = arguments(ctx, NARROW)
    grid, n = blocks(ctx.s.N, packs * PACK_BYTES * BLOCK), ctypes.c_uint64(ctx.s.N)
    return lambda t: kernel(grid, BLOCK, t.call, t.mask, n, ctypes.c_uint32(aligned(t.mask)), key, threshold)
