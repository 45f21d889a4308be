"""The rungs of each training op by name, and which of them another one is based on. This file needs no torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from harness.collection.steps.ladder import _rungs as own
from harness.collection.steps.training._bert import BERT
from harness.collection.steps.training._llama import LLAMA
from harness.collection.steps.training._resnet import RESNET
from harness.collection.steps.training._rungs import Rung, as_asked
from harness.collection.steps.training._swin import SWIN
from harness.model import Case

LADDERS = {"swin_train": SWIN, "bert_train": BERT, "resnet50_train": RESNET, "llama_train": LLAMA}
OWN = "ladder_"
"""How the names of ops begin that `harness ladder` makes of users' steps."""
_NAMES = frozenset({"name", "summary", "base", "rows", "role"})
"""The fields of a rung that change nothing in a step."""


def rung_of(op: str, variant: str) -> Rung | None:
    """The rung that a variant of an op is; None for an op without rungs, and for a variant that is none of them."""
    return next((rung for rung in LADDERS.get(op, ()) if rung.name == variant), None)


def rung_of_case(case: Case) -> Rung | None:
    """The rung that a case is, as the case asks for it; None where `rung_of` knows none."""
    rung = rung_of(case.op, case.variant)
    return rung and as_asked(rung, case)


def is_ladder(op: str) -> bool:
    """Whether the variants of an op are rungs."""
    return op in LADDERS or op.startswith(OWN)


def base(op: str, variant: str, among: Collection[str]) -> str:
    """The rung that a rung is compared with: of the rungs above it, the one whose steps differ least from its own.

    among: names of the rungs that may be compared with. Of several that differ equally, the highest counts. '' if there
    is none.
    """
    rungs: tuple[Any, ...] = own.of_names(among) if op.startswith(OWN) else LADDERS.get(op, ())
    rung = next((one for one in rungs if one.name == variant), None)
    if rung is None:
        return ""
    above = [one for one in rungs[: rungs.index(rung)] if one.name in among]
    # The first of equals is the smallest, so that the order is from the nearest one up.
    return min(reversed(above), key=lambda one: _differences(one, rung)).name if above else ""


def _differences(one: Any, other: Any) -> int:
    """How many settings of two rungs differ."""
    settings = [field.name for field in fields(one) if field.name not in _NAMES]
    return sum(getattr(one, name) != getattr(other, name) for name in settings)
