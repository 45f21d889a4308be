"""Noise floors: the largest difference that identical code has shown."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.gate import _noise
from harness.gate.records import Margin
from harness.model import Machine


def test_the_largest_mean_of_either_sign_is_the_floor(machine: Machine, tmp_path: Path) -> None:
    noise = _noise.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): [0.001, -0.02], ("a", "launch"): [0.5]})
    margin = noise.margin("a", "graph", 0.01)
    assert margin.limit == pytest.approx(-0.02, rel=1e-12)
    assert margin.asked == 0.01


def test_a_quiet_case_keeps_what_was_asked_and_an_unknown_one_has_no_floor(machine: Machine, tmp_path: Path) -> None:
    noise = _noise.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): [0.001]})
    assert noise.margin("a", "graph", 0.01).value == 0.01
    assert noise.margin("a", "host", 0.01) == Margin(0.01, None)


def test_blocks_add_up_over_calibrations(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "sub" / "noise.json"
    _noise.load(machine, file).add({("a", "graph"): [0.001, 0.002]})
    _noise.load(machine, file).add({("a", "graph"): [-0.003], ("b", "graph"): [0.004]})
    assert _noise.load(machine, file).blocks == {("a", "graph"): [0.001, 0.002, -0.003], ("b", "graph"): [0.004]}
    assert [path.name for path in file.parent.iterdir()] == ["noise.json"]


def test_the_newest_blocks_count(machine: Machine, tmp_path: Path) -> None:
    noise = _noise.load(machine, tmp_path / "noise.json")
    noise.add({("a", "graph"): [0.5]})
    noise.add({("a", "graph"): [0.001] * _noise.KEPT})
    assert _noise.load(machine, noise.file).blocks == {("a", "graph"): [0.001] * _noise.KEPT}


def test_a_file_of_several_machines_keeps_them_apart(machine: Machine, tmp_path: Path) -> None:
    other, file = replace(machine, fingerprint="beef"), tmp_path / "noise.json"
    _noise.load(machine, file).add({("a", "graph"): [0.1]})
    assert _noise.load(other, file).margin("a", "graph", 0.01) == Margin(0.01, None)
    _noise.load(other, file).add({("a", "graph"): [0.2]})
    assert _noise.load(machine, file).blocks == {("a", "graph"): [0.1]}
    assert _noise.load(other, file).blocks == {("a", "graph"): [0.2]}


def test_blocks_of_harness_0_1_0_are_those_of_the_same_cases(machine: Machine, tmp_path: Path) -> None:
    noise = _noise.load(machine, tmp_path / "noise.json")
    noise.add({("dropout/tuned/float16/N8-P10", "graph"): [0.1]})
    assert _noise.load(machine, noise.file).blocks == {("dropout/tuned/float16/N8/p=0.1", "graph"): [0.1]}


def test_each_machine_has_a_file_of_its_own(machine: Machine, cache_folder: Path) -> None:
    assert _noise.load(machine).file == cache_folder / "noise-cpu-f00d.json"


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 7, "blocks": []}', '{"schema": 2, "blocks": [{}]}'])
def test_another_file_is_refused(machine: Machine, tmp_path: Path, content: str) -> None:
    file = tmp_path / "noise.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=r"noise\.json: isn't a file of noise floors") as caught:
        _noise.load(machine, file)
    assert "calibrate" in caught.value.advice


def test_a_folder_that_cannot_be_written_is_reported(machine: Machine) -> None:
    with pytest.raises(MachineError, match="can't be written") as caught:
        _noise.load(machine, Path("/dev/null/noise.json")).add({("a", "graph"): [math.log(1.01)]})
    assert "--noise" in caught.value.advice
