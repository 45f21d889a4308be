"""Variants that work honestly, and replace something that times rest on: their part of tests/exploits.yaml."""

from __future__ import annotations

import random
import statistics
from functools import partial
from typing import Any

import pytest
import torch

from harness import check, measure, recheck, stats
from harness.ops import Context, Launch
from tests.exploits import Exploit, Work

REPLACED: dict[str, tuple[Any, str, Any, str]] = {
    "replaced_statistics": (stats, "relative_width", lambda *_: 0.0, "harness.stats.relative_width"),
    "replaced_median": (statistics, "median", lambda _: 1e-9, "statistics.median"),
    "replaced_measuring": (measure.Sampler, "sample", lambda *_: "interval", "harness.measure.Sampler.sample"),
    "replaced_check": (recheck.Recheck, "results", lambda *_: None, "harness.recheck.Recheck.results"),
    "replaced_seeds": (random.Random, "randrange", lambda *_: 7, "random.Random.randrange"),
    "replaced_generator": (torch, "default_generator", object(), "torch.default_generator"),
    "replaced_layer": (torch.nn.functional, "linear", torch.numel, "torch.nn.functional.linear"),
    "replaced_by_an_object": (torch.linalg, "vector_norm", partial(torch.sum), "torch.linalg.vector_norm"),
    "replaced_by_another": (torch.Tensor, "isfinite", torch.Tensor.isnan, "torch.Tensor.isfinite"),
    "replaced_default": (check.verdict, "__kwdefaults__", {"strict": False}, "harness.check.verdict"),
    "replaced_comparison": (
        torch.Tensor,
        "isnan",
        lambda self: self != self + 1,
        "torch.Tensor.isnan",
    ),
    "replaced_clock": (torch.cuda.Event, "elapsed_time", torch.numel, "torch.cuda.streams.Event.elapsed_time"),
    "replaced_code": (stats.relative_width, "__code__", (lambda *_: 0.0).__code__, "harness.stats.relative_width"),
    "replaced_constant": (check, "LEEWAY", 1e9, "harness.check.LEEWAY"),
    "replaced_tolerance": (check, "TOLERANCE", {"float32": (1.0, 1.0)}, "harness.check.TOLERANCE"),
}


def copying(_: Context, work: Work) -> Launch:
    """The honest variant."""
    return lambda t: t.y.copy_(work(t.x))


def replacing(patch: pytest.MonkeyPatch, name: str) -> Exploit:
    """A variant that replaces something when it is prepared, and works honestly. patch: undoes that later."""
    owner, attribute, value, _ = REPLACED[name]

    def prepare(ctx: Context, work: Work) -> Launch:
        patch.setattr(owner, attribute, value, raising=False)
        return copying(ctx, work)

    return Exploit(prepare)
