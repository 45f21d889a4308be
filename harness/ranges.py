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
        self._domain, self._attributes = _of(name)

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._domain.pop_range()


@cache
def _of(name: str) -> tuple[Any, Any]:
    """The domain, and what a profiler sees of a range. The name is registered, so that each time only a number goes."""
    import nvtx

    domain = nvtx.get_domain(DOMAIN)
    return domain, domain.get_event_attributes(message=name)
