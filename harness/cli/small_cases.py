"""The cases of `harness check` without --all: small and awkward sizes of an op, in the order of what they find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.expressions import ExpressionError, evaluate
from harness.model import Job
from harness.ops import Op
from harness.scenario import Definition, Setting

_ALONE = 4096  # elements of an op with one symbol
_SEVERAL = 8  # the sizes of several symbols are multiples of it
_ODD = (3, 7, 13, 19, 5, 11)  # sizes of several symbols, in turn
_ODD_ALONE = 1023
_MOST_SETTINGS = 2  # of a scenario whose op makes its inputs itself, the smallest ones


def definition(op: Op, scenarios: Sequence[Definition] = ()) -> Definition | None:
    """A scenario of small and awkward sizes with every dtype and variant of the op; None where no size is known.

    Sizes are multiples of 8, odd numbers, and a single row. An op that makes its inputs itself may need sizes that fit
    each other, so its sizes are the smallest ones of the scenarios, if there are any.
    """
    own = [setting for each in scenarios for setting in each.settings]
    settings = [] if own and op.make is not None else [each for each in _awkward(op) if _fits(op, each)]
    settings = settings or sorted(own, key=lambda setting: _bytes(op, setting))[:_MOST_SETTINGS]
    if not settings:
        return None
    return Definition(
        name=op.name,
        file=op.file or Path(),
        title=op.summary,
        op=op.name,
        settings=tuple(dict.fromkeys(settings)),
        dtypes=op.dtypes,
        variants=tuple(op.variants),
        baseline=next(iter(op.variants)),
    )


def ordered(jobs: Sequence[Job], ops: Mapping[str, Op]) -> tuple[list[Job], int]:
    """The jobs in the order in which they are checked, and how many of them are checked however long that takes.

    First each variant once, then our own variants at all sizes, then at all types, then what other libraries compute:
    their compilers take longest.
    """
    first, rest = _split(jobs)
    return [*first, *sorted(rest, key=lambda job: ops[job.case.op].variants[job.case.variant].is_library)], len(first)


def _split(jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """The first job of each variant, and all others."""
    first = {(job.case.op, job.case.variant): job for job in reversed(jobs)}
    chosen = [job for job in jobs if first[job.case.op, job.case.variant] is job]
    return chosen, [job for job in jobs if job not in chosen]


def _awkward(op: Op) -> Iterator[Setting]:
    """Odd sizes first, then a single row, then multiples of 8."""
    free = [symbol for symbol in op.symbols if symbol not in op.defaults]
    if not free:
        sizes: list[list[int]] = [[]]
    elif len(free) == 1:
        sizes = [[_ODD_ALONE], [1], [_ALONE]]
    else:
        # Different sizes, so that a result whose dimensions are mixed up is found.
        odd = [_ODD[number % len(_ODD)] for number in range(len(free))]
        sizes = [odd, [1, *odd[1:]], [_SEVERAL * (number + 2) for number in range(len(free))]]
    choices = tuple((name, choice.usual) for name, choice in op.choices.items())
    for each in sizes:
        found = dict(zip(free, each, strict=True))
        try:
            for symbol, text in op.defaults.items():
                found[symbol] = evaluate(text, found)
        except ExpressionError:
            continue
        yield Setting(tuple((symbol, found[symbol]) for symbol in op.symbols), choices)


def _fits(op: Op, setting: Setting) -> bool:
    """Whether the op and its variants say what they move at these sizes. They may refuse sizes in any way."""
    try:
        return _bytes(op, setting) >= 0
    except Exception:  # of a plug-in's function, too
        return False


def _bytes(op: Op, setting: Setting) -> int:
    """Bytes of all tensors of the op and its variants at these sizes."""
    values, dtype = setting.values, op.dtypes[0]
    tensors = {t for variant in op.variants.values() for group in op.tensors(variant) for t in group}
    op.work_of(values, dtype)
    sizes = [tensor.bytes(values, dtype) for tensor in tensors]
    return sum(sizes) if all(size >= 0 for size in sizes) else -1
