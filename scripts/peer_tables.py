"""The table of peers beside `tuned`, in kernels/README.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from committed import OURS, Group, Runs
from tables import KERNELS, SAME, origin, table

from harness.ops import Catalogue
from harness.units import ratio


def peers(runs: Runs) -> list[str]:
    """How fast `tuned` is beside each peer, by op: each case is of the newest run that has both."""
    ops = Catalogue()
    names = {op.name: [name for name, variant in op.variants.items() if variant.role == "peer"] for op in ops.values()}
    newest: dict[tuple[str, str, str], Group] = {}
    for group in sorted(runs.every, key=lambda group: group.run.header.started):
        op = group.name.partition("/")[0]
        newest |= {(op, name, group.name): group for name in names.get(op, ()) if group.value(OURS, "speedup", name)}
    used: list[Group] = []

    def rows() -> Iterator[list[str]]:
        for op, name in sorted({(op, name) for op, name, _ in newest}):
            own = [group for (*which, _), group in newest.items() if which == [op, name]]
            used.extend(own)
            gains = sorted((group.value(OURS, "speedup", name) or 0, group.name.partition("/")[2]) for group in own)
            mean = ratio(statistics.geometric_mean([gain for gain, _ in gains]))
            behind = str(sum(gain < 1 - SAME for gain, _ in gains))
            yield [f"`{op}`", f"`{name}`", str(len(own)), behind, mean, ratio(gains[0][0]), f"`{gains[0][1]}`"]

    head = ("op", "peer", "cases", "tuned behind", "mean", "least", "where")
    lines = table(head, rows(), 2)
    return [*lines, "", origin(used, KERNELS)]
