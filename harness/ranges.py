"""NVTX ranges: they show a profiler which part of which case runs.

All lie in a domain of their own, so that a profiler can select them. Where no profiler listens, a range takes less than
a microsecond; none is opened inside of what is timed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

DOMAIN = "harness"


class NvtxRange:
    """A context manager: a range with this name, on this thread."""

    __slots__ = ("_attributes", "_domain")

    def __init__(self, name: str) -> None:
        self._domain = _domain()
        self._attributes = _attributes(name)

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._domain.pop_range()


@cache
def _domain() -> Any:
    import nvtx

    return nvtx.get_domain(DOMAIN)


@cache
def _attributes(name: str) -> Any:
    """What a profiler sees of a range. The name is registered, so that only its number is passed on each time."""
    return _domain().get_event_attributes(message=name)
