"""What operators keep on a device between calls."""

from __future__ import annotations

from collections.abc import Callable

from harness.collection.nn._kernels import OpKernels
from harness.collection.nn._memo import Memo
from harness.cuda import workspaces

KEPT: list[Callable[[], object]] = []
"""What gives back the memory that a module keeps besides. A module adds its own, so that none is imported here."""


def forget() -> None:
    """Give back the memory that operators keep on a device: launches, workspaces, tables of lists, random numbers.

    The next calls make what they need anew. A graph that was captured
    before reads this memory, so replay none after it, and call this only when all that was launched has ended.
    """
    workspaces.forget()
    for kernels in OpKernels.every:
        kernels.forget()
    for memo in Memo.every:
        memo.forget()
    for give_back in KEPT:
        give_back()
