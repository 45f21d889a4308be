"""Which op is searched first, so that a search whose time is too short for all ops has done something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import plans
from harness.errors import UsageError
from harness.model import Case
from harness.ops import Catalogue, Op
from harness.ops.tuning import kernels_digest
from harness.tune.candidates import legal
from harness.tune.parts import sizes_done
from harness.tune.procedure import ToTune, home_of


@dataclass(frozen=True, slots=True)
class Ahead:
    """A search that is to be made. plans: to time at most. sizes: that have plans, or all if plans can't be listed.

    begun: whether an earlier start of the search has begun it. done: the sizes that it has done. known: whether the
    table has plans of today's kernels for all sizes.
    """

    wanted: ToTune
    plans: int = 0
    sizes: int = 0
    begun: bool = False
    done: int = 0
    known: bool = False


def in_order(every: Sequence[ToTune]) -> list[Ahead]:
    """First searches that are done, then those begun, then ops with a size that the table lacks, then the others.

    Among alike the ones with the fewest plans come first, so that most sizes are in the table when the time is over.
    Raises UsageError for a table that can't be read or written.
    """
    return sorted(map(_ahead, every), key=lambda each: (each.done < each.sizes, not each.begun, each.known, each.plans))


def _ahead(wanted: ToTune) -> Ahead:
    try:
        op = Catalogue(wanted.plugins)[wanted.op]
        counts = {case: len(found) for case in wanted.cases if (found := legal(op, case))}
    except UsageError:  # the search itself says what is wrong
        return Ahead(wanted, sizes=len(wanted.cases))
    home, there = home_of(wanted), _in_table(wanted, op)
    return Ahead(
        wanted,
        plans=sum(counts.values()),
        sizes=len(counts),
        begun=home.is_dir(),
        done=sizes_done(home, [*counts.values()]),
        known=all(_key(case) in there for case in counts),
    )


def _in_table(wanted: ToTune, op: Op) -> set[tuple[object, ...]]:
    """What the table that is to be written has, or the package's, of the kernels as they are now."""
    if wanted.output:
        entries = plans.read(wanted.output, plans.device_name(wanted.device)).entries
    else:
        entries = tuple(entry for table in plans.entries(wanted.device) for entry in table)
    now = kernels_digest(op, wanted.variant)
    return {entry.key for entry in entries if entry.source == now}


def _key(case: Case) -> tuple[object, ...]:
    return (case.op, case.variant, case.dtype, case.shape, case.choices)
