"""Noise: how far identical code has differed, and when a machine is too noisy."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.gate import noise_store
from harness.gate.offsets import ASSUMED, LEAST_BLOCKS, OFFSET_ALPHA, Block, Offset
from harness.gate.records import Margin
from harness.model import Machine, Measurement
from harness.ops import Catalogue

QUIET = [Block(mean) for mean in (0.0004, -0.0005, 0.0003, -0.0006, 0.0005)]
WIDE = [Block(mean) for mean in (0.004, -0.005, 0.003, -0.004, 0.0045)]


def margin(blocks: list[Block], asked: float = 0.01, family: int = 1) -> Margin:
    return noise_store.Noise(Path("none"), "f00d", {("a", "graph"): blocks}).margin("a", "graph", asked, family)


def test_the_noise_is_three_standard_deviations_of_the_offsets() -> None:
    scale = math.sqrt(statistics.fmean(block.mean**2 for block in WIDE))
    assert margin(WIDE).noise == pytest.approx(-math.expm1(-3 * scale), rel=1e-9)


@pytest.mark.parametrize(("family", "value"), [(1, 0.0126), (12, 0.0178), (200, 0.02)])
def test_more_cases_need_a_wider_margin_which_lets_no_more_than_twice_what_was_asked_pass(
    family: int, value: float
) -> None:
    found = margin(WIDE, family=family)
    assert found.value == pytest.approx(value, rel=0.03)
    assert found.failing == pytest.approx(-math.expm1(-Offset(0.00414, 15).allowed(family)), rel=0.01)
    assert (found.failing > found.value) == (family == 200)
    assert not found.too_noisy
    assert family * found.chance == pytest.approx(OFFSET_ALPHA, rel=1e-6)


def test_one_bad_block_does_not_make_a_machine_too_noisy_but_most_do() -> None:
    assert margin([*QUIET[1:], Block(-0.7)]).value == 0.01
    found = margin([Block(-0.7), Block(0.6), Block(-0.5), *QUIET[:2]])
    assert found.too_noisy
    assert found.value == found.failing > 0.7


def test_the_chance_of_a_case_whose_margin_is_far_from_its_offsets_is_tiny() -> None:
    assert margin(QUIET).chance < 1e-6
    assert margin([]).chance == pytest.approx(OFFSET_ALPHA, rel=1e-6)
    assert margin([], asked=0.05).chance < 1e-20


@pytest.mark.parametrize(("asked", "noise", "too"), [(0.01, 0.02, False), (0.01, 0.0201, True), (0.3, 0.59, False)])
def test_noise_raises_the_margin_to_twice_what_was_asked_for_at_most(asked: float, noise: float, too: bool) -> None:
    found = Margin(asked, noise)
    assert (found.value, found.too_noisy) == (noise, too)


def test_a_waiver_raises_the_margin_but_not_what_noise_may_hide() -> None:
    found = Margin(0.01, 0.005, 0.015, waived=0.03)
    assert (found.value, found.failing, found.unwaived) == (0.03, 0.03, 0.015)
    assert Margin(0.01, 0.025, 0.04, waived=0.03).too_noisy
    assert Margin(0.01, 0.005, 0.04, waived=0.03).failing == 0.04


def test_a_quiet_case_keeps_what_was_asked_and_an_unknown_one_has_no_noise(machine: Machine, tmp_path: Path) -> None:
    noise = noise_store.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): QUIET})
    assert noise.margin("a", "graph", 0.01).value == 0.01
    assert noise.margin("a", "graph", 0.01).noise == pytest.approx(0.0014, rel=0.02)
    unknown = noise.margin("a", "host", 0.01, 12)
    assert unknown.noise is None
    # As if its offsets had the largest deviation that an H200 has shown.
    assert unknown.value == unknown.failing == pytest.approx(-math.expm1(-ASSUMED.allowed(12)))
    assert round(unknown.value, 4) == 0.0135


def test_a_few_blocks_give_no_noise() -> None:
    assert margin(QUIET[:-1]).noise is None
    assert not margin([Block(0.9)] * (LEAST_BLOCKS - 1)).too_noisy


def test_blocks_without_any_difference_and_absurd_ones_have_a_limit() -> None:
    assert margin([Block(0.0)] * 5).noise == 0.0
    assert math.isfinite(margin([Block(1e150)] * 5).limit)


def test_blocks_add_up_over_calibrations(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "sub" / "deeper" / "noise.json"
    noise_store.load(machine, file).add({("a", "graph"): [Block(0.001), Block(0.002, 0.1)]})
    noise_store.load(machine, file).add({("a", "graph"): [Block(-0.003)], ("b", "graph"): [Block(0.004)]})
    assert noise_store.load(machine, file).blocks == {
        ("a", "graph"): [Block(0.001), Block(0.002, 0.1), Block(-0.003)],
        ("b", "graph"): [Block(0.004)],
    }
    assert [path.name for path in file.parent.iterdir()] == ["noise.json"]


def test_blocks_that_are_added_count_at_once(machine: Machine, tmp_path: Path) -> None:
    noise = noise_store.load(machine, tmp_path / "noise.json")
    assert noise.margin("a", "graph", 0.01).noise is None
    noise.add({("a", "graph"): WIDE})
    assert noise.margin("a", "graph", 0.01).noise == margin(WIDE).noise


def test_the_newest_blocks_count(machine: Machine, tmp_path: Path) -> None:
    noise = noise_store.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): [Block(0.5)]})
    noise.add({("a", "graph"): [Block(0.001)] * 20})
    assert noise_store.load(machine, noise.file).blocks == {("a", "graph"): [Block(0.001)] * 20}
    noise.add({("a", "graph"): [Block(0.002)]})
    assert noise_store.load(machine, noise.file).blocks == {("a", "graph"): [*[Block(0.001)] * 19, Block(0.002)]}


def test_the_timer_of_a_case_is_the_one_of_a_process_with_a_time(measured: Callable[..., Measurement]) -> None:
    crashed = measured(status="crashed", timer="host")
    assert noise_store.timer([crashed, measured(timer="launch")]) == "launch"
    assert noise_store.timer([crashed]) == noise_store.timer([]) == ""


def test_a_file_of_several_machines_keeps_them_apart(machine: Machine, tmp_path: Path) -> None:
    other, file = replace(machine, fingerprint="beef"), tmp_path / "noise.json"
    noise_store.load(machine, file).add({("a", "graph"): [Block(0.1)]})
    assert noise_store.load(other, file).margin("a", "graph", 0.01).noise is None
    noise_store.load(other, file).add({("a", "graph"): [Block(0.2)]})
    assert noise_store.load(machine, file).blocks == {("a", "graph"): [Block(0.1)]}
    assert noise_store.load(other, file).blocks == {("a", "graph"): [Block(0.2)]}


def test_a_file_of_harness_0_1_is_read_with_the_ids_of_today_and_its_noise_is_robust(
    machine: Machine, tmp_path: Path
) -> None:
    file = tmp_path / "noise.json"
    means = [0.0002, -0.0004, 0.0003, 0.69, -0.0001, 0.0005]
    row = {"machine": machine.fingerprint, "case": "dropout/tuned/float16/N8/p=0.1", "timer": "graph", "means": means}
    file.write_text(json.dumps({"schema": 2, "blocks": [row]}, indent=1) + "\n")
    Catalogue()
    noise = noise_store.load(machine, file)
    assert noise.blocks == {("dropout/tuned/float16/N8", "graph"): [Block(mean) for mean in means]}
    assert noise.margin("dropout/tuned/float16/N8", "graph", 0.01).value == 0.01


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
        '{"schema": 3, "blocks": [{"machine": "f00d", "case": "a", "timer": "graph", "means": [1], "errors": [1, 2]}]}',
        '{"schema": 2, "blocks": [{"machine": "f00d", "case": "a", "timer": "graph", "means": [NaN]}]}',
        '{"schema": 2, "blocks": [{"machine": "f00d", "case": "a", "timer": "graph", "means": [1e999]}]}',
    ],
)
def test_another_file_is_refused(machine: Machine, tmp_path: Path, content: str) -> None:
    file = tmp_path / "noise.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"noise\.json: isn't a noise file") as caught:
        noise_store.load(machine, file)
    assert "calibrate" in caught.value.advice


def test_a_folder_that_cannot_be_written_is_reported(machine: Machine) -> None:
    with pytest.raises(MachineError, match="can't be written") as caught:
        noise_store.load(machine, Path("/dev/null/noise.json")).add({("a", "graph"): [Block(math.log(1.01))]})
    assert "--noise" in caught.value.advice
