"""Noise floors: how far identical code has differed, and when a machine is too noisy."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy  # which imports scipy.stats, a second's work, where it is used

from harness.errors import MachineError, UsageError
from harness.gate import noise_store
from harness.gate.records import Margin
from harness.model import Machine

QUIET = [0.0004, -0.0005, 0.0003, -0.0006, 0.0005]


def margin(means: list[float], asked: float = 0.01) -> Margin:
    return noise_store.Noise(Path("none"), "f00d", {("a", "graph"): means}).margin("a", "graph", asked)


def test_the_floor_is_the_largest_mean_of_either_sign_among_blocks_of_one_kind() -> None:
    found = margin([0.010, -0.02, 0.012, 0.014, -0.011])
    assert found.limit == pytest.approx(-0.02, rel=1e-12)
    assert found.asked == 0.01


@pytest.mark.parametrize("bad", [1, 2])
def test_bad_blocks_raise_the_floor_no_further_than_three_robust_deviations(bad: int) -> None:
    means = [*QUIET[bad:], *[-0.7] * bad]
    robust = 3 * sorted(map(abs, means))[2] / scipy.stats.norm.ppf(0.75)
    assert robust < 0.003
    assert noise_store.floor(means) == pytest.approx(-math.expm1(-robust), rel=1e-9)
    assert margin(means).value == 0.01


def test_a_machine_most_of_whose_blocks_are_bad_is_too_noisy() -> None:
    found = margin([-0.7, 0.6, -0.5, 0.0004, 0.0003])
    assert found.too_noisy
    assert found.value == pytest.approx(1 - math.exp(-0.7))


@pytest.mark.parametrize(("asked", "noise", "too"), [(0.01, 0.02, False), (0.01, 0.0201, True), (0.3, 0.59, False)])
def test_a_floor_raises_the_margin_to_twice_what_was_asked_for_at_most(asked: float, noise: float, too: bool) -> None:
    found = Margin(asked, noise)
    assert (found.value, found.too_noisy) == (noise, too)


def test_a_quiet_case_keeps_what_was_asked_and_an_unknown_one_has_no_floor(machine: Machine, tmp_path: Path) -> None:
    noise = noise_store.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): QUIET})
    assert noise.margin("a", "graph", 0.01).value == 0.01
    assert noise.margin("a", "graph", 0.01).noise == pytest.approx(0.0006, rel=1e-3)
    assert noise.margin("a", "host", 0.01) == Margin(0.01, None)


def test_a_few_blocks_give_no_floor() -> None:
    assert noise_store.floor([0.001] * (noise_store.LEAST_BLOCKS - 1)) is None
    assert noise_store.floor([0.001] * noise_store.LEAST_BLOCKS) == pytest.approx(0.001, rel=1e-3)
    assert not margin([0.9] * (noise_store.LEAST_BLOCKS - 1)).too_noisy


def test_blocks_without_any_difference_and_absurd_ones_have_a_limit() -> None:
    assert noise_store.floor([0.0] * 5) == 0.0
    assert math.isfinite(margin([1e300] * 5).limit)


@pytest.mark.parametrize(("count", "stated"), [(5, 0.09), (10, 0.05), (20, 0.024)])
def test_a_block_of_normal_noise_exceeds_the_floor_as_rarely_as_is_stated(count: int, stated: float) -> None:
    blocks = scipy.stats.norm.rvs(scale=0.001, size=(4000, count), random_state=np.random.default_rng(7))
    limits = [math.log1p(-noise_store.floor(list(means))) for means in blocks]
    # Exact for these blocks: how likely the next one lies below each limit.
    rate = statistics.fmean(scipy.stats.norm.cdf(limits, scale=0.001))
    assert rate == pytest.approx(stated, rel=0.12)
    assert rate >= 0.97 / (2 * count + 2)


def test_rare_outliers_do_not_raise_the_floor() -> None:
    """3% of processes are 10 to 100% slow, so 17% of blocks hold one. The largest of 20 was 3% or more in 97%."""
    draw = np.random.default_rng(7)
    off = draw.normal(0, 0.0005, (1000, 20, 3, 2)) + np.log1p(draw.uniform(0.1, 1, (1000, 20, 3, 2))) * (
        draw.random((1000, 20, 3, 2)) < 0.03
    )
    means = (off[..., 0] - off[..., 1]).mean(axis=-1)
    assert (abs(means).max(axis=1) > 0.03).mean() > 0.9
    floors = np.array([noise_store.floor(list(blocks)) for blocks in means])
    assert (floors > 0.01).mean() <= 0.01


def test_blocks_add_up_over_calibrations(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "sub" / "noise.json"
    noise_store.load(machine, file).add({("a", "graph"): [0.001, 0.002]})
    noise_store.load(machine, file).add({("a", "graph"): [-0.003], ("b", "graph"): [0.004]})
    assert noise_store.load(machine, file).blocks == {("a", "graph"): [0.001, 0.002, -0.003], ("b", "graph"): [0.004]}
    assert [path.name for path in file.parent.iterdir()] == ["noise.json"]


def test_the_newest_blocks_count(machine: Machine, tmp_path: Path) -> None:
    noise = noise_store.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): [0.5]})
    noise.add({("a", "graph"): [0.001] * noise_store.KEPT})
    assert noise_store.load(machine, noise.file).blocks == {("a", "graph"): [0.001] * noise_store.KEPT}


def test_a_file_of_several_machines_keeps_them_apart(machine: Machine, tmp_path: Path) -> None:
    other, file = replace(machine, fingerprint="beef"), tmp_path / "noise.json"
    noise_store.load(machine, file).add({("a", "graph"): [0.1]})
    assert noise_store.load(other, file).margin("a", "graph", 0.01) == Margin(0.01, None)
    noise_store.load(other, file).add({("a", "graph"): [0.2]})
    assert noise_store.load(machine, file).blocks == {("a", "graph"): [0.1]}
    assert noise_store.load(other, file).blocks == {("a", "graph"): [0.2]}


def test_a_file_is_read_and_its_floors_are_robust(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "noise.json"
    means = [0.0002, -0.0004, 0.0003, 0.69, -0.0001, 0.0005]
    row = {"machine": machine.fingerprint, "case": "dropout/tuned/float16/N8/p=0.2", "timer": "graph", "means": means}
    file.write_text(json.dumps({"schema": 2, "blocks": [row]}, indent=1) + "\n")
    noise = noise_store.load(machine, file)
    assert noise.blocks == {("dropout/tuned/float16/N8/p=0.2", "graph"): means}
    assert noise.margin("dropout/tuned/float16/N8/p=0.2", "graph", 0.01).value == 0.01


def test_each_machine_has_a_file_of_its_own(machine: Machine, cache_folder: Path) -> None:
    assert noise_store.load(machine).file == cache_folder / "noise-cpu-f00d.json"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema": 1, "blocks": []}',
        '{"schema": 7, "blocks": []}',
        '{"schema": 2, "blocks": [{}]}',
        '{"schema": 2, "blocks": [{"machine": "f00d", "case": "a", "timer": "graph", "means": [NaN]}]}',
        '{"schema": 2, "blocks": [{"machine": "f00d", "case": "a", "timer": "graph", "means": [1e999]}]}',
    ],
)
def test_another_file_is_refused(machine: Machine, tmp_path: Path, content: str) -> None:
    file = tmp_path / "noise.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"noise\.json: isn't a file of noise floors") as caught:
        noise_store.load(machine, file)
    assert "calibrate" in caught.value.advice


def test_a_folder_that_cannot_be_written_is_reported(machine: Machine) -> None:
    with pytest.raises(MachineError, match="can't be written") as caught:
        noise_store.load(machine, Path("/dev/null/noise.json")).add({("a", "graph"): [math.log(1.01)]})
    assert "--noise" in caught.value.advice
