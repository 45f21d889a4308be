"""Settings of the process, streams and graphs that steps and inference share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.ops import Context

if TYPE_CHECKING:
    import torch

EAGER = 3
"""Steps before a graph is captured or memory is counted: they allocate the optimizer's state and choose kernels."""


def seed_of(ctx: Context) -> int:
    """The seed of weights and data, the same for all variants of a case."""
    return int(ctx.generator.initial_seed()) % 2**32


def forget_compiled() -> None:
    """Forget what torch.compile made, since it would keep a model in memory."""
    import torch

    torch.compiler.reset()


@contextmanager
def math_modes(tf32: bool, *, search: bool = True) -> Iterator[None]:
    """Let float32 be rounded to TF32 or not, and let cuDNN search for its fastest algorithm or not.

    Both are settings of the process.
    """
    import torch

    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark

    def put(precision: str, convolutions: bool, benchmark: bool) -> None:
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32, cudnn.benchmark = convolutions, benchmark

    put("high" if tf32 else "highest", tf32, benchmark=search)
    try:
        yield
    finally:
        put(*before)


def reference_modes() -> AbstractContextManager[None]:
    """Float32 without TF32. cuDNN takes its first choice: its search takes longer than a reference's few steps."""
    return math_modes(tf32=False, search=False)


@contextmanager
def side_stream(stream: torch.cuda.Stream | None = None) -> Iterator[None]:
    """A stream beside the current one, as what is captured later must run on before. stream: it; else a new one."""
    import torch

    current, side = torch.cuda.current_stream(), stream or torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield
    current.wait_stream(side)


@dataclass(frozen=True, slots=True)
class _Replay:
    """A graph of a step. It keeps the step, and so the weights that the graph reads: nothing else may get their memory.

    result: what the step gave. Each replay writes it anew.
    """

    graph: torch.cuda.CUDAGraph
    result: torch.Tensor
    step: Callable[[], torch.Tensor]

    def __call__(self) -> torch.Tensor:
        """Replay the graph."""
        self.graph.replay()
        return self.result


def captured(step: Callable[[], torch.Tensor], *, ranks: int = 1) -> Callable[[], torch.Tensor]:
    """A replay of the step as a CUDA graph. Its result is always the same tensor.

    ranks: how many processes communicate in the step.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    # With several ranks, a thread of NCCL queries its own events during the capture, which 'global' forbids.
    with torch.cuda.graph(graph, capture_error_mode="global" if ranks == 1 else "thread_local"):
        result = step()
    return _Replay(graph, result, step)
