"""What a CI job compares: the revision that a change begins at, fetched where the job's clone was cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import devices
from harness.errors import UsageError
from harness.gate import inherited, noise_store, submodules
from harness.gate.case_lists import wanted
from harness.gate.git import git
from harness.gate.offsets import LEAST_BLOCKS
from harness.gate.two_codes import Request
from harness.ops import Catalogue

BRANCH = "refs/heads/"
_DEEPEN = 100  # commits that are fetched first, where the history was cut short
_FETCH_LIMIT = 1800.0
_NOTHING = "0" * 40  # GitHub's name for the commit before the first one of a branch
_HOW = "check out with the history (in a workflow: fetch-depth: 0), or name the revision with --base"


@dataclass(frozen=True, slots=True)
class Event:
    """What happened on GitHub, as the job's environment and the event's file tell it; empty elsewhere.

    target: the branch that a change is meant for. base: the commit of that branch, or the commit before a push. head:
    the last commit of a pull request. on_default: whether the job is of the repository's default branch, so that what
    the job keeps is for all jobs.
    """

    target: str = ""
    base: str = ""
    head: str = ""
    on_default: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Event:
        """The event of this job. Raises UsageError for a file that isn't an event's."""
        file = environ.get("GITHUB_EVENT_PATH")
        if not file:
            return cls()
        try:
            told = json.loads(Path(file).read_text(encoding="utf-8"))
            return cls._of(told, environ.get("GITHUB_REF", ""))
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            advice = "name the revision to compare with: harness gate ci SCENARIO... --base REV"
            raise UsageError(f"GITHUB_EVENT_PATH={file} holds no event of GitHub: {error}", advice) from error

    @classmethod
    def _of(cls, told: Mapping[str, Any], ref: str) -> Event:
        if request := told.get("pull_request"):
            return cls(request["base"]["ref"], request["base"]["sha"], request["head"]["sha"])
        if group := told.get("merge_group"):
            return cls(group["base_ref"].removeprefix(BRANCH), group["base_sha"])
        if not ref.startswith(BRANCH):
            return cls()  # a tag: which commits it adds nobody says
        default = (told.get("repository") or {}).get("default_branch", "")
        on_default = bool(default) and ref == BRANCH + default
        before = told.get("before") or ""
        return cls(default, before if on_default and before != _NOTHING else "", "", on_default)


def base(top: Path, event: Event, target: str | None = None) -> str:
    """The commit that the change of the working tree's HEAD begins at; what is missing of it is fetched.

    A merge that GitHub has made of a pull request is compared with the commit that it merges into. Another HEAD is
    compared with its merge base with the target branch, which is `target`, or the event's. On the target branch itself
    it is compared with the commit before the push, or else with its first parent. Raises UsageError where none is
    found.
    """
    head, parents = _commit(top, "HEAD"), _parents(top)
    if target is None and event.head and len(parents) > 1 and parents[1] == event.head:
        found = parents[0]
    elif target is None and event.on_default:
        found = event.base or next(iter(parents), "")
    elif branch := target or event.target:
        found = _merge_base(top, head, branch, "" if target else event.base)
        if found == head and (target or event.head):
            raise UsageError(
                f"{top}: HEAD ({head[:12]}) is a commit of '{branch}' itself, so there is no change to compare",
                "check out the pull request's merge (event pull_request), or name the revision with --base",
            )
    else:
        raise UsageError(
            "nothing says what to compare with", "name a branch: harness gate ci --target main SCENARIO..."
        )
    if not found:
        raise UsageError("HEAD is the first commit: there is nothing to compare with", "name a revision with --base")
    if not _has(top, found) and not _fetched(top, *_short(top), found):
        raise UsageError(f"{top}: the commit {found[:12]}, which the change begins at, isn't in this clone", _HOW)
    _fetch_submodules(top, found)
    return found


def unknown(request: Request) -> tuple[int, int]:
    """(cases without a known noise on this machine, all cases) of a request. Raises what `wanted` raises."""
    machine = devices.kinds()[request.selection.device].machine()
    blocks = noise_store.load(machine, request.noise).blocks
    known = {case for (case, _), means in blocks.items() if len(means) >= LEAST_BLOCKS}
    with inherited.kept():
        catalogue = Catalogue(request.plugins)
    with inherited.kept():
        asked = [job.case.id for job in wanted(request.files, catalogue, request.selection).jobs]
    return sum(key not in known for key in asked), len(asked)


def _commit(top: Path, revision: str) -> str:
    """The hash of a commit; "" if it isn't here."""
    try:
        return git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
    except UsageError:
        return ""


def _has(top: Path, revision: str) -> bool:
    return bool(_commit(top, revision))


def _parents(top: Path) -> list[str]:
    """The parents of HEAD, also those that a clone which was cut short doesn't have."""
    lines = git(top, "cat-file", "commit", "HEAD").partition("\n\n")[0].splitlines()
    return [line.removeprefix("parent ") for line in lines if line.startswith("parent ")]


def _merge_base(top: Path, head: str, branch: str, tip: str) -> str:
    """The merge base of a commit and a branch, whose commit is `tip` if that is known.

    The remote's branch counts before a local one, which a runner may have kept from an earlier job. Raises UsageError.
    """
    remote = _remote(top)
    if not tip and remote:
        _fetched(top, *_short(top), f"+{BRANCH}{branch}:refs/remotes/{remote}/{branch}")
    elif tip and not _has(top, tip):
        _fetched(top, *_short(top), tip)
    names = [tip] if tip else [f"{remote}/{branch}", branch]
    found = next(filter(None, (_commit(top, name) for name in names if name)), "")
    if not found:
        raise UsageError(f"{top}: git knows no branch '{branch}'", _HOW)
    for more in ((), (f"--deepen={_DEEPEN}", head, found), ("--unshallow", head, found)):
        if more and (not _is_shallow(top) or not _fetched(top, *more)):
            continue
        with suppress(UsageError):
            return git(top, "merge-base", head, found).strip()
    raise UsageError(f"{top}: HEAD and '{branch}' have no commit in common in this clone", _HOW)


def _is_shallow(top: Path) -> bool:
    return git(top, "rev-parse", "--is-shallow-repository").strip() == "true"


def _short(top: Path) -> tuple[str, ...]:
    """The option that fetches a commit without its history. Only for a clone that was cut short: it cuts any other."""
    return ("--depth=1",) if _is_shallow(top) else ()


def _remote(top: Path) -> str:
    """The name of the repository that this one was cloned from; "" if there is none."""
    names = git(top, "remote").split()
    return "origin" if "origin" in names else next(iter(names), "")


def _fetched(top: Path, *wanted: str) -> bool:
    """Whether git could fetch something from where the clone came from."""
    remote = _remote(top)
    options = [word for word in wanted if word.startswith("--")]
    named = [word for word in wanted if word not in options]
    try:
        git(top, "fetch", "--quiet", "--no-tags", *options, remote, *named, limit=_FETCH_LIMIT)
    except UsageError:
        return False
    return True


def _fetch_submodules(top: Path, revision: str) -> None:
    """Fetch the commits that a revision has of the submodules that are checked out, also of submodules in them."""
    for path, commit in submodules.at(top, revision).items():
        folder = top / path
        if not (folder / ".git").exists():
            continue
        if not _has(folder, commit):
            _fetched(folder, *_short(folder), commit)
        if _has(folder, commit):
            _fetch_submodules(folder, commit)


def outputs(pairs: Mapping[str, object], environ: Mapping[str, str]) -> Sequence[str]:
    """Tell later steps of the job what came out, where GitHub asks for it. Returns the lines."""
    lines = [f"{name}={value}" for name, value in pairs.items()]
    if file := environ.get("GITHUB_OUTPUT"):
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.writelines(f"{line}\n" for line in lines)
    return lines
