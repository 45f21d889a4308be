"""What torch offers, tried on every function of harness.nn.

A feature is a way to call a function, which gives tensors. It is right if it gives of our function what it gives of
torch's in float64. support.yaml says what is expected, and is the table of the page by scripts/make_nn_support.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml
from torch import Tensor

from tests.collection.nn import tensors, ways
from tests.collection.nn.examples import EXAMPLES, VARIANTS, Call, Example, again, gradients

TABLE = Path(__file__).with_name("support.yaml")


@dataclass(frozen=True)
class Feature:
    """A way to call a function. reference: the way that torch's function is called in, in float64.

    exact: whether numbers are compared, or shapes alone. has_example: whether both ways take the example, too.
    """

    way: Callable[..., list[Tensor]]
    reference: Callable[..., list[Tensor]] | None = None
    exact: bool = True
    has_example: bool = False
    needs_gpu: bool = False

    def made(self, function: Call, inputs: list[Tensor], example: Example, *, wanted: bool = False) -> list[Tensor]:
        """What the way, or the reference way, makes."""
        way = (self.reference or self.way) if wanted else self.way
        more = {"example": example} if self.has_example else {}
        return [one.detach() for one in way(function, inputs, **more)]


def _plain(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    return gradients(function, inputs)


def _undrawn(function: Call, inputs: list[Tensor], example: Example) -> list[Tensor]:
    return [] if example.draws else gradients(function, inputs)


def _forward(function: Call, inputs: list[Tensor]) -> list[Tensor]:
    return [again(function)(*inputs)]


FEATURES: dict[str, Feature] = {
    "gradients": Feature(gradients),
    "some_gradients": Feature(ways.some_gradients),
    "without_gradients": Feature(ways.without_gradients),
    "double_backward": Feature(ways.double_backward),
    "func_grad": Feature(ways.func_grad),
    "func_jvp": Feature(ways.func_jvp),
    "dual_numbers": Feature(ways.dual_numbers),
    "func_vmap": Feature(ways.func_vmap),
    "vmap_of_grad": Feature(ways.vmap_of_grad),
    "forward_over_reverse": Feature(ways.forward_over_reverse),
    "batched_gradients": Feature(ways.batched_gradients),
    "checkpoint": Feature(ways.checkpointed),
    "offloaded": Feature(ways.offloaded, _plain),
    "autocast": Feature(ways.under_autocast, _plain),
    "compile": Feature(ways.compiled, _plain),
    "export": Feature(ways.exported, _forward),
    "cuda_graph": Feature(ways.in_a_graph, _plain, needs_gpu=True),
    "strided": Feature(tensors.strided),
    "empty": Feature(tensors.empty, has_example=True),
    "no_dimension": Feature(tensors.no_dimension),
    "float64": Feature(tensors.converted(torch.float64), _plain),
    "halves": Feature(tensors.converted(torch.float16), _plain),
    "integers": Feature(tensors.forward_of(torch.int64), tensors.forward_of(torch.float64)),
    "complex": Feature(tensors.forward_of(torch.complex64), tensors.forward_of(torch.float64)),
    "meta": Feature(tensors.on_meta, _plain, exact=False),
    "fake": Feature(tensors.fake, _forward, exact=False),
    "mixed_devices": Feature(tensors.mixed_devices),
    "subclass": Feature(tensors.subclass, _forward),
    "dispatch_mode": Feature(tensors.dispatch_mode, _plain),
    "function_mode": Feature(tensors.function_mode, _plain),
    "default_dtype": Feature(tensors.default_dtype, _plain),
    "distributed": Feature(tensors.distributed, _undrawn, has_example=True),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass(frozen=True)
class Row:
    """A row of the table. outcomes: of each function, `kernel`, `torch`, `none` or `error: what it says`."""

    name: str
    title: str
    outcomes: dict[str, str] = field(default_factory=dict)


def rows() -> list[Row]:
    """The table of functions."""
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))["functions"]
    return [
        Row(name, one["does"], {function: one.get("but", {}).get(function, one["outcome"]) for function in EXAMPLES})
        for name, one in table.items()
    ]


def outcome(name: str, feature: str, device: str, launched: Callable[[], int]) -> str:
    """What a feature gives of a function on a device: `kernel`, `torch`, or `error: what it says`.

    launched: how many kernels were launched until now. Raises AssertionError for wrong results.
    """
    example, tried = (EXAMPLES | VARIANTS)[name], FEATURES[feature]
    torch.manual_seed(0)
    exact = [torch.randn(shape, dtype=torch.float64).to(example.dtype).double().to(device) for shape in example.shapes]
    inputs = [one.to(example.dtype) for one in exact]
    gradients(example.theirs, exact)  # masks are drawn here, where no transform sees it
    before = launched()
    try:
        made = tried.made(example.ours, inputs, example)
    except AssertionError:
        raise
    except LookupError as error:
        return f"none: {error}"
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"
    by_kernel = launched() > before
    _compare(made, tried.made(example.theirs, exact, example, wanted=True), tried.exact)
    return "kernel" if by_kernel else "torch"


def _compare(made: list[Tensor], wanted: list[Tensor], is_exact: bool) -> None:
    assert len(made) == len(wanted), f"{len(made)} tensors, not {len(wanted)}"
    for one, other in zip(made, wanted, strict=True):
        assert one.shape == other.shape, f"{tuple(one.shape)}, not {tuple(other.shape)}"
        if is_exact and other.numel():
            assert torch.equal(one.isnan(), other.isnan())  # as the mean over nothing is
            size = max(1e-3, float(other.nan_to_num().abs().max()))
            off = one.to(torch.promote_types(one.dtype, other.dtype)) - other
            error = float(off.nan_to_num().abs().max()) / size
            assert error <= TOLERANCE.get(one.dtype, 0.0), f"off by {error:.1e} of the largest number"
