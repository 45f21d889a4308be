"""The role of each variant of a scenario: baseline, peer, published, ours, control."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.model import Scenario
from harness.ops.catalogue import LOADED


def roles(scenario: Scenario, variants: Iterable[str]) -> dict[str, str]:
    """The role of each variant: as stored, in the op's order, then of `variants` without a stored role, by name."""
    known = dict(scenario.roles)
    return known | {name: scenario.role(name) for name in variants if name not in known}


def today(scenario: Scenario, variants: Iterable[str]) -> dict[str, str]:
    """The role of each variant of the op as it is loaded, then of the scenario's variants that the op has no more.

    Where the op isn't loaded, the roles are as stored. A run may have few of the op's variants, and another run more:
    what has to be the same for both, such as a colour, follows from all variants of the op.
    """
    op = LOADED.get(scenario.op)
    own = {name: variant.role for name, variant in op.variants.items()} if op else {}
    return own | {name: role for name, role in roles(scenario, variants).items() if name not in own}


def foremost(found: Mapping[str, str]) -> str:
    """The variant that a figure emphasises: the last of ours, since an op declares its fastest last; '' for none."""
    return next((name for name, role in reversed(list(found.items())) if role == "ours"), "")
