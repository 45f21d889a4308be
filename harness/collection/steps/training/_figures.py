"""Figures of whole steps of a model, and of its inference: what variants report, and what tools tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from harness import metrics, units
from harness.collection.ops.gemm._int8 import SNR
from harness.collection.steps.training import _traced
from harness.metrics import Metric, Subject, over_variant

TOKENS = "tokens_a_call"
"""The fact that a variant has whose items are sequences of tokens: how many tokens a call has."""
PEAK_MEMORY, ENERGY = "peak_memory", "energy"
WEIGHTS, ACTIVATIONS = "weight_bytes", "activation_bytes"
BLOCK_SNR, MERGING_SNR = "block_snr", "merging_snr"
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
metrics.fact(WEIGHTS, "weights", units.BYTES, "bytes of the weights that a call reads", "lower", after=ENERGY)
metrics.fact(
    ACTIVATIONS,
    "activations",
    units.BYTES,
    "bytes of all tensors that a call makes, by the allocator's count; memory that a compiler uses twice counts once",
    "lower",
    after=WEIGHTS,
)
metrics.fact(
    BLOCK_SNR,
    "block",
    units.DECIBELS,
    "signal to noise of what a block makes of its input, against the same block in higher precision; the mean over all "
    "blocks",
    "higher",
    after=ACTIVATIONS,
)
metrics.fact(
    MERGING_SNR,
    "merging",
    units.DECIBELS,
    "the same of the products between stages",
    "higher",
    after=BLOCK_SNR,
)
for _name, _fact, _what in (
    ("weights", WEIGHTS, "weights"),
    ("activations", ACTIVATIONS, "activations"),
):
    metrics.add(
        Metric(
            _name,
            f"bytes of {_what}",
            units.FINE_RATIO,
            over_variant(_fact),
            f"bytes of {_what}, over the same bytes of another variant",
            "lower",
            relative="variant",
            said="less",
        ),
        after=MERGING_SNR,
    )


def _error(name: str, s: Subject) -> float | None:
    """The energy of an error over that of the variant which is compared with, of facts in decibels."""
    over = s.over.facts.get(name) if s.over else None
    return 10 ** ((over - s.facts[name]) / 10) if over is not None and name in s.facts else None


for _name, _fact, _what in (
    ("logits_error", SNR, "the logits"),
    ("block_error", BLOCK_SNR, "a block's result"),
    ("merging_error", MERGING_SNR, "the result of a product between stages"),
):
    metrics.add(
        Metric(
            _name,
            f"energy of the error of {_what}",
            units.FINE_RATIO,
            partial(_error, _fact),
            f"energy of the error of {_what}, over the same of another variant",
            "lower",
            relative="variant",
            said="less",
        ),
        after=MERGING_SNR,
    )
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
