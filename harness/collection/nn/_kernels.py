"""How a tensor's operator finds the catalogue's kernel for it, and launches it.

A launch is what the variant `tuned` of an op prepares for a dtype, sizes, choices and a device. It is kept for the next
call. Many launches have memory of their own for sums, so each stream has launches of its own. While a graph is
captured none is kept: then this memory belongs to the graph, as the memory of all other temporary tensors does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from harness import cuda
from harness.collection.ops.attention import window_attention, window_attention_grad, window_attention_packed
from harness.collection.ops.batch_norm import bn_add_relu, bn_add_relu_grad
from harness.collection.ops.dropout import bias_dropout_residual, dropout, dropout_add, dropout_grad
from harness.collection.ops.layouts import layer_norm_window_partition, window_partition, window_reverse
from harness.collection.ops.lists import adamw, unscale
from harness.collection.ops.rows import layer_norm, layer_norm_grad, rms_norm, rms_norm_grad, softmax, softmax_grad
from harness.model import Case, Value
from harness.ops import Context, Launch, Op, Tensors

_MODULES = (
    *(window_attention, window_attention_grad, window_attention_packed, bn_add_relu, bn_add_relu_grad),
    *(bias_dropout_residual, dropout, dropout_add, dropout_grad),
    *(layer_norm_window_partition, window_partition, window_reverse, adamw, unscale),
    *(layer_norm, layer_norm_grad, rms_norm, rms_norm_grad, softmax, softmax_grad),
)
OPS: Mapping[str, Op] = {module.OP.name: module.OP for module in _MODULES}
"""The ops of the catalogue whose kernels are used here, by name."""
LAUNCHED: Counter[str] = Counter()
"""How often each of these ops was launched, by name. A graph counts when it is captured, not when it is replayed."""
_THREAD = threading.local()
_HERE = nullcontext()
_KEPT = 4096  # calls whose launches are kept; a launch that wasn't used for longest goes first

Pairs = tuple[tuple[str, Any], ...]
"""Names and their values."""


@dataclass
class _CompiledWith(Context):
    """A context whose kernels are compiled with more macros than their variant has."""

    macros: Mapping[str, str | int] = field(default_factory=dict)

    def kernel(self, file: str, entry: str, macros: Mapping[str, str | int] | None = None) -> cuda.Kernel:
        """Load the kernel as Context does."""
        return super().kernel(file, entry, {**(macros or {}), **self.macros})


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of an op that a kernel is wanted for.

    sizes: by the op's symbols. key: of the random numbers. macros: what no case has, such as an epsilon.
    """

    op: str
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, Value], ...] = ()
    key: int = 0
    macros: tuple[tuple[str, str | int], ...] = ()

    @property
    def case(self) -> Case:
        """The catalogue's case of it."""
        return Case(self.op, "tuned", str(self.dtype).removeprefix("torch."), self.sizes, self.choices)

    @property
    def obstacle(self) -> str | None:
        """Why no kernel can do it; None if one can. An op of another device than a GPU has none."""
        if self.device.type != "cuda":
            return f"kernels run on GPUs, not on {self.device}"
        op, case = OPS[self.op], self.case
        if case.dtype not in op.dtypes:
            return f"{self.op} has no kernel for {case.dtype}"
        unsupported = op.variants["tuned"].unsupported
        return unsupported(case) if unsupported else None

    def context(self) -> Context:
        """What the variant is prepared with."""
        generator = torch.Generator().manual_seed(self.key)
        return _CompiledWith(self.case, self.dtype, self.device, generator, OPS[self.op], macros=dict(self.macros))


def kernel(  # noqa: PLR0913, PLR0917 - what a call has
    op: str,
    like: torch.Tensor,
    sizes: Mapping[str, int],
    choices: Mapping[str, Value] | None = None,
    key: int = 0,
    macros: Mapping[str, str | int] | None = None,
) -> Any:
    """Function that launches the kernel of `op` for tensors with the dtype and device of `like`; None if there is none.

    It takes the op's tensors by name. sizes, choices: the op's; key: of the random numbers; macros: what kernels
    are compiled with besides the variant's. There is no kernel for empty tensors.
    """
    if not like.numel():
        return None
    pairs = tuple(sizes.items()), tuple(choices.items()) if choices else ()
    return _launcher(op, like.dtype, like.device, *pairs, key, tuple(macros.items()) if macros else ())


@lru_cache(maxsize=_KEPT)
def _launcher(  # noqa: PLR0913, PLR0917 - the fields of a KernelCall, which take less time to look up than one does
    op: str, dtype: torch.dtype, device: torch.device, sizes: Pairs, choices: Pairs, key: int, macros: Pairs
) -> Callable[..., None] | None:
    wanted = KernelCall(op, dtype, device, sizes, choices, key, macros)
    return None if _obstacle(wanted) is not None else partial(_run, wanted, {})


def of_lists(op: str, macros: Mapping[str, str | int]) -> cuda.Kernel:
    """The kernel `<op>_tuned` of an op on lists. Its table is the caller's, who counts the launch by this call."""
    LAUNCHED[op] += 1
    return cuda.load(_source(op), f"{op}_tuned", macros)


@cache
def _source(op: str) -> Path:
    """The file with the kernels of an op. To find it takes longer than to launch one."""
    return OPS[op].find(f"{op}.cu")


def capturing() -> bool:
    """Whether a graph is being captured."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def on(device: torch.device) -> Any:
    """Context in which `device` is the current one, as kernels need it.

    A new thread, such as autograd's for a backward, has no context of the driver until something asks for it.
    """
    if not getattr(_THREAD, "has_context", False):
        cuda.device().set_current()
        _THREAD.has_context = True
    return _HERE if device.index == torch.cuda.current_device() else torch.cuda.device(device)


def _run(wanted: KernelCall, kept: dict[int, Launch], /, **tensors: torch.Tensor) -> None:
    """Launch it. kept: its launches by the stream. Raises RuntimeError for tensors that lie on several devices."""
    for name, tensor in tensors.items():
        if tensor.device != wanted.device:
            raise RuntimeError(
                f"{wanted.op}: {name} lies on {tensor.device}, other tensors on {wanted.device}; move it there"
            )
    with on(wanted.device):
        if capturing():
            launch = _prepared(wanted)
        else:
            stream = cuda.stream_handle()
            launch = kept.get(stream) or kept.setdefault(stream, _prepared(wanted))
        LAUNCHED[wanted.op] += 1
        launch(Tensors(**tensors))


def _obstacle(wanted: KernelCall) -> str | None:
    if wanted.device.type != "cuda":
        return wanted.obstacle
    with on(wanted.device):
        return wanted.obstacle


def _prepared(wanted: KernelCall) -> Launch:
    return OPS[wanted.op].variants["tuned"].prepare(wanted.context())
