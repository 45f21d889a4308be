"""Which waivers are new since the base: its own file of waivers doesn't allow what they allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.errors import InputError
from harness.gate import waiver_file
from harness.gate.records import Waiver
from harness.gate.worktree import Checkout, Repository, placed


def marked(
    waivers: tuple[Waiver, ...], file: Path | None, repository: Repository, base: Checkout
) -> tuple[tuple[Waiver, ...], str]:
    """The waivers, each with whether it is new, and why that isn't known, as a sentence; "" where it is known.

    file: where the waivers stand, None where there is no file. The base's are in the file of the same path.
    """
    if not waivers or file is None or base.folder is None:
        return waivers, ""
    own, label = placed(file, repository.top), base.code.label
    there = base.folder / own.relative_to(repository.top) if own.is_relative_to(repository.top) else own
    # A link may lead out of the base's tree, to the file that the working tree reads, too.
    if not there.resolve().is_relative_to(base.folder.resolve()):
        return waivers, f"{file} lies outside of the repository, so nobody knows which of its waivers {label} lacks"
    try:
        before = waiver_file.load(there) if there.is_file() else ()
    except InputError as error:
        why = error.problems[0].told.replace(f"{base.folder}/", "")
        return waivers, f"{label} can't read its own file of waivers, so nobody knows which waivers are new: {why}"
    return tuple(replace(waiver, new=not _allowed(waiver, before)) for waiver in waivers), ""


def _allowed(waiver: Waiver, before: Sequence[Waiver]) -> bool:
    """Whether one of the earlier waivers lets pass all that this one does: its cases, its loss, its days."""
    return any(
        set(waiver.cases) <= set(old.cases) and waiver.largest_loss <= old.largest_loss and waiver.until <= old.until
        for old in before
    )
