"""What lets work of variants escape the time: the gate tells where a commit declares more of that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from harness.ops import Op

Untimed = tuple[str, str, str]
"""An op, a variant, and what it declares: a name of `_WHY`, and maybe the name of a tensor."""
_WHY = {
    "encode": "a step before the call, which isn't timed",
    "decode": "a step after the call, which isn't timed",
    "works_ahead": "so calls may leave work that isn't in their time",
    "inplace": "so nobody sees whether a call uses what an earlier call has computed",
}


def untimed(ops: Iterable[Op]) -> tuple[Untimed, ...]:
    """What all variants declare that lets work escape the time."""
    return tuple((op.name, name, what) for op in ops for name in op.variants for what in _declared(op, name))


def newly_untimed(
    before: Collection[Untimed], variants: Iterable[tuple[str, str]], now: Mapping[str, Op]
) -> Iterator[str]:
    """What variants declare now and didn't before, one sentence each. variants: ops and names, which both codes have.

    before: as another code declares them.
    """
    for op, name in dict.fromkeys(variants):
        for what in _declared(now[op], name):
            if (op, name, what) not in before:
                yield f"{op}/{name} has '{what}' now: {_WHY[what.partition(' ')[0]]}"


def _declared(op: Op, name: str) -> Iterator[str]:
    variant = op.variants[name]
    if variant.encode is not None:
        yield "encode"
    if variant.decode is not None:
        yield "decode"
    if op.works_ahead:
        yield "works_ahead"
    updated = {tensor.name for tensor in (*op.inputs, *(variant.inputs or ())) if tensor.inplace}
    yield from (f"inplace {tensor}" for tensor in sorted(updated))
