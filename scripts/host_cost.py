"""Measure what a call of each function of harness.nn costs the host, beside torch's function of the same meaning.

    python scripts/host_cost.py > reports/mine/host.md

Needs a GPU. Tensors are tiny, so the GPU waits for the host, and a call takes as long as the host does. No call is
followed by a synchronisation. Rounds of both sides alternate, and the best round counts: other work on the machine can
only add to it. Torch's side is one function, or the several functions that one of ours replaces.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness import nn, steadiness
from harness.collection.models import swin
from harness.ops import Catalogue

ROUNDS, CALLS = 45, 40  # many short rounds: a virtual machine changes its speed from one second to the next
SHAPE = 8, 64
P = 0.1
STEADY_SECONDS = 5.0  # to see how steady the host is
ONE, SEVERAL = 1.2, 1.0
"""What a call of ours may take of the time of torch's one function, and of several functions."""

HEAD = """# What a call costs the host

Ours costs no more than its bar in {met} of {count} calls.

Microseconds of a call on tiny tensors, without a synchronisation: the GPU waits for the host, so this is the host's
time. Torch's side is one function, or the several functions that one of ours replaces. The bar is what ours may take of
torch's time. `scripts/host_cost.py` measures this, and wrote this page.
"""

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A function of ours and torch's side, which take the same tensors. several: torch's side calls several functions.

    inputs: shapes. half: for float16 alone. Under autocast, inputs of the first one's shape are in float16, as what
    products make, and all others are in float32, as parameters.
    """

    name: str
    ours: Call
    torch: Call
    inputs: tuple[tuple[int, ...], ...]
    several: bool = False
    half: bool = False

    @property
    def bar(self) -> float:
        return SEVERAL if self.several else ONE


def batch_norm(function: Call, running: list[Tensor]) -> Call:
    """A function of x, residual, weight and bias."""
    return lambda x, residual, weight, bias: function(x, residual, *running, weight, bias)


def torch_batch_norm(  # noqa: PLR0913, PLR0917 - what batch_norm_add_relu takes
    x: Tensor, residual: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """What batch_norm_add_relu() does, by three functions."""
    return functional.relu(functional.batch_norm(x, mean, var, weight, bias, training=True) + residual)


def torch_attention(qkv: Tensor, bias: Tensor) -> Tensor:
    """What window_attention() does, by scaled_dot_product_attention."""
    windows, tokens, size = qkv.shape
    heads = len(bias)
    q, k, v = qkv.view(windows, tokens, 3, heads, size // (3 * heads)).permute(2, 0, 3, 1, 4)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
    return out.transpose(1, 2).reshape(windows, tokens, size // 3)


def torch_norm_partition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What norm_partition() does, by two functions."""
    return swin.window_partition(functional.layer_norm(x, x.shape[-1:], weight, bias), 4, 2)


def pairs(device: torch.device) -> list[Pair]:
    """All functions that take tensors and give one."""
    rows, last = SHAPE, SHAPE[-1:]
    images, windows = (2, 8, 8, 32), (8, 16, 32)
    running = [torch.zeros(32, device=device), torch.ones(32, device=device)]
    return [
        Pair("layer_norm", nn.layer_norm, lambda x, w, b: functional.layer_norm(x, last, w, b), (rows, last, last)),
        Pair("rms_norm", nn.rms_norm, lambda x, w: functional.rms_norm(x, last, w, 1e-5), (rows, last)),
        Pair("softmax", nn.softmax, lambda x: torch.softmax(x, -1), (rows,)),
        Pair("dropout", lambda x: nn.dropout(x, P), lambda x: functional.dropout(x, P), (rows,)),
        Pair(
            "dropout_add",
            lambda x, r: nn.dropout_add(x, r, P),
            lambda x, r: functional.dropout(x, P) + r,
            (rows, rows),
            several=True,
        ),
        Pair(
            "bias_dropout_residual",
            lambda x, b, r: nn.bias_dropout_residual(x, b, r, P),
            lambda x, b, r: functional.dropout(x + b, P) + r,
            (rows, last, rows),
            several=True,
        ),
        Pair(
            "batch_norm_add_relu",
            batch_norm(nn.batch_norm_add_relu, running),
            batch_norm(torch_batch_norm, running),
            ((2, 32, 8, 8), (2, 32, 8, 8), (32,), (32,)),
            several=True,
        ),
        Pair(
            "window_partition",
            lambda x: nn.window_partition(x, 4, 2),
            lambda x: swin.window_partition(x, 4, 2),
            (images,),
            several=True,
        ),
        Pair(
            "window_reverse",
            lambda x: nn.window_reverse(x, 8, 8, 4, 2),
            lambda x: swin.window_reverse(x, 8, 8, 4, 2),
            (windows,),
            several=True,
        ),
        Pair(
            "norm_partition",
            lambda x, w, b: nn.norm_partition(x, w, b, 4, 2),
            torch_norm_partition,
            (images, (32,), (32,)),
            several=True,
        ),
        Pair(
            "window_attention",
            nn.window_attention,
            torch_attention,
            ((4, 49, 192), (2, 49, 49)),
            several=True,
            half=True,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of a call of ours, and of torch's side. bar: what ours may take of torch's time."""

    name: str
    what: str
    times: Sequence[float]
    bar: float

    @property
    def is_met(self) -> bool:
        ours, torchs = self.times
        return ours <= self.bar * torchs

    @property
    def line(self) -> str:
        ours, torchs = self.times
        verdict = "yes" if self.is_met else "no"
        cells = f"{ours:.1f}", f"{torchs:.1f}", f"{ours / torchs:.2f}", f"{self.bar:.1f}", verdict
        return f"| `{self.name}` | {self.what} | {' | '.join(cells)} |"


def best_of(calls: Sequence[Call], count: int = CALLS) -> list[float]:
    """Microseconds of a call of each, the best of alternating rounds."""
    times: list[list[float]] = [[] for _ in calls]
    for call in [*calls] * 3:
        call()
    for _ in range(ROUNDS):
        for call, own in zip(calls, times, strict=True):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            own.append((time.perf_counter() - begin) / count * 1e6)
    torch.cuda.synchronize()
    return [min(own) for own in times]


def training(function: Call, inputs: list[Tensor], slope: Tensor) -> Call:
    """A forward and a backward, as a training step has them: gradients begin as None."""

    def call() -> None:
        y = function(*inputs)
        for tensor in inputs:
            tensor.grad = None
        y.backward(slope)

    return call


def autocasting(device: torch.device, call: Call) -> Call:
    """The call under autocast, which is entered anew each time."""

    def under() -> None:
        with torch.autocast(device.type, torch.float16):
            call()

    return under


def functions(device: torch.device) -> Iterator[Row]:
    """A row for each function and way of calling it."""
    for pair in pairs(device):
        for autocast in (False, True):
            like_first = torch.float16 if autocast or pair.half else torch.float32
            inputs = [
                torch.randn(shape, device=device, dtype=like_first if shape == pair.inputs[0] else torch.float32)
                for shape in pair.inputs
            ]
            wrapped = partial(autocasting, device) if autocast else (lambda call: call)
            suffix = ", autocast" if autocast else ""
            both = pair.ours, pair.torch
            with torch.no_grad():
                times = best_of([wrapped(partial(one, *inputs)) for one in both])
            yield Row(pair.name, f"forward{suffix}", times, pair.bar)
            inputs = [tensor.requires_grad_() for tensor in inputs]
            calls = []
            for one in both:
                with torch.autocast(device.type, torch.float16, enabled=autocast):
                    slope = torch.randn_like(one(*inputs))
                calls.append(wrapped(training(one, inputs, slope)))
            yield Row(pair.name, f"forward and backward{suffix}", best_of(calls), pair.bar)


def optimizers(device: torch.device) -> Iterator[Row]:
    """Steps of optimizers with gradients that stay where they are, and with new ones."""
    for count in (150, 199):
        sides = []
        for make in (nn.AdamW, partial(torch.optim.AdamW, fused=True)):
            params = [torch.randn(64, device=device, requires_grad=True) for _ in range(count)]
            grads = [[torch.randn(64, device=device) for _ in params] for _ in range(2)]
            sides.append((make(params), params, grads))
        for what, kinds in (("the same gradients", 1), ("other gradients at each step", 2)):
            times = best_of([stepping(*side, kinds) for side in sides], 30)
            yield Row("AdamW.step", f"{count} tensors, {what}", times, 1.0)


def stepping(optimizer: Any, params: list[Tensor], grads: list[list[Tensor]], kinds: int) -> Call:
    """A step of the optimizer, with the gradients of `kinds` lists in turn."""
    number = 0

    def step() -> None:
        nonlocal number
        number = (number + 1) % kinds
        for param, grad in zip(params, grads[number], strict=True):
            param.grad = grad
        optimizer.step()

    return step


def unscaling(device: torch.device) -> Iterator[Row]:
    """Gradients checked and unscaled."""
    grads = [torch.randn(64, device=device) for _ in range(150)]
    scale, found = torch.ones((), device=device), torch.zeros((), device=device)
    by_torch = torch._amp_foreach_non_finite_check_and_unscale_
    calls = (lambda: nn.unscale_(grads, scale, found)), (lambda: by_torch(grads, found, scale))
    yield Row("unscale_", "150 tensors", best_of(calls, 50), ONE)


def launches(device: torch.device) -> Iterator[Row]:
    """A launch of a variant, as the harness makes it where it times call by call."""
    from harness.model import Case
    from harness.ops import Context

    x, alpha = torch.randn(2, 4, 8, 8, device=device), torch.randn(4, device=device)
    y = torch.empty_like(x)
    op = Catalogue()["prelu"]
    case = Case("prelu", "tuned", "float32", (("N", 2), ("C", 4), ("H", 8), ("W", 8)))
    launch = op.variants["tuned"].prepare(Context(case, torch.float32, device, torch.Generator(), op))
    tensors = SimpleNamespace(x=x, alpha=alpha, y=y)
    with torch.no_grad():
        calls = (lambda: launch(tensors)), (lambda: functional.prelu(x, alpha))
        yield Row("prelu/tuned", "a launch in the harness", best_of(calls), 1.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="functions whose name has this word")
    only = parser.parse_args().only
    if not torch.cuda.is_available():
        sys.exit("this needs a GPU: on a CPU torch computes what our kernels can't, and the host's cost isn't seen")
    device = torch.device("cuda", torch.cuda.current_device())
    found = [row for rows in (functions, optimizers, unscaling, launches) for row in rows(device) if only in row.name]
    print(HEAD.format(met=sum(row.is_met for row in found), count=len(found)))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {platform.python_version()}\n")
    print(f"{steadiness.watch(STEADY_SECONDS).sentence}\n")
    print("| function | a call | ours (us) | torch (us) | ours / torch | bar | met |")
    print("| --- | --- | --: | --: | --: | --: | --- |")
    for row in found:
        print(row.line)


if __name__ == "__main__":
    main()
