"""Kinds of noise for `gate_models.py`: how far the medians of processes are off, and what the pairs of a run share."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from harness.gate import pairing
from harness.gate.records import change

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Noise = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def steady(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """How far a process's median is off, as a logarithm: normal, 0.05%, about what a quiet H200 shows."""
    return rng.normal(0, 0.0005, size)


def slow(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """20% of processes are 3% slow; all are steady besides."""
    return steady(rng, size) + change(-0.03) * (rng.random(size) < 0.2)


def heavy(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Student's t with 2 degrees of freedom, which has no variance, times 0.2%: 1 in 100 is off by 2% or more."""
    return 0.002 * rng.standard_t(2, size)


def outliers(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """3% of processes take 10% to 100% longer; all are steady besides."""
    longer: NDArray[np.float64] = np.log1p(rng.uniform(0.1, 1.0, size)) * (rng.random(size) < 0.03)
    return steady(rng, size) - longer


def bimodal(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Half of the processes are 1.5% slow; all are steady besides."""
    return steady(rng, size) + change(-0.015) * (rng.random(size) < 0.5)


def drifting(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Each process is 0.2% slower than the one before it; all are steady besides."""
    return steady(rng, size)  # `pairs` adds the drift, since it knows the order


def together(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Processes as in `slow`, where a slow process is slow in all its cases, as one process measures all of them."""
    runs, _cases, *rest = size
    return steady(rng, size) + change(-0.03) * (rng.random((runs, 1, *rest)) < 0.2)


def ordered(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """The second process of a pair is slower or faster than the first, in each case and run by another 0.5%."""
    return steady(rng, size)  # `pairs` adds the effect, since it knows the order


def sticky(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Clocks are 2% lower for ten processes in the mean, then higher for as many, in all cases of a run."""
    return steady(rng, size)  # `pairs` adds the clocks, which last from process to process


def sides(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Clocks as in `sticky`, 0.8% lower for ten pairs in the mean, of each side by itself."""
    runs, _cases, *rest = size
    return steady(rng, size) + change(-0.008) * _lasting(rng, (runs, 1, *rest))


ALONE: dict[str, Noise] = {
    "steady": steady,
    "slow": slow,
    "heavy": heavy,
    "outliers": outliers,
    "bimodal": bimodal,
    "drifting": drifting,
}
LATELY: dict[str, Noise] = {"slow together": together, "ordered": ordered, "sticky": sticky, "sticky side": sides}
MODELS = ALONE | LATELY


def pairs(model: str, rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """Changes that pairs of processes of identical code show. The pairs of a gate run lie along the last axis."""
    noise = MODELS[model](rng, size) - MODELS[model](rng, size)
    *shape, count = size
    if model == "drifting":
        return noise + change(-0.002) * _later(rng, size)
    if model == "ordered":
        return noise + rng.normal(0, 0.005, (*shape, 1)) * _later(rng, size)
    if model == "sticky":
        runs, _cases, *rest = size
        clocks = change(-0.02) * _lasting(rng, (runs, 1, *rest[:-1], 2 * count))
        # The process now minus the process of the base, of which the order says which came later.
        return noise + (clocks[..., 1::2] - clocks[..., ::2]) * _later(rng, (runs, 1, *rest))
    return noise


def offset_of(deviation: float, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """What all pairs of a run share, for each case and run: a column beside the pairs."""
    return rng.normal(0, deviation, shape)[..., None]


def _lasting(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """0 or 1 along the last axis: each lasts ten steps in the mean."""
    flips = rng.random(size) < 0.1
    flips[..., 0] = rng.random(size[:-1]) < 0.5
    return (np.cumsum(flips, axis=-1) % 2).astype(np.float64)


def _later(rng: np.random.Generator, size: tuple[int, ...]) -> NDArray[np.float64]:
    """1 where the code now is measured after the base, -1 where it is measured before, by the gate's own order."""
    *shape, count = size
    draw = random.Random(int(rng.integers(2**32)))
    signs = [
        [1.0 if first == "base" else -1.0 for first in itertools.islice(pairing.order(draw), count)]
        for _ in range(int(np.prod(shape)))
    ]
    return np.array(signs).reshape(size)
