"""Submodules: where they lie, at which commit a revision has them, and how they come into its worktree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from harness import paths
from harness.errors import UsageError
from harness.gate.git import git

_LINK = "160000"
_ANYWHERE = "--work-tree=."
"""Git keeps the repository of a submodule that is gone, which names a folder of files that isn't there any more."""


def at(top: Path, revision: str) -> dict[str, str]:
    """The commit of each submodule that a revision has, by its path."""
    listed = git(top, "ls-tree", "-r", "-z", revision).split("\0")
    entries = [entry.split("\t", 1) for entry in listed if entry.startswith(_LINK)]
    return {path: about.split()[2] for about, path in entries}


def here(top: Path) -> list[Path]:
    """The folders of all submodules that are checked out below a repository, those of submodules too."""
    entries = [entry for entry in git(top, "ls-files", "-z", "--stage").split("\0") if entry.startswith(_LINK)]
    found = [top / entry.split("\t", 1)[1] for entry in entries]
    own = [folder for folder in found if (folder / ".git").exists()]
    return [*own, *(inner for folder in own for inner in here(folder))]


def absent(top: Path) -> list[str]:
    """The submodules whose files aren't checked out though the revision around them is, from the top on."""
    there = {path: (top / path / ".git").exists() for path in at(top, "HEAD")}
    inside = (f"{path}/{name}" for path, found in there.items() if found for name in absent(top / path))
    return [*(path for path, found in there.items() if not found), *inside]


def listed(top: Path) -> Iterator[str]:
    """Paths of all files that git doesn't ignore, also in submodules, from the top on. Some may be gone."""
    for folder in (top, *here(top)):
        known = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
        inside = folder.relative_to(top)
        yield from (str(inside / name) for name in known if name)


def ignored(top: Path) -> Iterator[Path]:
    """The folders that git ignores as a whole, such as what a build makes, also in submodules."""
    for folder in (top, *here(top)):
        names = git(folder, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory").split("\0")
        yield from (folder / name for name in names if name.endswith("/"))


def changed(top: Path, base: str) -> Iterator[str]:
    """Paths of the files that differ between a revision and the working tree, also in submodules, from the top on."""
    before = at(top, base)
    yield from _changed(top, base)
    for path, commit in before.items():
        folder = top / path
        if (folder / ".git").exists():
            yield from (f"{path}/{name}" for name in changed(folder, commit))


def _changed(top: Path, base: str) -> Iterator[str]:
    yield from filter(None, git(top, "diff", "--name-only", "--no-renames", "-z", base).split("\0"))
    new = git(top, "ls-files", "-z", "--others", "--exclude-standard").split("\0")
    cache = paths.cache().resolve()  # which may lie in the repository, where CI keeps folders of a project alone
    mine = (name for name in new if name and not (top / name).is_relative_to(cache))
    yield from (name for name in mine if "__pycache__" not in name)


def fill(top: Path, folder: Path, revision: str) -> None:
    """Check out in `folder`, a worktree of `top` at a revision, the submodules that are checked out in `top`.

    Each is a repository of its own that shares the objects of the submodule here. Raises UsageError where a submodule
    lacks the commit.
    """
    for path, commit in at(top, revision).items():
        source = _source(top, path)
        if source is None:
            continue
        if not _has(source, commit):
            raise UsageError(
                f"the submodule {path} doesn't have the commit {commit[:12]} that the base needs",
                f"fetch it: git -C {top / path} fetch --unshallow, or git -C {top / path} fetch origin {commit}",
            )
        _share(source, folder / path)
        git(folder / path, "checkout", "--quiet", "--detach", commit)
        if source == top / path:
            fill(source, folder / path, commit)


def _share(source: Path, folder: Path) -> None:
    """Make a repository with the objects of another one. `git clone` would copy what a ref names of a short clone."""
    told = ("--path-format=absolute", "--git-path", "objects", "--show-object-format")
    objects, kind = git(source, _ANYWHERE, "rev-parse", *told).splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", f"--object-format={kind}")
    (folder / ".git" / "objects" / "info" / "alternates").write_bytes(os.fsencode(f"{objects}\n"))
    git(folder, "remote", "add", "origin", str(source))  # filters of files may ask for more, such as git-lfs


def _source(top: Path, path: str) -> Path | None:
    """The repository of a submodule: in its folder, or where git keeps the repository of one that is gone now."""
    if (top / path / ".git").exists():
        return top / path
    common = Path(git(top, "rev-parse", "--path-format=absolute", "--git-common-dir").strip())
    kept = common / "modules" / path
    return kept if (kept / "HEAD").is_file() else None


def _has(folder: Path, commit: str) -> bool:
    try:
        git(folder, _ANYWHERE, "cat-file", "-e", f"{commit}^{{commit}}")
    except UsageError:
        return False
    return True
