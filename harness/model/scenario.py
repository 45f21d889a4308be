"""What a scenario asked for, as stored with a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.model.case import Value

Says = Literal["better", "worse", "equal", "nothing"]
"""What a text says of a variant's figure. With a value: that it is at least as good as the value, at most as good, or
the same. Without one: that the variant is better than the one it is compared with, worse, or nothing at all."""
NEAR = 0.03
"""How far from a text's value counts as near, as a share of the value, unless the claim says more."""
LIBRARY_ROLES = frozenset({"baseline", "peer", "control"})
"""Roles of variants that are a library's code: no change of ours changes them."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a public text says of a variant, to print beside what was measured here.

    metric: a name in `metrics.py`. value: in SI units of the metric; None if the text gives none. says: how the figure
    here has to lie to the value, or to the other variant. over: the variant that it is compared with. base: sizes and
    choices by name in which the case that it is compared with differs from its own; without `over` the variant is the
    same. where: a glob on the case groups (op/dtype/shape) that the claim is about. within: how far from the value
    counts as near, as a share of it. text: the text's words.
    """

    row: str
    variant: str
    metric: str
    value: float | None
    hardware: str
    over: str = ""
    where: str = "*"
    text: str = ""
    says: Says = "better"
    within: float = NEAR
    base: tuple[tuple[str, int | Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Expectation:
    """A floor: the gate fails a variant whose `metric` is below `value`.

    where: a glob on case groups (op/dtype/shape). Of several floors of a metric, the first that matches a case counts.
    """

    variant: str
    metric: str
    value: float
    where: str = "*"


@dataclass(frozen=True, slots=True)
class Curve:
    """A plot over an expression of the op's symbols, in place of the usual plots.

    label: text of its axis. by: a symbol, each of whose sizes has a line; without one, each variant has a line.
    littles_law: the expression is bytes being read on a multiprocessor at a time, so Little's law is drawn.
    """

    over: str
    label: str
    by: str = ""
    littles_law: bool = False

    @property
    def of_variants(self) -> bool:
        """Whether each variant has a line, which may stop before the ends of the axis."""
        return not self.by and not self.littles_law


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a scenario file asked for, as stored with a run, so that a report needs no other file.

    roles: the role of each variant, in the op's order.
    """

    name: str
    title: str
    op: str
    cases: tuple[str, ...]
    shows: str = ""
    source: str = ""
    rows: tuple[str, ...] = ()
    baseline: str = "eager"
    tags: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    claims: tuple[Claim, ...] = ()
    curve: Curve | None = None
    plot: str = ""
    roles: tuple[tuple[str, str], ...] = ()

    def role(self, variant: str) -> str:
        """The role of a variant of the op: the stored one; else the role that its name usually means."""
        return dict(self.roles).get(variant) or usual_role(self.op, variant)


def usual_role(op: str, variant: str) -> str:
    """The role that a variant's name usually means, for a scenario that doesn't tell the role."""
    if op == "copy" and variant in ("eager", "memcpy"):
        return "control"
    if variant in ("eager", "compile"):
        return "baseline"
    if variant.startswith("peer:"):
        return "peer"
    return "ours" if variant == "tuned" else "published"
