"""NVTX ranges of a step: where a profiler listens, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.collection.steps.training import _ranges
from harness.collection.steps.training._ladders import LADDERS
from harness.collection.steps.training._rungs import AMP
from harness.collection.steps.training._trainer import Trainer

OURS = {
    op: next(r for r in reversed(rungs) if r.role == "ours" and not r.compiled and r.half == "mixed")
    for op, rungs in LADDERS.items()
    if op != "llama_train"  # whose rungs of ours are in pure halves
}


@pytest.fixture
def opened(monkeypatch):
    """What happened, in order: '<name' for a range that began, 'name>' for one that ended."""
    found = []

    class Range:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            found.append(f"<{self.name}")

        def __exit__(self, *_):
            found.append(f"{self.name}>")

    monkeypatch.setattr(_ranges, "NvtxRange", Range)
    return found


def nested(found):
    """Each range with the range around it. Raises AssertionError if one ends that isn't the innermost."""
    around, open_ = [], []
    for each in found:
        if each.startswith("<"):
            around.append((each[1:], open_[-1] if open_ else ""))
            open_.append(each[1:])
        else:
            assert open_.pop() == each[:-1]
    assert not open_
    return around


@pytest.mark.parametrize("ours", [False, True], ids=["torch", "ours"])
def test_a_step_has_its_parts_and_each_block_in_the_forward_and_the_backward(
    training, setup, ours, opened, monkeypatch
):
    monkeypatch.setenv(_ranges.PROFILER, "/somewhere/libinjection.so")
    rung = replace(OURS[training], graph=False) if ours else AMP
    trainer = Trainer(rung, replace(setup, dtype=torch.bfloat16))
    trainer.loss_of_step()
    first = list(opened)
    trainer.loss_of_step()
    assert opened == 2 * first
    around = nested(first)
    assert [name for name, outer in around if not outer] == ["forward", "backward", "optimizer"]
    blocks = [name for name, outer in around if outer == "forward"]
    assert len(blocks) == len(set(blocks)) > 1
    assert all(
        name.startswith("block ") and name.removeprefix("block ") in dict(trainer.model.named_modules())
        for name in blocks
    )
    assert [name for name, outer in around if outer == "backward"] == blocks[::-1]


def test_losses_are_the_same(setup, opened, monkeypatch):
    losses = []
    for library in ("", "/somewhere/libinjection.so"):
        monkeypatch.setenv(_ranges.PROFILER, library)
        trainer = Trainer(AMP, setup)
        losses.append([trainer.loss_of_step().item() for _ in range(2)])
        assert bool(opened) == bool(library)
    assert losses[0] == losses[1]


def test_without_a_profiler_nothing_of_a_step_is_changed(setup, opened, monkeypatch):
    monkeypatch.delenv(_ranges.PROFILER, raising=False)
    trainer = Trainer(AMP, setup)
    assert not {*vars(trainer)} & {*_ranges.PARTS}
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(module, name) for module in trainer.model.modules() for name in hooks)
    trainer.loss_of_step()
    assert opened == []


def test_compiled_code_has_no_ranges_of_blocks(opened, monkeypatch, setup):
    monkeypatch.setenv(_ranges.PROFILER, "/somewhere/libinjection.so")
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    Trainer(replace(AMP, compiled="default"), setup).loss_of_step()
    assert [name for name, _ in nested(opened)] == ["forward", "backward", "optimizer"]
