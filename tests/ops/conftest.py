"""Calls of single variants on tensors that a test makes, outside of `measure`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.model import Case
from harness.ops import Catalogue, Context, Tensors

if TYPE_CHECKING:
    import torch

_ROOM = 64  # elements around a tensor that must stay as they are


@pytest.fixture(scope="session")
def launch() -> Callable[..., Tensors]:
    """launch(op, variant, dtype, shape, tensors...) prepares the variant on the GPU, calls it once and waits.

    seed: of the case's random numbers. Returns the tensors, for a variant that makes its own outputs with these.
    """
    import torch

    catalogue = Catalogue()

    def call(op: str, variant: str, dtype: str, shape: dict[str, int], seed: int = 0, **tensors: Any) -> Tensors:
        case = Case(op, variant, dtype, tuple(shape.items()))
        place = torch.device("cuda")
        generator = torch.Generator(place).manual_seed(seed)
        ctx = Context(case, getattr(torch, dtype), place, generator, catalogue[op])
        chosen = catalogue[op].variants[variant]
        returned = chosen.prepare(ctx)(Tensors(**tensors))
        torch.cuda.synchronize()
        if chosen.returns:
            _, outputs = catalogue[op].tensors(chosen)
            tensors |= dict(zip((output.name for output in outputs), returned, strict=True))
        return Tensors(**tensors)

    return call


@dataclass(frozen=True)
class Placed:
    """A tensor that lies inside a larger, poisoned buffer."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    offset: int

    def assert_untouched_around(self) -> None:
        """Nothing was written outside of the tensor."""
        import torch

        size = self.tensor.element_size()
        raw = self.buffer.view(torch.uint8)
        begin, end = self.offset * size, (self.offset + self.tensor.numel()) * size
        assert bool((raw[:begin] == _POISON).all()), "wrote before the tensor"
        assert bool((raw[end:] == _POISON).all()), "wrote after the tensor"


_POISON = 0xA5


@pytest.fixture(scope="session")
def placed() -> Callable[..., Placed]:
    """placed(shape, dtype, offset=0) is a poisoned tensor on the GPU, `offset` elements past an aligned address."""
    import math

    import torch

    def place(shape: Sequence[int] | int, dtype: str, offset: int = 0) -> Placed:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = getattr(torch, dtype)
        count = math.prod(shape)
        buffer = torch.empty(count + _ROOM, device="cuda", dtype=kind)
        buffer.view(torch.uint8).fill_(_POISON)
        return Placed(buffer[offset : offset + count].view(shape), buffer, offset)

    return place


@pytest.fixture(scope="session")
def ptx() -> Callable[..., str]:
    """ptx(file, entry, macros) is a kernel in PTX for sm_90: the reads, writes and branches that the compiler has left.

    Needs no GPU. (cuda.core would ask the driver whether it can load the PTX.)
    """
    from cuda.bindings import nvrtc

    from harness.cuda import compile as compiler
    from harness.paths import data

    def text(file: str, entry: str, macros: dict[str, str | int]) -> str:
        source = data("kernels") / file
        folders = [f"-I{folder}" for folder in compiler._include_folders(source.parent)]
        options = ["--gpu-architecture=sm_90", *folders, *(f"-D{name}={value}" for name, value in macros.items())]
        _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), file.encode(), 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS
        _, size = nvrtc.nvrtcGetPTXSize(program)
        made = bytes(size)
        nvrtc.nvrtcGetPTX(program, made)
        nvrtc.nvrtcDestroyProgram(program)
        (kernel,) = [part for part in made.decode().split(".entry ") if part.startswith(f"{entry}(")]
        return kernel

    return text
