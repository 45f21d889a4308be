"""The types in which rungs do their products: what they declare is what torch is asked for, and the work stays."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.collection.models import MODELS
from harness.collection.steps.training import _settings
from harness.collection.steps.training._ladders import LADDERS
from harness.collection.steps.training._trainer import Trainer
from harness.model import Case

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}


class Products(TorchDispatchMode):  # type: ignore[misc]
    """Counts products and convolutions by the type of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            kinds = {one.dtype for one in args if isinstance(one, torch.Tensor)}
            self.found[" and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))] += 1
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", ["float32", "tf32", "amp"])
def test_products_have_the_type_that_the_rung_declares(name, training, setup):
    rung = next(rung for rung in LADDERS[training] if rung.name == name)
    with _settings.math_modes(rung.tf32):
        # Products of halves don't ask for it.
        allowed = torch.get_float32_matmul_precision() == "high", torch.backends.cudnn.allow_tf32
        assert allowed == (rung.arithmetic != "float32",) * 2
        trainer = Trainer(rung, setup)
        with Products() as products:
            trainer.loss_of_step()
    assert len(products.found) == 1
    assert set(products.found) == {"float16" if rung.arithmetic == "" else "float32"}


def test_each_rung_has_the_work_of_all_and_a_ceiling_of_its_own_types(catalogue, training):
    op = catalogue[training]
    values = {"B": 32, **{name: choice.usual for name, choice in op.choices.items()}, "world": 1}
    work = op.work_of(values, "bfloat16")
    assert [kind for kind, _ in work.flops] == ["bfloat16"]
    own = {"float32": "float32", "tf32": "tf32"}
    for name, variant in op.variants.items():
        done = op.work_done_by(variant, values, "bfloat16")
        assert done.flops == ((own.get(name, "bfloat16"), work.operations),), name


def test_inference_in_int8_has_the_products_of_blocks_in_int8(catalogue):
    op, config = catalogue["swin_infer"], MODELS["swin_tiny"]
    values = Case("swin_infer", "int8", "float16", (("B", 4),), (("model", "swin_tiny"),)).values
    done = {name: dict(op.work_done_by(op.variants[name], values, "float16").flops) for name in ("graph", "int8")}
    assert done["graph"] == {"float16": 4 * config.flops()}
    # A pixel of a block takes 12 products of its channels with as many: 3 for q, k and v, 1 after attention, 8 for both
    # layers at the end; in tokens of 96 to 768 channels.
    pixels = ((2, 56, 96), (2, 28, 192), (6, 14, 384), (2, 7, 768))
    assert done["int8"]["int8"] == 4 * sum(depth * 2 * 12 * side**2 * size**2 for depth, side, size in pixels)
    assert sum(done["int8"].values()) == 4 * config.flops()
    assert 0.85 < done["int8"]["int8"] / (4 * config.flops()) < 0.95
