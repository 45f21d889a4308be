"""The two codes that a gate compares: what lies in the working tree, and a revision in a worktree of its own."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from harness import kept, paths, source
from harness.discover import entry_points
from harness.errors import MachineError, UsageError
from harness.gate import left_behind, submodules
from harness.gate.git import git
from harness.gate.records import Revision
from harness.processes import python
from harness.processes.nursery import Nursery
from harness.processes.supervisor import Workers
from harness.processes.surroundings import Surroundings

_MEASURES = Path("processes", "child.py")
"""The file in a harness that starts a measuring process."""
_SHORT = 12  # digits of a commit that people are shown
_FOREIGN = "dubious ownership"  # git's words for a checkout of another user, as in many containers


@dataclass(frozen=True, slots=True)
class Checkout:
    """A code that can be measured. root: the folder with its package, None for the installation that runs.

    plugins: its own files with more ops. folder: where all of it lies. home: a folder for what is made for this side,
    such as its packages. around: what its processes see. own_root: where its own harness lies, if another one measures.
    """

    code: Revision
    root: Path | None
    plugins: tuple[Path, ...]
    folder: Path | None = None
    home: Path | None = None
    around: Surroundings = field(default_factory=Surroundings)
    own_root: Path | None = None

    @property
    def trees(self) -> tuple[Path, ...]:
        """The folders that hold its code."""
        return tuple(place for place in (self.home, self.folder) if place)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its processes."""
        return python.environment(self.root, self.around)

    @property
    def digest(self) -> str:
        """The hash that each process of this code must tell, or the code was edited since the gate began; "" for any.

        Another revision of the harness may make its hash in another way, so only the hash of the harness that runs
        counts.
        """
        runs = self.root is None or self.root.resolve() == python.own_root()
        return self.code.digest if runs else ""

    def with_variables(self, variables: tuple[tuple[str, str | None], ...]) -> Checkout:
        """The side with variables that its processes find when they start, since libraries read some that early."""
        return replace(self, around=replace(self.around, variables=(*self.around.variables, *variables)))

    def workers(self, device: str, *, listen: tuple[Path, ...] = (), nursery: Nursery | None = None) -> Workers:
        """Processes of this side. listen: folders of code; the processes tell which files they use.

        nursery: from which they are forked, if they can be.
        """
        around = replace(self.around, listen=listen, nursery=nursery)
        return Workers(device, self.plugins, self.root, self.digest, around)


def shared_root(codes: Iterable[Checkout]) -> Path | None:
    """The folder with the harness that measures all of these codes; None if they have several."""
    roots = {(code.root or python.own_root()).resolve() for code in codes}
    return roots.pop() if len(roots) == 1 else None


@dataclass(frozen=True, slots=True)
class Repository:
    """The git repository with the code to compare: of the user's ops and scenarios, or the harness's own.

    outside: the user's ops and scenarios, if none lies in a repository, so that the harness's is taken.
    """

    top: Path
    plugins: tuple[Path, ...]
    outside: tuple[Path, ...] = ()

    @classmethod
    def find(cls, plugins: Sequence[Path], scenarios: Sequence[Path] = ()) -> Repository:
        """The repository of the plug-ins; without plug-ins, of the scenarios; for bundled scenarios, of the harness.

        The harness may be installed from a repository too, as editable installs are, which isn't the user's. Raises
        UsageError if there is none.
        """
        files = tuple(plugin.resolve() for plugin in plugins)
        bundled = paths.data("scenarios").resolve()
        theirs = tuple(file for file in map(Path.resolve, scenarios) if not file.is_relative_to(bundled))
        own = next(filter(None, map(_around, (*files, *theirs))), None)
        top = own or _top(Path(source.__file__).resolve())
        if top is None:
            raise UsageError(
                "--base needs a git checkout, and neither a file of --ops, nor a scenario, nor the harness lies in one",
                "clone the harness's repository and 'pip install -e' it, or judge stored runs: harness gate REF RUN",
            )
        return cls(top, tuple(placed(plugin, top) for plugin in plugins), () if own else (*files, *theirs))

    @property
    def package(self) -> Path | None:
        """Where in the repository the folder with the harness lies, if it does."""
        own = Path(source.__file__).resolve()
        return own.parents[1].relative_to(self.top) if _top(own) == self.top else None

    @contextmanager
    def here(self) -> Iterator[Checkout]:
        """The working tree's code, with a folder for what is made for it, which is removed in the end."""
        with _slot(self.top, "now") as home:
            try:
                shutil.rmtree(home, ignore_errors=True)
                home.mkdir()
                yield replace(self.working_tree(), home=home, around=Surroundings(variables=_variables(home)))
            finally:
                shutil.rmtree(home, ignore_errors=True)

    def working_tree(self) -> Checkout:
        """The code that runs now."""
        root = None if self.package is None else self.top / self.package
        changed = git(self.top, "status", "--porcelain", "--", *self._judged())
        digest = source.digest(self.plugins, root)
        code = Revision("the working tree", self.commit("HEAD"), bool(changed), digest, str(self.top))
        return Checkout(code, root, self.plugins, self.top)

    def old(self, base: Checkout, scenarios: Sequence[Path], folders: Sequence[Path]) -> tuple[Path, ...]:
        """The base's own revision of the scenario files and of all files in the folders, as far as it has them.

        A file outside the repository is the same for both sides.
        """
        files = [self._moved(placed(file, self.top), base) for file in scenarios]
        inside = [self._moved(placed(folder, self.top), base).glob("*.yaml") for folder in folders]
        return tuple(file for file in dict.fromkeys((*files, *itertools.chain(*inside))) if file.is_file())

    def new(self, base: Checkout, scenarios: Sequence[Path], folders: Sequence[Path]) -> tuple[Path, ...]:
        """Scenario files that the base lacks. In a folder that was named they may be new: its old files are asked."""
        named = [file for file in scenarios if file.resolve().parent not in {folder.resolve() for folder in folders}]
        return tuple(file for file in named if not self._moved(placed(file, self.top), base).is_file())

    def _moved(self, file: Path, base: Checkout) -> Path:
        """The file of the base's revision in place of the working tree's."""
        if base.folder is None or not file.is_relative_to(self.top):
            return file
        return base.folder / file.relative_to(self.top)

    def commit(self, rev: str) -> str:
        """The full hash of a revision. Raises UsageError if there is no such revision here."""
        try:
            return git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}").strip()
        except UsageError as error:
            if self.outside:
                raise UsageError(
                    f"{self.outside[0]} lies in no git repository, and that of the harness, {self.top}, has no "
                    f"revision '{rev}'",
                    "put your ops and scenarios into a repository with a commit to compare with: git init",
                ) from error
            # A clone, as jobs of CI have one, has the branches of others by the name of the remote alone.
            of_remotes = git(self.top, "for-each-ref", "--format=%(refname:short)", f"refs/remotes/*/{rev}").split()
            advice = (
                "name a branch, tag or commit; a clone that was cut short has it after 'git fetch --unshallow' "
                "(in a workflow: fetch-depth: 0); a branch that the clone lacks is fetched by 'harness gate ci "
                "--target BRANCH SCENARIO...', without --base"
            )
            near = f"did you mean '{of_remotes[0]}'?" if of_remotes else advice
            raise UsageError(f"{self.top}: git knows no revision '{rev}'", near) from error

    @contextmanager
    def worktree(self, rev: str, side: str) -> Iterator[Checkout]:
        """A revision checked out in a worktree of its own, with its submodules, which is removed in the end.

        Each commit has its own folder, or it would find what code of another one has kept by its path. The harness
        itself keeps kernels by path and content, so its own revisions lie in one folder. Raises UsageError for an
        unknown revision and one without a harness, MachineError if the folder can't be written.
        """
        commit = self.commit(rev)
        with _slot(self.top, side) as slot:
            folder = slot / (commit[:_SHORT] if self.package is None else "code")
            home = left_behind.made(folder)
            try:
                left_behind.remove(self.top, folder)  # left by a gate that was killed a moment ago
                git(self.top, "worktree", "add", "--detach", str(folder), commit)
                submodules.fill(self.top, folder, commit)
                home.mkdir()
                yield self._checkout(folder, home, rev, commit)
            finally:
                left_behind.remove(self.top, folder)

    def _checkout(self, folder: Path, home: Path, rev: str, commit: str) -> Checkout:
        root = None if self.package is None else folder / self.package
        if root and not (root / "harness" / _MEASURES).is_file():
            raise UsageError(f"revision '{rev}' has no harness that can measure", "name a later revision as the base")
        if root:
            self._refuse_other_layout(root, rev)
        # A plug-in outside the repository is the same on both sides. Cases of one that the revision lacks are new.
        moved = [folder / p.relative_to(self.top) if p.is_relative_to(self.top) else p for p in self.plugins]
        plugins = tuple(plugin for plugin in moved if plugin.is_file())
        label = commit[:_SHORT] if rev == commit else rev  # as a job of CI names it
        code = Revision(label, commit, False, source.digest(plugins, root), str(self.top))
        # What the environment names in the working tree is this revision's for its processes.
        around = Surroundings(moved=((self.top, folder),), variables=_variables(home))
        return Checkout(code, root, plugins, folder, home, around)

    def _refuse_other_layout(self, root: Path, rev: str) -> None:
        """Raise UsageError for a revision before 0.2.0: the installed entry points name modules that it lacks."""
        named = [Path(*entry.module.split(".")) for entry in entry_points("harness.ops")]
        here = [module for module in named if _is_module(python.own_root() / module)]
        if here and self._holds_running_harness() and not any(_is_module(root / module) for module in here):
            raise UsageError(
                f"revision '{rev}' has no {here[0]}, from which this installation loads its ops: it is a revision "
                "before harness 0.2.0, and one installation can't measure both",
                "name a later revision as the base; or measure each revision in an environment of its own, with "
                "harness run --repeat 10, and judge the stored runs: harness gate REF RUN",
            )

    def _holds_running_harness(self) -> bool:
        return self.package is not None and (self.top / self.package).resolve() == python.own_root()

    def _judged(self) -> list[str]:
        """The paths of the code to compare, as git takes them."""
        own = [] if self.package is None else [self.package / "harness", self.package / "kernels"]
        return [*map(str, own), *(str(p.parent) for p in self.plugins if p.is_relative_to(self.top))]


def _variables(home: Path) -> tuple[tuple[str, str], ...]:
    """What keeps each side from what the other one has compiled: torch keeps extensions by their name alone."""
    cache = {"HARNESS_CACHE": str(paths.cache().resolve())}  # the working folder of a process may be another one
    return tuple({"TORCH_EXTENSIONS_DIR": str(home / "extensions"), **cache}.items())


def placed(file: Path, top: Path) -> Path:
    """The full path of a file, with links inside the repository `top` as they are, since a commit may change them."""
    full = Path(os.path.abspath(file))  # noqa: PTH100 - `resolve` would follow the links
    around = next((folder for folder in full.parents if folder.resolve() == top), None)
    return top / full.relative_to(around) if around else file.resolve()


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@contextmanager
def _slot(top: Path, side: str) -> Iterator[Path]:
    """A folder for a worktree: the same one each time, or the next free one while another gate uses it."""
    if problem := kept.distrust(paths.cache()):
        advice = "the code of the base would lie there: name a folder of your own in HARNESS_CACHE"
        raise MachineError(f"the cache folder isn't used: {problem}", advice)
    worktrees = paths.cache().resolve() / "worktrees"
    left_behind.clean(worktrees)
    home = worktrees / hashlib.sha256(str(top).encode()).hexdigest()[:12]
    for number in itertools.count():
        folder = home / (side if number == 0 else f"{side}-{number}")
        with _open(folder.with_suffix(".lock")) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            lock.truncate(0)
            lock.write(str(top))
            lock.flush()
            yield folder
            return


def _open(file: Path) -> IO[str]:
    """The file, opened for writing, with its folder. Raises MachineError if it can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("a", encoding="utf-8")  # what stands there is of who holds it
    except OSError as error:
        advice = "free some space, or name another folder in HARNESS_CACHE"
        raise MachineError(f"{file}: can't be written: {error.strerror}", advice) from error


def _top(file: Path) -> Path | None:
    """The top of the repository that tracks the file, if there is one. Raises UsageError if git refuses to read it."""
    # A package installed below somebody's project doesn't belong to it. source.revision does the same.
    return _around(file, "ls-files", "--error-unmatch", file.name)


def _around(file: Path, *first: str) -> Path | None:
    """The top of the repository around a file, tracked or not; None if there is none, or the command `first` fails."""
    try:
        if first:
            git(file.parent, *first)
        return Path(git(file.parent, "rev-parse", "--show-toplevel").strip()).resolve()
    except UsageError as error:
        if _FOREIGN in error.message:
            raise
        return None
