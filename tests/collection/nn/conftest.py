"""What tests of operators share: their arguments, and kernels of the catalogue played by its references."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from harness import cuda
from harness.collection.nn import _adamw, _kernels, _unscale
from harness.collection.ops import bits
from harness.collection.ops.attention import window_attention
from harness.collection.ops.dropout import _dropout, _philox
from harness.collection.ops.rows import _norm
from harness.ops import Op, Tensor

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far off a result may be, as a share of the largest one."""


_PACKED = frozenset({"dout", "q", "k", "v", "dq", "dk", "dv"})
"""What the backward of attention finds in tensors with all heads of a token side by side."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing by more threads, and these wait for each other where tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def _variants_of_dropout(call: _kernels.KernelCall, t: SimpleNamespace) -> dict[str, Any]:
    """What the kernels of dropout write, by the twin of their generator."""
    count, keep = t.x.numel(), _dropout.Keep(call.case.values["p"], 16)
    numbers = _philox.numbers(call.key, int(t.call), torch.arange(count), 16)
    kept = numbers < keep.threshold
    x = t.x.float() + (t.bias.float() if hasattr(t, "bias") else 0)
    y = torch.where(kept.view(x.shape), x * keep.scale, 0)
    for name in ("addend", "residual"):
        y = y + getattr(t, name).float() if hasattr(t, name) else y
    return {"y": y, ("bits" if call.op.name == "dropout" else "mask"): bits.pack(kept)}


def _by_reference(call: _kernels.KernelCall, t: SimpleNamespace) -> dict[str, Any]:
    """The outputs of a call as the catalogue's reference has them, else as its variant `eager` has them."""
    op, macros = call.op, dict(call.macros)
    if epsilon := macros.pop("EPS", None):
        assert str(epsilon).endswith("f")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_norm, "EPS", float(str(epsilon)[:-1]))
            return _by_reference(replace(call, macros=()), t)
    if "RESIDUAL" in macros:
        # The kernels have another tensor in its place, which they neither read nor write.
        name = "z" if op.name == "bn_add_relu" else "dz"
        assert getattr(t, name) is not None
        zeros = SimpleNamespace(**{**vars(t), name: torch.zeros_like(getattr(t, name))})
        made = _by_reference(replace(call, macros=()), zeros)
        return {key: value for key, value in made.items() if key != name}
    if op.name in ("dropout", "dropout_add", "bias_dropout_residual"):
        return _variants_of_dropout(call, t)
    given = SimpleNamespace(**vars(t))
    if op.name == "dropout_grad":
        given.mask = bits.unpack(t.bits, t.dy.numel()).view(t.dy.shape)
    if op.name == "bn_add_relu_grad":
        given.y = bits.unpack(t.mask, t.dy.numel()).view(t.dy.shape).to(t.dy.dtype)
    if op.name == "window_attention_packed":
        # The table of the op has no rows for biases in general.
        split = t.qkv.permute(2, 0, 3, 1, 4)
        given = SimpleNamespace(q=split[0], k=split[1], v=split[2], bias=t.bias, mask=t.mask)
        out = window_attention.OP.variants["eager"].prepare(call.context())(given)[0]
        return {"out": out.transpose(1, 2).flatten(2)}
    return op.reference(call.context(), given) if op.reference else _by_eager(call, given)


def _by_eager(call: _kernels.KernelCall, given: SimpleNamespace) -> dict[str, Any]:
    """The outputs of a call as the catalogue's variant `eager` has them."""
    op = call.op
    eager = op.variants["eager"]
    ctx = replace(call.context(), case=replace(call.case, variant="eager"))
    made = eager.prepare(ctx)(given)
    if not eager.returns:  # it writes into what is given
        return {}
    _, outputs = op.tensors(eager)
    own = {tensor.name: value for tensor, value in zip(outputs, made, strict=True)}
    return own | (eager.decode(ctx, SimpleNamespace(**vars(given) | own)) if eager.decode else {})


def _assert_declared(call: _kernels.KernelCall, t: SimpleNamespace, views: frozenset[str] = frozenset()) -> None:
    """A kernel gets the tensors that its op declares: all of them, contiguous, of the declared type and size.

    views: tensors that lie in other tensors, which were looked at before.
    """
    op, symbols = call.op, call.case.values
    assert {name for name, _ in call.choices} == set(op.choices), "the kernel doesn't know its choices"
    inputs, outputs = op.tensors(op.variants["tuned"])
    assert vars(t).keys() == {tensor.name for tensor in (*inputs, *outputs)}
    for tensor in (*inputs, *outputs):
        given = getattr(t, tensor.name)
        (shape,) = tensor.shapes(symbols)
        assert given.is_contiguous() or tensor.name in views, tensor.name
        assert given.numel() == torch.Size(shape).numel(), (tensor.name, given.shape, shape)
        assert str(given.dtype) == f"torch.{tensor.dtype_of(call.case.dtype)}", tensor.name


def _apart(call: _kernels.KernelCall, t: SimpleNamespace) -> SimpleNamespace:
    """Views of q, k, v, dout and gradients as the op declares them, where a kernel takes heads as they lie in qkv."""
    s = call.case.values
    windows, heads, tokens, size = (int(s[name]) for name in "WHTD")
    assert dict(call.macros) == {"PACKED": heads}
    assert t.q is t.k is t.v
    assert t.dq is t.dk is t.dv
    seen = SimpleNamespace(**vars(t))
    for packed, names in ((t.q, ("q", "k", "v")), (t.dq, ("dq", "dk", "dv")), (t.dout, ("dout",))):
        assert packed.is_contiguous()
        parts = packed.view(windows, tokens, len(names), heads, size).permute(2, 0, 3, 1, 4)
        vars(seen).update(zip(names, parts, strict=True))
    return seen


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All that a kernel knows of a tensor: its memory. So no derivative and no mode sees what a kernel does."""
    address, size = tensor.data_ptr(), tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.itemsize
    if not tensor.numel():
        return torch.empty_like(tensor).detach()
    raw = torch.frombuffer((ctypes.c_byte * size).from_address(address), dtype=tensor.dtype)
    return raw.as_strided(tensor.shape, tensor.stride())


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """OpKernels as references play them, on a CPU; what was called, by name. Sizes and types are checked."""
    called: Counter[str] = Counter()

    def run(launch: _kernels.KernelLaunch, *tensors: torch.Tensor) -> None:
        call = launch.wanted
        if any(tensor.device != call.device for tensor in tensors):
            raise _kernels._on_another(call, tensors)
        memory = {id(tensor): _memory(tensor) for tensor in tensors}
        in_order = [_kernels._as_it_lies(memory[id(tensor)]) for tensor in tensors]
        names = [tensor.name for tensor in declared(call.op)]
        t, views = SimpleNamespace(**dict(zip(names, in_order, strict=True))), frozenset[str]()
        if call.op.name == "window_attention_grad":
            t, views = _apart(call, t), _PACKED
        _assert_declared(call, t, views)
        shapes = {tensor.name: tensor.shapes(call.case.values)[0] for tensor in declared(call.op)}
        seen = SimpleNamespace(**{name: value.view(shapes[name]) for name, value in vars(t).items()})
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            for name, value in _by_reference(call, seen).items():
                if name in shapes:
                    getattr(seen, name).copy_(value.reshape(shapes[name]))
        called[call.op.name] += 1

    def obstacle(call: _kernels.KernelCall) -> str | None:
        is_possible = call.device.type == "cpu" and call.case.dtype in call.op.dtypes
        return None if is_possible else "no kernel for this type"

    monkeypatch.setattr(_kernels.KernelLaunch, "__call__", run)
    monkeypatch.setattr(_kernels, "_obstacle", obstacle)
    monkeypatch.setattr(_kernels.OpKernels, "__call__", _kernels.OpKernels.found)
    return called


def declared(op: Op) -> list[Tensor]:
    """The tensors of an op, as a launch takes them."""
    inputs, outputs = op.tensors(op.variants["tuned"])
    return [*inputs, *outputs]


def _floats(address: int, count: int, dtype: str = "float32") -> Any:
    size = np.dtype(dtype).itemsize
    memory: Any = (ctypes.c_byte * (count * size)).from_address(address)
    return np.frombuffer(memory, dtype)


def _adamw_kernel(_grid: int, _block: int, rows: torch.Tensor, step: torch.Tensor, _whole: Any, *settings: Any) -> None:
    """What kernels/lists/adamw.cu does, in float64."""
    *numbers, scale = settings
    rate, decay, beta1, beta2, log1, log2, eps = (number.value for number in numbers)
    first, second = -np.expm1(float(step) * log1), np.sqrt(-np.expm1(float(step) * log2))
    for *addresses, length in rows.tolist():
        if not length:
            continue
        half = "float16" if addresses[4] else "float32"
        weight, mean, square = (_floats(addresses[k], length) for k in (0, 2, 3))
        grad = _floats(addresses[1], length, half).astype(np.float64) / (1.0 if scale is None else float(scale))
        mean[:] = beta1 * mean + (1 - beta1) * grad
        square[:] = beta2 * square + (1 - beta2) * grad**2
        weight[:] = weight * (1 - decay) - rate / first * mean / (np.sqrt(square) / second + eps)
        if addresses[4]:
            _floats(addresses[4], length, half)[:] = weight


def _unscale_kernel(
    _grid: int, _block: int, rows: torch.Tensor, inv_scale: torch.Tensor, found_inf: torch.Tensor, _whole: Any
) -> None:
    """What kernels/lists/unscale.cu does to float32."""
    for base, ends in rows.tolist():
        begin, end = ends & 0xFFFFFFFF, ends >> 32
        part = _floats(base + 4 * begin, end - begin) if end else np.zeros(0, np.float32)
        if not np.isfinite(part).all():
            found_inf.fill_(1)
        part *= float(inv_scale)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU's lists take the way of a GPU's."""
    found = {"adamw": _adamw_kernel, "unscale": _unscale_kernel}
    for module in (_adamw, _unscale):
        monkeypatch.setattr(module, "of_lists", lambda op, _macros: found[op.name])
        monkeypatch.setattr(module, "on", lambda _device: nullcontext())
    monkeypatch.setattr(cuda, "stream_handle", lambda: 0)
    monkeypatch.setattr(_adamw.AdamW, "_update", _adamw.AdamW._by_kernel)
    for kept in (_unscale._layout, _unscale._table):
        kept.cache_clear()
    yield
    for kept in (_unscale._layout, _unscale._table):
        kept.cache_clear()


@contextmanager
def launches(**wanted: int) -> Iterator[None]:
    """Exactly so many launches of these ops, and of no other ops, are made inside."""
    before = dict(_kernels.LAUNCHED)
    yield
    made = {name: count - before.get(name, 0) for name, count in _kernels.LAUNCHED.items()}
    assert {name: count for name, count in made.items() if count} == wanted


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of the function and what it gave there, after three calls of it on a stream of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = function()
    return graph, made


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """Functions for the tests beside this file."""

    def normal(*shape: int, dtype: torch.dtype = torch.float64, wanted: bool = True) -> torch.Tensor:
        """Random numbers, whose gradient is wanted unless told."""
        return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(wanted)

    def results(
        function: Callable[..., torch.Tensor], *inputs: torch.Tensor, dtype: torch.dtype | None = None
    ) -> list[torch.Tensor]:
        """The output, and the gradients of the inputs for a gradient of the output that isn't contiguous.

        That gradient is rounded to the dtype, which is the output's unless told.
        """
        y = function(*inputs)
        slope = (torch.arange(y.numel(), device=y.device) * 7919 % 1009 / 504.0 - 1).double().view(y.shape)
        slope = slope.to(dtype or y.dtype).to(y.dtype).movedim(0, -1).contiguous().movedim(-1, 0)
        wanted = [one for one in inputs if one.requires_grad]
        return [y.detach(), *torch.autograd.grad(y, wanted, slope)]

    def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float) -> None:
        """Each tensor is as near to its other as `tolerance` times the largest element of that."""
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert one.shape == other.shape
            size = max(1e-3, other.abs().max().item()) if other.numel() else 1.0
            torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=tolerance * size)

    def compared(
        dtype: torch.dtype, ours: Callable[..., Any], theirs: Callable[..., Any], *shapes: Any, device: str = "cpu"
    ) -> None:
        """Both functions on the same numbers, with all gradients: ours in a dtype, theirs in float64."""
        inputs = [normal(*shape, dtype=dtype).detach().to(device).requires_grad_() for shape in shapes]
        exact = [one.detach().double().requires_grad_() for one in inputs]
        assert_close(results(ours, *inputs), results(theirs, *exact, dtype=dtype), TOLERANCE[dtype])

    def attention(qkv: torch.Tensor, bias: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Attention within windows, in plain torch."""
        windows, tokens, size = qkv.shape
        heads = len(bias)
        q, k, v = qkv.view(windows, tokens, 3, heads, size // (3 * heads)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        if mask is not None:
            scores = scores + mask.repeat(windows // len(mask), 1, 1)[:, None]
        return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)

    return SimpleNamespace(
        launches=launches,
        captured=captured,
        normal=normal,
        results=results,
        assert_close=assert_close,
        compared=compared,
        attention=attention,
        tolerance=TOLERANCE,
    )
