"""What depends on the kind of device: whether calls launch kernels, what that takes, and which tool counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.devices import Device
from harness.devices.cpu import Cpu
from harness.devices.cuda import Cuda
from harness.explain import Known, all_rules, command
from tests.one_test import one_test


class Slow(Cuda):
    """A device that isn't ours: its launches take long, and a tool of its own counts."""

    kind = "slow"
    launch_seconds = 1e-3
    counters = "stopwatch"


def rules(known: Known) -> set[str]:
    return {
        reason.rule
        for name, rule in all_rules().items()
        if name in ("launches", "host")
        for reason in rule.judge(known)
    }


@one_test(
    ("kind", "short", "host"),
    [
        pytest.param(Cuda(), {"launches"}, {"host"}, id="cuda"),
        pytest.param(Slow(), {"launches"}, {"host", "launches"}, id="of a package"),
        pytest.param(Cpu(), set(), set(), id="cpu"),
        pytest.param(None, set(), set(), id="not here"),
    ],
)
def test_a_host_has_no_launches_and_a_kind_that_is_not_here_no_verdict(
    kind: Device | None, short: set[str], host: set[str], faulty: Callable[[str], Known]
) -> None:
    """Of a stored run of a kind whose package isn't installed, nothing is known of the device."""
    without_streams = {
        name: replace(faulty(name), subject=replace(faulty(name).subject, limits=None)) for name in ("short", "host")
    }
    assert rules(replace(without_streams["short"], kind=kind)) == short
    assert rules(replace(without_streams["host"], kind=kind)) == host


def test_a_launch_takes_what_the_device_says_where_no_stream_was_shorter(faulty: Callable[[str], Known]) -> None:
    known = replace(faulty("short"), subject=replace(faulty("short").subject, limits=None), kind=Slow())
    [reason] = all_rules()["launches"].judge(known)
    assert "a launch: 1.000 ms, typical" in reason.sums


def test_the_tool_that_counts_is_the_device_s(faulty: Callable[[str], Known]) -> None:
    known = faulty("short")
    assert command(known) == f"harness profile ncu op --only '{known.case.id}'"
    assert command(replace(known, kind=Slow())) == f"harness profile stopwatch op --only '{known.case.id}'"
    assert command(replace(known, kind=Cpu())) == command(replace(known, kind=None)) == ""
