"""Say what a training step costs the host: rungs side by side, and which functions of Python take the time.

    python scripts/host_profile.py swin_train swin_tiny 8 fused_norm_adam:half_norm > reports/mine/host_steps.md
    python scripts/host_profile.py --functions swin_train swin_tiny 8 fused_norm_adam:half_norm

Names an op of training steps, a model, a batch, and rungs of ours, each with the rung of torch that does the same. The
batch is to be so small that the GPU waits for the host.
The rungs make their steps in turns, in one process. A host that other machines share changes its speed by half from one
second to the next; a ratio of two steps of the same round doesn't show that.

--functions lists, for each rung, the functions with the most time of their own, by cProfile, which makes each call of a
function longer: compare rungs, not milliseconds.
"""

from __future__ import annotations

import argparse
import cProfile
import platform
import pstats
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness import stats, steadiness
from harness.collection.steps.training import _ladders
from harness.collection.steps.training._rungs import Rung
from harness.collection.steps.training._settings import math_modes
from harness.collection.steps.training._trainer import Setup, Trainer

WARM, ROUNDS, STEPS = 8, 60, 2
STEADY_SECONDS = 5.0  # to see how steady the host is
SHOWN = 25
BAR = 1.05
"""What a step of ours may take of the host's time for a step of torch's rung."""

HEAD = """# What a training step costs the host

{op}, {model}, batch {batch}: so small that the GPU waits for the host, so this is the host's time. The rungs make their
steps in turns, {rounds} rounds of {steps} steps, in one process. The ratio is the median over rounds, with its 95%
interval: a host that other machines share is faster or slower from one second to the next, and all rungs of a round
with it. `scripts/host_profile.py` measures this, and wrote this page.

{gpu}, torch {torch}, Python {python}

{steadiness}

| ours | ms a step | torch's | ms a step | ours / torch's | bar | met |
| --- | --: | --- | --: | --: | --: | --- |"""


def side_by_side(trainers: Mapping[str, Trainer]) -> dict[str, list[float]]:
    """Seconds of the host for a step of each rung, in each round, until it has issued the work."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    order = [*trainers]
    for _ in range(ROUNDS):
        random.shuffle(order)
        for name in order:
            _wait(trainers[name])
            begin = time.perf_counter()
            for _ in range(STEPS):
                trainers[name].loss_of_step()
            times[name].append((time.perf_counter() - begin) / STEPS)
    return times


def row(pair: Sequence[str], times: Mapping[str, Sequence[float]]) -> str:
    """A line of the table. pair: a rung of ours, and torch's rung that it is held to."""
    own, others = (times[name] for name in pair)
    ratios = [one / other for one, other in zip(own, others, strict=True)]
    low, high = stats.median_interval(ratios) or (min(ratios), max(ratios))
    verdict = "yes" if high <= BAR else "no" if low > BAR else "can't tell"
    cells = [cell for name in pair for cell in (f"`{name}`", f"{statistics.median(times[name]) * 1e3:.1f}")]
    cells += [f"{statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]", f"{BAR:.2f}", verdict]
    return f"| {' | '.join(cells)} |"


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
    found: Any = pstats.Stats(profiler)
    ranked = sorted(found.stats.items(), key=lambda one: one[1][2], reverse=True)
    for (file, line, name), (_, calls, seconds, *_) in ranked[:SHOWN]:
        yield seconds / STEPS * 1e3, calls / STEPS, f"{Path(file).name}:{line} {name}"


def _wait(trainer: Trainer) -> None:
    if trainer.setup.device.type == "cuda":
        torch.cuda.synchronize()


def trainers_of(rungs: Sequence[Rung], setup: Setup) -> dict[str, Trainer]:
    """A trainer of each rung, whose first steps are made: they compile, and choose kernels."""
    trainers = {rung.name: Trainer(rung, setup) for rung in rungs}
    for trainer in trainers.values():
        for _ in range(WARM):
            trainer.loss_of_step()
    return trainers


def show_functions(trainers: Mapping[str, Trainer]) -> None:
    """Print the functions that take the time, for each rung."""
    for name, trainer in trainers.items():
        print(f"\n{name}")
        for milliseconds, calls, function in by_function(trainer):
            print(f"  {milliseconds:8.3f} ms {calls:8.1f} calls  {function}")


def show_table(op: str, setup: Setup, pairs: Sequence[Sequence[str]], times: Mapping[str, Sequence[float]]) -> None:
    """Print the page."""
    gpu = torch.cuda.get_device_name() if setup.device.type == "cuda" else "CPU"
    about = {"torch": torch.__version__, "python": platform.python_version(), "gpu": gpu}
    about["steadiness"] = steadiness.watch(STEADY_SECONDS).sentence
    print(HEAD.format(op=op, model=setup.model, batch=setup.size, rounds=ROUNDS, steps=STEPS, **about))
    for pair in pairs:
        print(row(pair, times))


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--functions", action="store_true", help="which functions of Python take the time")
    parser.add_argument("op", choices=sorted(_ladders.LADDERS))
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument(
        "pairs", nargs="+", metavar="ours:torchs", help="a rung of ours, and torch's that does the same"
    )
    asked = parser.parse_args()
    pairs = [one.split(":") for one in asked.pairs]
    if wrong := [one for one, pair in zip(asked.pairs, pairs, strict=True) if len(pair) != 2]:
        parser.error(f"{wrong[0]!r} isn't two rungs; write them as fused_norm_adam:half_norm")
    known = {rung.name: rung for rung in _ladders.LADDERS[asked.op]}
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{asked.op} has no rung {unknown[0]!r}; it has {', '.join(known)}")
    rungs = [known[name] for name in names]
    if other := [rung.name for rung in rungs if rung.tf32 != rungs[0].tf32]:
        parser.error(f"{other[0]} and {names[0]} can't take turns: one of them has TF32, a setting of the process")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    setup = Setup(asked.model, asked.batch, 1, device, torch.float16)
    with math_modes(rungs[0].tf32):
        trainers = trainers_of(rungs, setup)
        if asked.functions:
            show_functions(trainers)
        else:
            show_table(asked.op, setup, pairs, side_by_side(trainers))


if __name__ == "__main__":
    main()
