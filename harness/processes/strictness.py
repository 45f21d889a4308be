"""How strictly the outputs of ops are checked, so that the gate can compare two codes in that too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.check import TOLERANCE
from harness.ops import Op

Strictness = tuple[str, str, float, float]
"""An op, a dtype, and the relative and absolute error that its outputs may have.

Both errors are -1 for an op with a check of its own, which doesn't tell what it allows.
"""
_OWN_CHECK = (-1.0, -1.0)
Spared = tuple[str, str, float]
"""An op, what its inputs don't have of extreme values, and the number from which on they don't; 0 for not at all.

'nan' is a kind, 'x' an input, 'x.nan' a kind in an input, 'all' is everything. 'largest x' is about large numbers.
"""
_ALL = "all"


def strictness(ops: Iterable[Op]) -> tuple[Strictness, ...]:
    """One entry for each op and dtype whose outputs are checked: an op with neither check nor reference has none."""
    checked = [op for op in ops if op.check or op.reference]
    return tuple((op.name, dtype, *_allowed(op, dtype)) for op in checked for dtype in op.dtypes)


def laxer(before: Iterable[Strictness], now: Mapping[str, Op]) -> tuple[str, ...]:
    """What is checked less strictly now, one sentence for each op and dtype. Ops and dtypes that are gone are left out.

    before: as another code checks them.
    """
    found: list[str] = []
    for name, dtype, relative, absolute in before:
        op = now.get(name)
        if op is None or dtype not in op.dtypes:
            continue
        if not (op.check or op.reference):
            found.append(f"{name} has neither a reference nor a check now")
            continue
        errors = _allowed(op, dtype)
        if errors == _OWN_CHECK != (relative, absolute):
            found.append(
                f"{name} has a check of its own now, and nobody can tell whether it allows more than the reference "
                "before"
            )
        elif (relative, absolute) != _OWN_CHECK and (errors[0] > relative or errors[1] > absolute):
            found.append(
                f"{name} in {dtype} may be off by {errors[0]:g} (relative) and {errors[1]:g} (absolute) now, "
                f"by {relative:g} and {absolute:g} before"
            )
    return tuple(dict.fromkeys(found))


def spared(ops: Iterable[Op]) -> tuple[Spared, ...]:
    """With which extreme values the ops aren't checked."""
    return tuple((op.name, what, number) for op in ops for what, number in _spared(op).items())


def newly_spared(before: Iterable[Spared], ops: Iterable[str], now: Mapping[str, Op]) -> tuple[str, ...]:
    """With which extreme values ops are no longer checked, one sentence each. before: as another code spares `ops`."""
    found: list[str] = []
    known = tuple(before)
    for op in filter(None, map(now.get, dict.fromkeys(ops))):
        least = {what: number for name, what, number in known if name == op.name}
        for what, number in _spared(op).items():
            wider = {what, *what.split("."), _ALL} & least.keys()
            if not any(least[each] <= number for each in wider):
                much = f"numbers above {number:g} ({what})" if number else f"extreme values ({what})"
                found.append(f"{op.name} isn't checked with {much} in its inputs now")
    return tuple(found)


def _spared(op: Op) -> dict[str, float]:
    if op.extremes is None:
        return {_ALL: 0.0} if op.make is not None else {}
    exempt = dict.fromkeys(op.extremes.exempt, 0.0)
    return exempt | {f"largest {name}": float(number) for name, number in op.extremes.largest.items()}


def _allowed(op: Op, dtype: str) -> tuple[float, float]:
    return _OWN_CHECK if op.check else op.tolerance.get(dtype, TOLERANCE.get(dtype, (0.0, 0.0)))
