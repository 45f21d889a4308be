"""The two sides of a gate, each with its packages, its submodules, and the one harness that measures both."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import harness
from harness.errors import UsageError
from harness.gate.measuring import with_instrument
from harness.gate.observer import GateObserver
from harness.gate.preparing import prepared
from harness.gate.records import Side
from harness.gate.worktree import Checkout, Repository


@contextmanager
def two_sides(
    repository: Repository, base: str, prepare: Sequence[str], version: str | None, observer: GateObserver
) -> Iterator[Mapping[Side, Checkout]]:
    """The base in a worktree and the working tree as it lies there. All that is made for them is removed in the end.

    prepare: commands that install a side's packages. version: a revision whose harness measures both sides; None for
    the working tree's. Raises what `Repository.worktree` and `prepared` raise.
    """
    with ExitStack() as stack:
        old = stack.enter_context(repository.worktree(base, "base"))
        now = stack.enter_context(repository.here())
        instrument = now.root
        if version is not None:
            instrument = stack.enter_context(repository.worktree(_version(repository, version), "harness")).root
        sides: Mapping[Side, Checkout] = {"base": old, "now": now}
        codes: dict[Side, Checkout] = {}
        for side, code in sides.items():
            if prepare:
                observer.note(f"preparing {code.code.label}")
            made = prepared(code, prepare)
            codes[side] = with_instrument(made, instrument) if instrument else made
        yield stack.enter_context(_seen(codes))


def _version(repository: Repository, version: str) -> str:
    """The revision that --harness names: a revision, or a version whose tag begins with 'v'."""
    if repository.package is None:
        raise UsageError(
            f"--harness {version}: the harness isn't part of {repository.top}, so the installed harness, version "
            f"{harness.__version__}, measures both sides",
            "omit --harness, or install the version that should measure",
        )
    try:
        repository.commit(version)
    except UsageError:
        repository.commit(f"v{version}")
        return f"v{version}"
    return version


@contextmanager
def _seen(codes: Mapping[Side, Checkout]) -> Iterator[Mapping[Side, Checkout]]:
    """Have this process see the packages of the working tree, whose ops it looks for; the base sees its own."""
    sites = {side: code.around.site for side, code in codes.items()}
    old, now = sites["base"], sites["now"]
    if old is None or now is None:
        yield codes
        return
    base = codes["base"]
    around = replace(base.around, moved=(*base.around.moved, (now, old)))
    sys.path.insert(0, str(now))
    try:
        yield {**codes, "base": replace(base, around=around)}
    finally:
        sys.path.remove(str(now))
