"""Figures of whole steps of a model, and of its inference: what variants report, and what tools tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from harness import metrics, units
from harness.collection.steps.training import _traced
from harness.metrics import Metric, Subject, over_variant

TOKENS = "tokens_a_call"
"""The fact that a variant has whose items are sequences of tokens: how many tokens a call has."""
PEAK_MEMORY, ENERGY = "peak_memory", "energy"
UNSCALE, LOSS = "unscale_share", "training_loss"
"""Told by tools, not by a variant."""


def _tokens(s: Subject) -> float | None:
    return s.facts[TOKENS] / s.time if TOKENS in s.facts and s.time else None


metrics.add(
    Metric(
        "tokens",
        "tokens a second",
        units.TOKENS,
        _tokens,
        "tokens of all sequences, over the time",
        "higher",
        head="{unit}",
        keep=6,
        shown=lambda s: TOKENS in s.facts,
    ),
    after="items",
)
metrics.add(
    Metric(
        "memory",
        "peak memory of a step",
        units.RATIO,
        over_variant(PEAK_MEMORY),
        "the most bytes that tensors take during a step, over the same number of another variant",
        "lower",
        relative="variant",
        said="less",
    ),
    after="kept",
)
metrics.fact(TOKENS, "tokens of a call", units.COUNT, "tokens of all sequences of a call", head="", after="local_bytes")
metrics.fact(
    PEAK_MEMORY, "peak memory", units.BYTES, "the most bytes that tensors take during a step", "lower", after=TOKENS
)
metrics.fact(
    ENERGY, "joules an item", units.PLAIN, "energy of the GPU in steps, over the steps' items", "lower",
    after=PEAK_MEMORY,
)  # fmt: skip
metrics.found(
    UNSCALE,
    "share of unscaling in busy time",
    units.FINE_SHARE,
    "time of the kernels that unscale gradients, over the time in which the GPU ran any kernel, by a trace; waits for "
    "the host aren't in it",
    "lower",
    _traced.share_of("unscale"),
    by_trace=True,
    after=ENERGY,
)
metrics.found(
    LOSS,
    "loss of trainings",
    units.PLAIN,
    "mean loss of longer trainings, from several seeds",
    "lower",
    lambda attached, _time: attached.get("losses.loss"),
    after=UNSCALE,
)


def _of_busy(
    name: str, title: str, of: str, share: Callable[[Mapping[str, float], float | None], float | None]
) -> None:
    """Add the share of some kernels, which claims are about. Tables have the shares of all families already."""
    hint = f"time of {of}, over the time in which the GPU ran any kernel, by a trace"
    value = partial(_told, name)
    metrics.add(
        Metric(name, title, units.SHARE, value, hint, "lower", reported=True, by_trace=True, attached=share),
        after=LOSS,
    )


def _told(name: str, s: Subject) -> float | None:
    return s.facts.get(name)


_of_busy("roll_share", "share of roll in busy time", "torch.roll's kernels", _traced.kernels_like("roll_cuda"))
_of_busy(
    "attention_share",
    "share of attention in busy time",
    "fused attention, products of batches and softmax",
    _traced.attention,
)
_of_busy("gemm_share", "share of GEMM in busy time", "products of matrices", _traced.share_of("gemm"))
metrics.add(
    Metric(
        "loss_ratio",
        "loss of trainings",
        units.FINE_RATIO,
        over_variant(LOSS),
        "mean loss of longer trainings, over the mean loss of another variant's from the same seeds",
        "lower",
        relative="variant",
    ),
    after=LOSS,
)
