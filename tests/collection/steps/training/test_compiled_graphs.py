"""A CUDA graph of a compiled step: it captures once compilation is over, and each replay is a step of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from harness.collection.steps.training import _settings
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._settings import captured, forget_compiled, math_modes, side_stream
from harness.collection.steps.training._swin import SWIN
from harness.collection.steps.training._trainer import Setup, Trainer

pytestmark = pytest.mark.gpu
COMPILES = """
import sys, torch
from torch._dynamo.utils import counters
from harness.collection.steps.training._ladders import rung_of
from harness.collection.steps.training._trainer import Setup, Trainer
op, variant, model = sys.argv[1:]
trainer = Trainer(rung_of(op, variant), Setup(model, 8, 1, torch.device("cuda", 0), torch.float16))
trainer.loss_of_step()
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""
RUNGS = [
    pytest.param(model, rung, id=f"{model}-{rung.name}")
    for model, rungs in {"bert_toy": BERT, "swin_toy": SWIN, "resnet_toy": RESNET}.items()
    for rung in rungs
    if rung.graph and rung.compiled
]


@pytest.mark.parametrize(("model", "rung"), RUNGS)
def test_replays_of_a_compiled_step_train_with_random_numbers_of_their_own(model, rung):
    """Nothing is compiled any more after the first eager steps, since no capture would survive that."""
    with math_modes(tf32=True):
        trainer = Trainer(rung, Setup(model, 8, 1, torch.device("cuda", 0), torch.float16))
        with side_stream():
            for _ in range(_settings.EAGER):
                trainer.loss_of_step()
        with torch.compiler.set_stance("fail_on_recompile"):
            replay = captured(trainer.loss_of_step)
        losses = [replay().item() for _ in range(20)]
    forget_compiled()
    assert len(set(losses)) == len(losses)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("op", "variant", "model"),
    [
        ("bert_train", "compile_ours", "bert_toy"),
        ("swin_train", "compile_attention", "swin_toy"),
        ("resnet50_train", "compile", "resnet_toy"),
    ],
)
def test_a_second_process_compiles_nothing_anew(op, variant, model, tmp_path):
    """A run with --repeat compiles in its first process alone."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    found = []
    for _ in range(2):
        command = [sys.executable, "-c", COMPILES, op, variant, model]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.append(tuple(map(int, ended.stdout.split()[-2:])))
    (missed, _), (again, hit) = found
    assert missed == hit > 0
    assert again == 0


@pytest.mark.parametrize("model", ["bert_toy", "swin_toy"])
def test_replays_draw_random_numbers_anew(model):
    """Weights stay as they are, so that nothing but random numbers changes the loss."""
    rungs = {"bert_toy": BERT, "swin_toy": SWIN}[model]
    for rung in (one for one in rungs if one.graph and one.compiled):
        with math_modes(tf32=True):
            trainer = Trainer(rung, Setup(model, 8, 1, torch.device("cuda", 0), torch.float16))
            for group in trainer.optimizer.param_groups:
                group["lr"] = 0.0
            with side_stream():
                for _ in range(_settings.EAGER):
                    trainer.loss_of_step()
            replay = captured(trainer.loss_of_step)
            losses = [replay().item() for _ in range(6)]
        forget_compiled()
        assert len(set(losses)) > 1, rung.name
