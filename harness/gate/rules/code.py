"""Rule: code of the repository that both sides used alike was compared with itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.gate.evidence import Evidence
from harness.gate.records import Finding

ACCEPT = "code that both sides used alike, such as an installed package or a kept artefact, isn't compared"
_MOST_NAMED = 3
_MOST_UNUSED = 20
_ADVICE = (
    "give each side its own: a package by --prepare 'pip install --no-deps --target {site} {root}', what a build keeps "
    "by a folder in the repository; if this code didn't change: --accept code"
)
_BUILD = (
    "build it for both sides: --prepare CMD runs once in the folder of each, {root}; commit it if nothing builds it; "
    "if no time depends on it: --accept code"
)

_NAME = (
    "name it by a full path, such as one of an environment variable, or keep it in the repository; if no time depends "
    "on it: --accept code"
)

_FILTER = (
    "see that both sides have what a filter of git makes of them, such as git-lfs: git lfs install, then git lfs fetch "
    "--all; if no time depends on it: --accept code"
)


def judge(evidence: Evidence) -> Iterator[Finding]:
    """An undecided finding that names code that wasn't compared, and a note about changed files that nothing used."""
    used = evidence.used
    if used is None:
        return
    if used.shared:
        named = _named(used.shared, _MOST_NAMED)
        message = f"this code was not compared, since {evidence.base} used the same files as the working tree: {named}"
        yield Finding("code", "undecided", message, _ADVICE)
    elif not used.now and not evidence.broken:  # where no scenario can be loaded, nothing is run
        message = "no file of the repository was used, so no code of it was compared"
        yield Finding(
            "code", "undecided", message, "name the file with your ops: --ops mine.py, or --prepare a package"
        )
    if used.unmatched:
        named = _named(used.unmatched, _MOST_NAMED)
        message = f"{evidence.base} ran without what git ignores and the working tree has, maybe slower: {named}"
        yield Finding("code", "undecided", message, _BUILD)
    if used.outside:
        named = _named(used.outside, _MOST_NAMED)
        where = "the working tree found beside the repository"
        message = f"{evidence.base} ran without what {where}, maybe slower: {named}"
        yield Finding("code", "undecided", message, _NAME)
    if used.filtered:
        named = _named(used.filtered, _MOST_NAMED)
        message = f"files have other contents than in {evidence.base}, though git calls them the same: {named}"
        yield Finding("code", "undecided", message, _FILTER)
    if evidence.edited:
        message = f"edited while the gate ran: {_named(evidence.edited, _MOST_NAMED)}"
        yield Finding("code", "undecided", message, "run the gate again, and leave the working tree alone meanwhile")
    if used.older:
        named = _named(used.older, _MOST_NAMED)
        message = f"the working tree used what was built before a changed source that neither side opened: {named}"
        advice = "build it anew, and run the gate again; if it isn't made of that source: --accept code"
        yield Finding("code", "undecided", message, advice)
    if used.unused:
        message = f"changed, but opened by neither side in these cases: {_named(used.unused, _MOST_UNUSED)}"
        yield Finding("code", "note", message)


def _named(files: Sequence[str], most: int) -> str:
    more = len(files) - most
    return ", ".join(files[:most]) + (f" and {more} more" if more > 0 else "")
