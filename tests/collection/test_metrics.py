"""Each metric that ops of the collection declare, and the order in which all of them stand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from harness import metrics
from harness.metrics import METRICS, Subject
from harness.model import Case, Limits, LinkPoint, Measurement, Result, Work
from harness.ops import Catalogue
from tests.rare import rare

CASE = Case("op", "tuned", "float16", (("N", 8),))
LIMITS = Limits(links=(LinkPoint(2, 1000, 1e-6, "nccl"),))
WORK = Work(read=2000, written=2000, items=5, item="rows")


@pytest.fixture(autouse=True)
def catalogue() -> Catalogue:
    return Catalogue()


def measured(time: float = 2e-6, case: Case = CASE, **fields: Any) -> Measurement:
    known: dict[str, Any] = {"work": WORK, "timer": "graph"}
    return Measurement(case, "ok", (time,) * 7, **(known | fields))


def scaled(variant: str, time: float, world: int = 2, **fields: Any) -> Measurement:
    work = replace(WORK, items=5 * world, sent=1000)
    return measured(time, replace(CASE, variant=variant, world=world), work=work, **fields)


def values(found: Measurement, over: Measurement | None = None) -> dict[str, float | None]:
    subject = Subject.of(Result(found.case, (found,)), LIMITS)
    return metrics.values(subject.against(Subject.of(over, LIMITS) if over else None))


@pytest.mark.parametrize(
    ("name", "fact", "value"),
    [("tokens", ("tokens_a_call", 640.0), 3.2e8), ("of_expected", ("expected_rate", 5e6), 0.5)],
)
def test_a_rate_of_facts(name: str, fact: tuple[str, float], value: float) -> None:
    assert values(measured(facts=(fact,)))[name] == pytest.approx(value)
    assert name not in values(measured())


def test_peak_memory_is_compared_with_another_variant() -> None:
    found, over = (measured(facts=(("peak_memory", size),)) for size in (300.0, 400.0))
    assert values(found, over)["memory"] == 0.75
    assert "memory" not in values(found, measured())


def test_a_collective_has_bandwidths_as_nccl_tests_count_them() -> None:
    found = values(scaled("nccl", 4e-6, facts=(("collective_bytes", 2000.0),)))
    assert found["bus_bandwidth"] == pytest.approx(1000 / 4e-6)
    assert found["algorithm_bandwidth"] == pytest.approx(2000 / 4e-6)
    assert found["link_bandwidth"] == pytest.approx(1e9)


NEIGHBOURS = ("items tokens of_peak", "kept memory of_expected efficiency", "kept_bytes snr mean_error largest_error",
              "efficiency_high hidden_by_times hidden_by_times_low hidden_by_times_high bus_bandwidth",
              "bus_bandwidth algorithm_bandwidth link_bandwidth ideal_items",
              "peak_memory decode_rate energy unscale_share training_loss",
              "training_loss loss_ratio gemm_share attention_share roll_share")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [rare("harness.collection.steps.training._scaling"), "harness.collection.steps.pipeline"]
)
def test_the_order_of_tables_doesnt_depend_on_what_was_loaded_first(first: str) -> None:
    program = (
        f"import {first}\nfrom harness.ops import Catalogue\nfrom harness.metrics import METRICS\n"
        "Catalogue(); print(*METRICS); Catalogue(); print(*METRICS)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    once, twice = done.stdout.splitlines()
    assert all(f" {together} " in f" {once} " for together in NEIGHBOURS)
    assert twice == once


def test_every_column_says_how_to_read_it() -> None:
    assert [name for name, metric in METRICS.items() if metric.head and not metric.hint] == []
    assert [name for name, metric in METRICS.items() if metric.limit and metric.limit not in METRICS] == []
