"""Which steps of variants no time holds, so that the gate can tell where work moved out of the time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from harness.ops import Op

Untimed = tuple[str, str, str]
"""An op, a variant, and its step before or after a call: encode or decode."""


def untimed(ops: Iterable[Op]) -> tuple[Untimed, ...]:
    """The steps of all variants that convert inputs before a call, or outputs after a call."""
    return tuple((op.name, name, step) for op in ops for name in op.variants for step in _steps(op, name))


def newly_untimed(
    before: Collection[Untimed], variants: Iterable[tuple[str, str]], now: Mapping[str, Op]
) -> Iterator[str]:
    """The steps that variants have now and hadn't before, one sentence each. variants: ops and names, which both have.

    before: as another code has them.
    """
    for op, name in dict.fromkeys(variants):
        for step in _steps(now[op], name):
            if (op, name, step) not in before:
                yield f"{op}/{name} has a step '{step}' now, which isn't timed: work may have moved there"


def _steps(op: Op, name: str) -> Iterator[str]:
    variant = op.variants[name]
    if variant.encode is not None:
        yield "encode"
    if variant.decode is not None:
        yield "decode"
