"""Say what a training step costs the host, and which functions of Python take the time.

    python scripts/host_profile.py swin_train swin_tiny 8 half_norm fused_norm_adam

Names an op of training steps, a model, a batch and rungs. The batch is to be so small that the GPU waits for the host.
For each rung there is the shortest time in which the host issued a step, without a profiler; then the functions with
the most time of their own, by cProfile, which makes each call of a function longer: compare rungs, not milliseconds.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from harness.collection.steps.training import _ladders
from harness.collection.steps.training._rungs import Rung
from harness.collection.steps.training._settings import math_modes
from harness.collection.steps.training._trainer import Setup, Trainer

WARM, ROUNDS, STEPS = 8, 9, 4
SHOWN = 25


def issued(trainer: Trainer) -> float:
    """Seconds of a step until the host has issued its work: the shortest round, since other work only adds to it."""
    best = float("inf")
    for _ in range(ROUNDS):
        _wait(trainer)
        begin = time.perf_counter()
        for _ in range(STEPS):
            trainer.loss_of_step()
        best = min(best, (time.perf_counter() - begin) / STEPS)
    return best


def by_function(trainer: Trainer) -> Iterator[tuple[float, float, str]]:
    """Functions with the most time of their own: its milliseconds a step, calls a step, and the name."""
    profiler = cProfile.Profile()
    _wait(trainer)
    # A backward has a thread of its own on a GPU, which this profiler doesn't see.
    with torch.autograd.set_multithreading_enabled(False):
        profiler.enable()
        for _ in range(STEPS):
            trainer.loss_of_step()
        profiler.disable()
    stats: Any = pstats.Stats(profiler)
    ranked = sorted(stats.stats.items(), key=lambda one: one[1][2], reverse=True)
    for (file, line, name), (_, calls, seconds, *_) in ranked[:SHOWN]:
        yield seconds / STEPS * 1e3, calls / STEPS, f"{Path(file).name}:{line} {name}"


def _wait(trainer: Trainer) -> None:
    if trainer.setup.device.type == "cuda":
        torch.cuda.synchronize()


def show(rung: Rung, setup: Setup) -> None:
    """Print what a step of the rung costs the host."""
    with math_modes(rung.tf32):
        trainer = Trainer(rung, setup)
        for _ in range(WARM):
            trainer.loss_of_step()
        print(f"\n{rung.name}: {issued(trainer) * 1e3:.2f} ms of the host a step")
        for milliseconds, calls, name in by_function(trainer):
            print(f"  {milliseconds:8.3f} ms {calls:8.1f} calls  {name}")


def main() -> None:
    """Print all rungs that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("op", choices=sorted(_ladders.LADDERS))
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("rungs", nargs="+", metavar="rung")
    asked = parser.parse_args()
    known = {rung.name: rung for rung in _ladders.LADDERS[asked.op]}
    if unknown := [name for name in asked.rungs if name not in known]:
        parser.error(f"{asked.op} has no rung {unknown[0]!r}; it has {', '.join(known)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    setup = Setup(asked.model, asked.batch, 1, device, torch.float16)
    for name in asked.rungs:
        show(known[name], setup)


if __name__ == "__main__":
    main()
