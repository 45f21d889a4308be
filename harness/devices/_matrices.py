"""Matrix products of torch on an NVIDIA GPU, by type. The GPU's peaks of compute are measured with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from harness.cuda import cublaslt
from harness.cuda.cublaslt import MANY, Gemm, Matmul
from harness.devices import MatrixProduct

if TYPE_CHECKING:
    import torch

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 16384))
"""m, n, k: large enough that every multiprocessor has work to the end, small enough for milliseconds a call."""
_ITEMSIZE = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
_LEAST_CAPABILITY = {
    "float32": (0, 0), "tf32": (8, 0), "float16": (7, 0), "bfloat16": (8, 0), "float8": (8, 9), "int8": (7, 5),
}  # fmt: skip
"""The compute capability from which a GPU multiplies the type in its tensor cores; float32 needs none."""
_OUTPUT_BYTES = 4
_DEVIATION = 25.0
"""Standard deviation of integers: of normal numbers of which the largest of some millions becomes 127. Other types
are multiplied with normal numbers, too."""


def products(kind: str, capability: tuple[int, int]) -> Iterator[MatrixProduct]:
    """The products of a kind; none where a GPU of that compute capability, or this torch, can't do it.

    float32 runs on CUDA cores, tf32 is float32 rounded for tensor cores, float8 is e4m3, int8 adds up in int32. Torch
    writes these sums, four bytes for an element. With nvmath-python, cuBLASLt's fastest algorithm for a result in int8
    is another way.
    """
    if kind not in _LEAST_CAPABILITY or capability < _LEAST_CAPABILITY[kind] or not _torch_has(kind):
        return
    # Which order of B is faster depends on the type. For types of one byte, only 'columns' works on every GPU.
    orders = ("columns",) if kind in ("float8", "int8") else ("rows", "columns")
    for m, n, k in SHAPES:
        for order in orders:
            memory = (m * k + k * n) * _ITEMSIZE[kind] + m * n * _OUTPUT_BYTES
            yield MatrixProduct(
                kind, f"{_name(kind)}, B by {order}", m, n, k, memory, partial(_prepare, kind, order, m, n, k)
            )
        if kind == "int8" and cublaslt.obstacle(product := _to_int8(m, n, k)) is None:
            yield MatrixProduct(
                kind, "cuBLASLt, int8 out", m, n, k, m * k + k * n + m * n, partial(_prepare_to_int8, product)
            )


def _torch_has(kind: str) -> bool:
    import torch

    needed = {"float8": ("_scaled_mm", "float8_e4m3fn"), "int8": ("_int_mm",)}.get(kind, ())
    return all(hasattr(torch, name) for name in needed)


def _name(kind: str) -> str:
    return {"float8": "torch._scaled_mm", "int8": "torch._int_mm"}.get(kind, "torch.mm")


def _prepare(kind: str, order: str, m: int, n: int, k: int) -> Callable[[], object]:
    """The call, with matrices of random numbers: zeros would take less power, and so run at higher clocks."""
    import torch

    a = _random(kind, m, k, seed=0)
    b = _random(kind, k, n, seed=1) if order == "rows" else _random(kind, n, k, seed=1).t()
    if kind == "int8":
        return lambda: torch._int_mm(a, b)
    if kind == "float8":
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    out = torch.empty(m, n, dtype=a.dtype, device="cuda")
    if kind in ("float32", "tf32"):
        return partial(_float32, "tf32" if kind == "tf32" else "ieee", a, b, out)
    return lambda: torch.mm(a, b, out=out)


def _to_int8(m: int, n: int, k: int) -> Gemm:
    return Gemm(m, n, k, "int8", "int8", alpha="device")


def _prepare_to_int8(product: Gemm) -> Callable[[], object]:
    """The call, scaled so that results are about as large as the factors. It returns the result."""
    import torch

    a, b = _random("int8", product.m, product.k, seed=0), _random("int8", product.n, product.k, seed=1)
    out = torch.empty(product.m, product.n, dtype=torch.int8, device="cuda")
    scale = torch.tensor([1 / (_DEVIATION * product.k**0.5)], device="cuda")
    matmul = Matmul(product, MANY)

    def call() -> torch.Tensor:
        matmul(a, b, out, alpha=scale)
        return out

    return call


def _float32(precision: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Multiply in this precision, whatever precision the process has set."""
    import torch

    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        return torch.mm(a, b, out=out)
    finally:
        settings.fp32_precision = before


def _random(kind: str, rows: int, columns: int, seed: int) -> torch.Tensor:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator, device="cuda")
    if kind == "int8":
        return values.mul_(_DEVIATION).round_().clamp_(-128, 127).to(torch.int8)
    dtype = {"float8": "float8_e4m3fn", "tf32": "float32"}.get(kind, kind)
    return values.to(getattr(torch, dtype))
