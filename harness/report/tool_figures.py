"""Figures of what tools found of a case, by name: of a call, and of its kernels.

    <tool>.<name>              a figure of a call; or a counter of all kernels of a call: their sum, and for a share the
                               mean over their times
    <tool>.kernel.<kernel>     seconds of a call that a kernel takes

Metrics are computed from them (`Metric.attached`). Tables show the figures alone that tools give of a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.model import COUNTERS, PIPE, STALL, Attachment, KernelProfile

_TIME = "time"


def of_call(found: Sequence[Attachment]) -> dict[str, float]:
    """The figures that tools give of a call. Of several attachments of a tool the last one counts."""
    return {f"{each.tool}.{name}": value for each in found for name, value in each.values}


def every(found: Sequence[Attachment]) -> dict[str, float]:
    """The figures of a call and of its kernels."""
    return {**dict(pair for each in found for pair in _of_kernels(each)), **of_call(found)}


def _of_kernels(found: Attachment) -> Iterator[tuple[str, float]]:
    times: dict[str, float] = {}
    for kernel in found.kernels:
        times[kernel.name] = times.get(kernel.name, 0.0) + _seconds(kernel)
    yield from ((f"{found.tool}.kernel.{name}", seconds) for name, seconds in times.items() if seconds)
    if _are_all(found):
        told = [(kernel.launches, _seconds(kernel), dict(kernel.values)) for kernel in found.kernels]
        names = dict.fromkeys(name for _, _, values in told for name in values)
        yield from ((f"{found.tool}.{name}", value) for name in names for value in _merged(told, name))


def _seconds(kernel: KernelProfile) -> float:
    """Seconds of a call that a kernel takes; 0 if the tool doesn't tell."""
    return kernel.launches * dict(kernel.values).get(_TIME, 0.0)


def _are_all(found: Attachment) -> bool:
    """Whether every kernel of a call is listed: of a long call some tools list the longest kernels alone."""
    listed = sum(kernel.launches for kernel in found.kernels)
    return listed >= dict(found.values).get("kernels", listed)


def _merged(told: Sequence[tuple[float, float, Mapping[str, float]]], name: str) -> Iterator[float]:
    """A counter of all kernels of a call; nothing where a kernel lacks it.

    told: the launches of each kernel in a call, its seconds, and its counters.
    """
    known = [(launches, seconds, values[name]) for launches, seconds, values in told if name in values]
    if len(known) < len(told):
        return
    if not _is_share(name):
        yield sum(launches * value for launches, _, value in known)
    elif whole := sum(seconds for _, seconds, _ in told):
        yield sum(seconds * value for _, seconds, value in known) / whole


def _is_share(name: str) -> bool:
    return name.startswith((PIPE, STALL)) or (name in COUNTERS and COUNTERS[name].unit == "share")
