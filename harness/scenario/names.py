"""The names that a scenario file may use, and the checks of single values that need them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from harness.errors import clipped, nearest
from harness.metrics import METRICS, claimed
from harness.ops import Op
from harness.scenario.documents import shown

_LONGEST = 300  # characters of a message


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a file may use: all ops, its own op (None if unknown), and the dtypes and variants it measures."""

    ops: Collection[str]
    op: Op | None = None
    dtypes: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()


def op(name: str, info: ValidationInfo[Names]) -> str:
    """An op that there is, and that has a variant."""
    if info.context.op and not info.context.op.variants:
        raise refused(f"op '{name}' has no variants", "add one with @OP.variant(...)")
    if name in info.context.ops:
        return name
    raise refused(f"no op is named '{name}'", which_op(name, info.context.ops))


def which_op(name: str, ops: Collection[str]) -> str:
    """What to do about the name of an op that isn't there."""
    advice = nearest(name, ops)
    return advice if advice.startswith("did you mean") else f"an op of your own needs its file: --ops FILE; {advice}"


def dtype(name: str, info: ValidationInfo[Names]) -> str:
    """A dtype of the op."""
    op = info.context.op
    return known(name, op.dtypes, f"op '{op.name}' has no dtype") if op else name


def variant(name: str, info: ValidationInfo[Names]) -> str:
    """A variant of the op."""
    op = info.context.op
    return known(name, op.variants, f"op '{op.name}' has no variant") if op else name


def measured(name: str, info: ValidationInfo[Names]) -> str:
    """A variant that the scenario measures."""
    return known(name, info.context.variants, "this scenario measures no variant") if info.context.op else name


def symbol(name: str, info: ValidationInfo[Names]) -> str:
    """A symbol of the op."""
    op = info.context.op
    return known(name, op.symbols, f"op '{op.name}' has no symbol") if op else name


def metric(name: str) -> str:
    """A metric that a claim may be of."""
    if name not in claimed():
        raise refused(f"'{name}' isn't known here", nearest(name, claimed()))
    return name


def base(values: dict[str, Any], info: ValidationInfo[Names]) -> dict[str, Any]:
    """What a claim's other case differs in: sizes and choices of the op, for a metric that compares two cases."""
    of, compares = info.context.op, METRICS.get(info.data.get("metric", ""))
    if values and compares and compares.relative != "variant":
        raise refused(f"stands beside the metric {compares.name}", "it is for metrics that compare, such as speedup")
    if of:
        for name in values:
            known(name, [*of.symbols, *of.choices], f"op '{of.name}' has no symbol and no choice")
    return values


def over(name: str, info: ValidationInfo[Names]) -> str:
    """The variant that a claim compares with, which a metric that compares needs unless there is a base."""
    if name:
        return variant(name, info)
    compares = METRICS.get(info.data.get("metric", ""))
    if compares and compares.relative == "variant" and not info.data.get("base", "which is wrong itself"):
        raise refused("is missing", f"a claim of {compares.name} compares with another variant: name that variant")
    return name


def value(number: float | None, info: ValidationInfo[Names]) -> float | None:
    """The value of a claim, which it has or hasn't as `says` says."""
    of, says = METRICS.get(info.data.get("metric", "")), info.data.get("says", "better")
    if number is not None and says == "nothing":
        raise refused("stands beside 'says: nothing'", "remove one of them: a text gives a figure, or it doesn't")
    if number is None and of and says != "nothing" and (says == "equal" or not of.said):
        raise refused("is missing", f"give the text's {of.title}, or 'says: nothing' where the text gives none")
    return number


def choice(found: object) -> object:
    """The value of a choice."""
    if not isinstance(found, bool | int | float | str):
        raise refused(f"must be a name or a number, found {shown(found)}", "")
    return found


def known(name: str, allowed: Collection[str], message: str) -> str:
    """The name, if it is allowed. Raises the error that `refused` makes."""
    if name not in allowed:
        raise refused(f"{message} '{name}'", nearest(name, allowed))
    return name


def refused(message: str, advice: str) -> PydanticCustomError:
    """The error of a value, with what to do about it."""
    return PydanticCustomError("refused", "{message}", {"message": clipped(message, _LONGEST), "advice": advice})
