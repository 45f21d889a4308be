"""What a recording of Nsight Systems tells of NVTX ranges: how they lie in each other, their times, and their kernels.

A range lies in the range of its thread that was open when it began. If its thread had none, that is a range of another
thread of the process: the ranges of a backward pass are of a thread of autograd's own. A kernel belongs to the range in
which the call that launched it began, found in the same way, and to all ranges around that range. Nothing lies in a
range that was started and ended, in place of pushed and popped: it may end anywhere.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from harness.model import RangeProfile
from harness.profile._nsys_sqlite import NEVER, GpuWork, HostCall, TraceRange
from harness.ranges import DOMAIN

MOST = 200
"""The most names of ranges that are told of a case, those with the longest times."""
_DEEPEST = 32
"""Ranges with more ranges around them aren't told."""
_SECONDS = 1e-9  # of a nanosecond


@dataclass(slots=True, eq=False)
class _Node:
    """All ranges of a name that lie in ranges of the same names.

    nanoseconds: of each range that was closed. pushed: whether one of them was pushed and popped. launched: nanoseconds
    of the kernels that were launched in these ranges, and in none that lies in them. inside: what lies in these ranges,
    by name.
    """

    name: str
    depth: int
    count: int = 0
    nanoseconds: list[int] = field(default_factory=list)
    pushed: bool = False
    launched: list[int] = field(default_factory=list)
    inside: dict[str, _Node] = field(default_factory=dict)

    @property
    def time(self) -> int:
        return sum(self.nanoseconds)

    def enter(self, name: str) -> _Node:
        """The node for ranges of this name that lie in this node's ranges."""
        if name not in self.inside:
            self.inside[name] = _Node(name, self.depth + 1)
        return self.inside[name]

    def add(self, each: TraceRange) -> None:
        """Count a range. One that ends before it starts was open at no time."""
        self.count += each.end >= each.start
        self.pushed |= each.pushed
        if each.start <= each.end != NEVER:
            self.nanoseconds.append(each.end - each.start)

    def every(self, kept: Container[int] | None = None) -> Iterator[_Node]:
        """The node, and all that lie in it, each ahead of those in it. kept: ids of those that count; all if None."""
        todo = [self]
        while todo:
            yield (node := todo.pop())
            todo += (inner for inner in reversed(node.inside.values()) if kept is None or id(inner) in kept)


_Open = tuple[int, _Node]
"""A range that is open until this time."""


class RangeTree:
    """The ranges of a case, or of a program without cases.

    name: of the range that is the case; '' for a program, whose outermost ranges lie in nothing.
    """

    def __init__(self, name: str = "") -> None:
        self._root = _Node(name, 0 if name else -1)

    def add(
        self,
        whole: TraceRange | None,
        ranges: Sequence[TraceRange],
        calls: Sequence[HostCall] = (),
        work: Sequence[GpuWork] = (),
    ) -> None:
        """Add what happened in one range of the case, or in a program.

        whole: the case's range, which isn't one of `ranges`. calls, ranges: in the order in which they began. work:
        what these calls caused on the device.
        """
        if whole is not None:
            self._root.add(whole)
        launched = _launched(work)
        if not ranges:
            self._root.launched += itertools.chain.from_iterable(launched.values())
            return
        launches = [call for call in calls if (call.process, call.correlation) in launched]
        threads: dict[int, list[_Open]] = defaultdict(list)
        processes: dict[int, list[_Open]] = defaultdict(list)
        # A call belongs to a range that begins with it, and a range to a longer one that begins with it.
        events: list[TraceRange | HostCall] = [*sorted(ranges, key=_outer_first), *launches]
        for each in sorted(events, key=attrgetter("start")):
            own, others = threads[each.thread], processes[each.process]
            around = _innermost(own, each.start) or _innermost(others, each.start) or self._root
            if isinstance(each, HostCall):
                around.launched += launched[each.process, each.correlation]
            elif around.depth < _DEEPEST and each.end >= each.start:
                node = around.enter(_name(each))
                node.add(each)
                if each.pushed:
                    own.append((each.end, node))
                    others.append((each.end, node))

    def profiles(self, calls: int, *, kernels: bool) -> tuple[RangeProfile, ...]:
        """The ranges with the longest times. calls: of the case, over which figures are divided.

        kernels: whether the recording has kernels; else nothing is said of them.
        """
        nodes = list(self._root.every())
        longest = sorted(nodes[1:], key=lambda node: -node.time)[:MOST]
        kept = {id(node) for node in longest}
        counts, seconds = _sums(nodes, len), _sums(nodes, sum)
        found = []
        for node in self._root.every(kept):
            values: dict[str, float] = {}
            if node.nanoseconds:
                values["time"] = node.time * _SECONDS / calls
                values["median"] = statistics.median(node.nanoseconds) * _SECONDS
            if kernels and (node.pushed or node is self._root):
                values["kernels"] = counts[id(node)] / calls
                values["kernel_time"] = seconds[id(node)] * _SECONDS / calls
            if node.count:  # the root of a program is no range
                found.append(RangeProfile(node.name, node.depth, node.count / calls, tuple(values.items())))
        return tuple(found)


def _sums(nodes: Sequence[_Node], what: Callable[[list[int]], int]) -> dict[int, int]:
    """What is said of the kernels of each node, and of all nodes that lie in it. nodes: each ahead of those in it."""
    found = {id(node): what(node.launched) for node in nodes}
    for node in reversed(nodes):
        found[id(node)] += sum(found[id(inner)] for inner in node.inside.values())
    return found


def _launched(work: Sequence[GpuWork]) -> dict[tuple[int, int | None], list[int]]:
    """Nanoseconds of kernels, by process and correlation of the call that launched them."""
    found: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for each in work:
        if each.kind == "kernel":
            found[each.process, each.correlation].append(each.end - each.start)
    return dict(found)


def _innermost(open_: list[_Open], time: int) -> _Node | None:
    """The last one of some ranges that is still open at a time. Ranges that have ended after it began are dropped."""
    while open_ and open_[-1][0] <= time:
        open_.pop()
    return open_[-1][1] if open_ else None


def _outer_first(each: TraceRange) -> tuple[int, int]:
    return each.start, -each.end


def _name(each: TraceRange) -> str:
    """The text of a range, with the domain if that is a library's."""
    text = each.text or "?"
    return text if each.domain in ("", DOMAIN) else f"{text} ({each.domain})"
