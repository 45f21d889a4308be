"""Figures of training steps that texts claim: shares of the busy time, and losses against another rung's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.metrics import told
from harness.model import Attachment, Case, Claim, KernelProfile, Measurement, Run
from harness.ops import Catalogue
from harness.report.claim_tables import interval_over
from harness.report.claims import comparisons
from harness.report.tool_figures import every


def shares(**more: float) -> dict[str, float]:
    """What a trace tells: 60% of the window is products, 20% softmax, and roll a twentieth of the busy time."""
    assert Catalogue()
    kernels = (KernelProfile("void at::native::roll_cuda_kernel<float>(float)", 2.0, (("time", 1e-3),)),)
    values = {"time": 0.04, "idle": 0.2, "family_gemm": 0.6, "family_softmax": 0.2, **more}
    return told(every([Attachment("a", "torch", tuple(values.items()), (), kernels)]), 0.05)


def test_shares_of_products_of_attention_and_of_roll_are_of_the_busy_time() -> None:
    found = shares(batched=0.2)
    assert found["gemm_share"] == pytest.approx(0.75)
    assert found["attention_share"] == pytest.approx(0.5)
    assert found["roll_share"] == pytest.approx(0.05)


def test_attention_is_known_only_where_products_of_batches_are() -> None:
    assert "attention_share" not in shares()
    assert shares(family_attention=0.1, batched=0.0)["attention_share"] == pytest.approx(0.3 / 0.9)


def test_without_its_kernels_nothing_is_said_of_roll() -> None:
    assert Catalogue()
    kernels = (KernelProfile("gemm", 2.0, (("time", 1e-3),)),)
    found = Attachment("a", "torch", (("time", 0.04), ("family_gemm", 1.0)), (), kernels)
    assert "roll_share" not in told(every([found]), 0.05)


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((2.002, 2.1021, 2.2022), "agrees"),
        ((2.04, 2.142, 2.244), "disagrees"),
        ((2.2, 2.1, 2.0), "can't tell"),
    ],
    ids=["all a thousandth more", "all a fiftieth more", "the same losses of other seeds"],
)
def test_losses_are_compared_seed_by_seed(make_run: Callable[..., Run], means: Sequence[float], verdict: str) -> None:
    cases = [Case("swin_train", name, "float16", (("B", 64),), (("model", "swin_large"),)) for name in ("tf32", "amp")]
    timed = [Measurement(case, "ok", (0.1,) * 11, timer="steady") for case in cases]
    losses = [
        Attachment(case.id, "losses", (("loss", sum(own) / 3),), series=(("loss", tuple(own)),))
        for case, own in zip(cases, ((2.0, 2.1, 2.2), means), strict=True)
    ]
    claim = Claim("S7", "amp", "loss_ratio", 1.0, "any", over="tf32", says="equal", within=0.005)
    run = make_run(timed, attachments=tuple(losses), claims=(claim,))
    (found,) = comparisons(run.header.scenarios[0], run)
    assert (found.verdict, interval_over(found)) == (verdict, "one recording")
