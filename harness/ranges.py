"""NVTX ranges: they show a profiler which part of which case runs.

All lie in a domain of their own, so that a profiler can select them. Where no profiler listens, a range takes less than
a microsecond; none is opened inside of what is timed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

DOMAIN = "harness"
_PROFILER = "NVTX_INJECTION64_PATH"
"""The environment variable by which a profiler tells NVTX of itself: its library's path."""


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
    domain = _domain()
    return domain, domain.get_event_attributes(message=name)


@cache
def _domain() -> Any:
    """Our domain. Where a profiler listens, it is made without nvtx.get_domain, so that every profiler sees the ranges.

    From 0.2.12 on this function asks the profiler whether the domain is enabled, by a call of NVTX's payload extension.
    Nsight Systems up to 2024.2 refuses the package's version of the extension: that is 0x0104, and it takes 0x0103. The
    function takes this for a no, and gives a domain that does nothing. A profiler that has our domain disabled drops
    the ranges itself.
    """
    import nvtx

    if os.environ.get(_PROFILER):
        with suppress(ImportError, AttributeError):  # the names are the package's own, and may change
            from nvtx._lib.lib import Domain, DomainHandle

            domain = object.__new__(Domain)
            domain.handle = DomainHandle(DOMAIN)
            domain.__init__(DOMAIN)
            return domain
    return nvtx.get_domain(DOMAIN)
