"""How a tensor's operator finds the catalogue's kernel for it, and launches it.

The variant `tuned` of an op prepares the first call with a dtype, sizes, choices and a device. What that call launches
is noted, and made again for the next calls: so the host plans and checks once. Memory that launches have for sums comes
from torch's allocator at each call, as the memory of all temporary tensors does; a graph's own pool then has it, too.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from harness import cuda
from harness.collection.ops.elementwise import BLOCK, CUDA_TYPE, blocks
from harness.cuda.launch import Notes
from harness.cuda.replay import Replay
from harness.model import Case, Value
from harness.ops import Context, Op, Tensors
from harness.paths import data

LAUNCHED: Counter[str] = Counter()
"""How often each op was launched, by name. A graph counts when it is captured, not when it is replayed."""
_FILES: dict[str, Path] = {}
_HERE = nullcontext()
_KEPT = 4096  # calls of an op whose launches are kept; a launch that was made first goes first
_PACK = 16  # bytes: plans depend on where tensors begin inside of them
_MOST_PLACES = 64  # where the tensors of a call begin inside of packs, of which the launches are kept
_MISSING: Any = object()
# To map these over tensors takes less time than a loop.
_data_ptr, _get_device = Tensor.data_ptr, Tensor.get_device
_DEVICE: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
_STREAM: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
_REAL = (Tensor, torch.nn.Parameter)
_EMPTY: Callable[..., Tensor] = getattr(
    torch._C._dynamo.guards, "_empty_strided_cuda", partial(torch.empty_strided, device="cuda")
)
"""Torch's shortest way to memory of the current device, which code by torch.compile takes, too."""

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

    op: Op
    dtype: torch.dtype
    device: torch.device
    sizes: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, Value], ...] = ()
    key: int = 0
    macros: tuple[tuple[str, str | int], ...] = ()

    @property
    def case(self) -> Case:
        """The catalogue's case of it."""
        return Case(self.op.name, "tuned", str(self.dtype).removeprefix("torch."), self.sizes, self.choices)

    @property
    def obstacle(self) -> str | None:
        """Why no kernel can do it; None if one can. An op of another device than a GPU has none."""
        if self.device.type != "cuda":
            return f"kernels run on GPUs, not on {self.device}"
        op, case = self.op, self.case
        if case.dtype not in op.dtypes:
            return f"{op.name} has no kernel for {case.dtype}"
        unsupported = op.variants["tuned"].unsupported
        return unsupported(case) if unsupported else None

    def context(self) -> Context:
        """What the variant is prepared with."""
        generator = torch.Generator().manual_seed(self.key)
        return _CompiledWith(self.case, self.dtype, self.device, generator, self.op, macros=dict(self.macros))


@dataclass(frozen=True, slots=True)
class Described:
    """What a call of an op is, besides its type and device. The fields are as in KernelCall."""

    sizes: Mapping[str, int]
    choices: Mapping[str, Value] = field(default_factory=dict)
    key: int = 0
    macros: Mapping[str, str | int] = field(default_factory=dict)


class KernelLaunch:
    """Launches the kernel of a call. It takes the op's tensors, inputs first, as the op declares them.

    Up to two vectors that are read, and up to two that are written, may be in float32 where the op has halves.
    Raises RuntimeError for tensors that lie on several devices.
    """

    def __init__(self, wanted: KernelCall) -> None:
        self.wanted = wanted
        self._name, self._dtype = wanted.op.name, wanted.dtype
        self.device = -1 if wanted.device.index is None else wanted.device.index
        self._devices = {self.device}
        self._replays: dict[Any, Replay | None] = {}

    def __call__(self, *tensors: Tensor) -> None:
        """Launch it."""
        if _DEVICE() != self.device:
            with torch.cuda.device(self.device):
                return self._launch(tensors)
        return self._launch(tensors)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        if {*map(_get_device, tensors)} != self._devices:
            raise _on_another(self.wanted, tensors)
        addresses = [*map(_data_ptr, tensors)]
        aligned = reduce(or_, addresses) % _PACK == 0
        key = 0 if aligned else tuple([address % _PACK for address in addresses])
        replay = self._replays.get(key)
        LAUNCHED[self._name] += 1
        if replay is None:
            if len(self._replays) >= _MOST_PLACES:
                self._replays.clear()
            replay = self._replays[key] = Replay.of(self._run, [_as_it_lies(tensor) for tensor in tensors])
        elif replay.workspace:
            space = allocator(tensors[0])((replay.workspace,), (1,), torch.uint8)
            replay(_STREAM(self.device) or cuda.LEGACY_STREAM, addresses, space.data_ptr())
        else:
            replay(_STREAM(self.device) or cuda.LEGACY_STREAM, addresses)
        if CALLS.by_thread:
            CALLS.add((self, None if key else replay, tensors))

    def _run(self, *tensors: Tensor) -> None:
        """Prepare the variant, and launch it. Memory that it takes goes back with its end."""
        op = self.wanted.op
        variant = op.variants["tuned"]
        inputs, outputs = op.tensors(variant)
        given = dict(zip([tensor.name for tensor in (*inputs, *outputs)], tensors, strict=True))
        launch = variant.prepare(self.wanted.context())
        read, written = (
            [tensor.name for tensor in declared if tensor.dtype == "case" and given[tensor.name].dtype != self._dtype]
            for declared in (inputs, outputs)
        )
        narrow = {name: torch.empty_like(given[name], dtype=self._dtype) for name in (*read, *written)}
        self._convert("round_vectors", [(given[name], narrow[name]) for name in read])
        launch(Tensors(**given | narrow))
        self._convert("widen_vectors", [(narrow[name], given[name]) for name in written])

    def _convert(self, entry: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Convert up to two vectors of one size, from the first to the second of each pair."""
        if not pairs:
            return
        macros: dict[str, str | int] = {"SCALAR": CUDA_TYPE[self.wanted.case.dtype]}
        kernel, count = cuda.load(data("kernels") / "rows" / "vectors.cu", entry, macros), pairs[0][0].numel()
        sources, targets = zip(*pairs, *[(None, None)] * (2 - len(pairs)), strict=True)
        kernel(blocks(count), BLOCK, *sources, *targets, ctypes.c_uint32(count))


def _as_it_lies(tensor: Tensor) -> Tensor:
    """The tensor with its dimensions in the order of memory, as ops declare images that are channels_last."""
    last = tensor.ndim == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.permute(0, 2, 3, 1) if last else tensor


def _on_another(wanted: KernelCall, tensors: tuple[Tensor, ...]) -> RuntimeError:
    op = wanted.op
    inputs, outputs = op.tensors(op.variants["tuned"])
    name, tensor = next(
        (declared.name, tensor)
        for declared, tensor in zip((*inputs, *outputs), tensors, strict=True)
        if tensor.device != wanted.device
    )
    return RuntimeError(f"{op.name}: {name} lies on {tensor.device}, other tensors on {wanted.device}; move it there")


CALLS = Notes[tuple[KernelLaunch, Replay | None, tuple[Tensor, ...]]]()
"""The calls that threads make, each with what repeats it and its tensors.

None repeats a call of tensors that don't begin on 16 bytes, or what no replay can repeat.
"""


class OpKernels:
    """The launches of an op by the sizes, type and device of a call's first tensor, and by what else decides.

    describe(x, *options): what such a call is. It is asked once for equal options, which are hashable.
    """

    every: ClassVar[list[OpKernels]] = []

    def __init__(self, op: Op, describe: Callable[..., Described]) -> None:
        self.op = op
        self._describe = describe
        self._known: dict[Any, KernelLaunch | None] = {}
        self.every.append(self)

    def __call__(self, x: Tensor, *options: Any) -> KernelLaunch | None:
        """The launch for a call; None if no kernel can do it, or for empty tensors."""
        key = x.shape, x.dtype, x.get_device(), options
        launch = self._known.get(key, _MISSING)
        if launch is _MISSING:
            if len(self._known) >= _KEPT:
                self._known.pop(next(iter(self._known)), None)
            launch = self._known[key] = self.found(x, *options)
        return launch  # type: ignore[no-any-return]

    def found(self, x: Tensor, *options: Any) -> KernelLaunch | None:
        """The same, looked for anew."""
        return launch_of(self.op, x, self._describe(x, *options)) if x.numel() else None

    def forget(self) -> None:
        """Keep no launch."""
        self._known.clear()


def launch_of(op: Op, like: Tensor, call: Described) -> KernelLaunch | None:
    """What launches the kernel of `op` for tensors with the dtype and device of `like`; None if there is none."""
    choices, macros = tuple(call.choices.items()), tuple(call.macros.items())
    wanted = KernelCall(op, like.dtype, like.device, tuple(call.sizes.items()), choices, call.key, macros)
    return None if _obstacle(wanted) is not None else KernelLaunch(wanted)


def allocator(beside: Tensor) -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]:
    """Function that makes empty tensors on the device of `beside`, from a shape, strides and a type."""
    return _EMPTY if _is_here(beside) else partial(_empty, beside)


def like(x: Tensor) -> Tensor:
    """An empty tensor as `x`, contiguous."""
    if x.is_contiguous():
        return allocator(x)(tuple(x.shape), x.stride(), x.dtype)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _empty(beside: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return beside.new_empty_strided(shape, strides, dtype=dtype)


def _is_here(x: Tensor) -> bool:
    """Whether x has memory on the current device. What a compiler traces with has no memory."""
    return x.is_cuda and type(x) in _REAL and x.get_device() == _DEVICE()


def of_lists(op: Op, macros: Mapping[str, str | int]) -> cuda.Kernel:
    """The kernel `<op>_tuned` of an op on lists. Its table is the caller's, who counts the launch by this call."""
    LAUNCHED[op.name] += 1
    # To find the file takes longer than to launch a kernel.
    file = _FILES.get(op.name) or _FILES.setdefault(op.name, op.find(f"{op.name}.cu"))
    return cuda.load(file, f"{op.name}_tuned", macros)


def capturing() -> bool:
    """Whether a graph is being captured."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def on(device: torch.device) -> Any:
    """Context in which `device` is the current one, as kernels need it."""
    return _HERE if device.index == _DEVICE() else torch.cuda.device(device)


def _obstacle(wanted: KernelCall) -> str | None:
    if wanted.device.type != "cuda":
        return wanted.obstacle
    with on(wanted.device):
        return wanted.obstacle
