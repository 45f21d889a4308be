"""The role of each variant of a scenario: baseline, peer, published, ours, control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.model import Scenario


def roles(scenario: Scenario, variants: Iterable[str]) -> dict[str, str]:
    """The role of each variant: as stored, in the op's order, then of `variants` without a stored role, by name."""
    known = dict(scenario.roles)
    return known | {name: scenario.role(name) for name in variants if name not in known}


def foremost(found: Mapping[str, str]) -> str:
    """The variant that a figure emphasises: the last of ours, since an op declares its fastest last; '' for none."""
    return next((name for name, role in reversed(list(found.items())) if role == "ours"), "")
