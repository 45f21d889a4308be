"""Which files each side uses for the cases that are measured, found out before anything is measured.

A process of each side checks every case once. It tells which modules and files it used, and the kernel tells which
files of the trees were opened meanwhile, by compilers too. The base works first and alone: whatever it opens in the
working tree isn't its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from harness import paths
from harness.gate import measuring, software, submodules
from harness.gate.git import shown
from harness.gate.opened import BUILT, COMPILED, LINKED, Opened
from harness.gate.records import Side, UsedCode
from harness.gate.worktree import Checkout, Repository
from harness.model import Job
from harness.processes import hatchery, python, start
from harness.processes.installed import digest
from harness.processes.supervisor import Workers
from harness.processes.used import ANYTHING, EVERYTHING, WRITTEN, source_of

MADE = "{made}"
_OF_PIP = frozenset({"RECORD", "direct_url.json", "INSTALLER", "REQUESTED", "WHEEL"})
_HARMLESS = frozenset({"ok", "unsupported", "skipped"})
_OF_OTHERS = frozenset({".git", "pyvenv.cfg", "node_modules"})
"""What a folder holds that is of other software, or of another repository."""
_OF_INSTALLATIONS = re.compile(r"\.(egg|dist)-info(/|$)")
"""What only pip and the like read, to find packages."""
_CLOCK = 0.01  # seconds by which the clock of files is late
_EMPTY = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Probed:
    """What the processes of one side said. files: path and digest; opened: files of the trees, by any process.

    asked: paths that they asked about, such as whether there is a file; FOLDER/* if they asked which files there are.
    there: what was at each of these paths, and at the paths of files, when they had ended, as `_at` says it. written:
    files outside of the trees that they only wrote, as far as Python wrote them. during: when the first case began and
    the last one ended, in seconds since 1970.
    fine: whether every case was right, or can't be run here. right: ids of the cases that were right. software: name
    and version. variables: as in `Surveyed`.
    """

    files: Mapping[Path, str]
    asked: frozenset[Path]
    opened: frozenset[Path]
    complete: bool
    fine: bool
    right: frozenset[str]
    software: Mapping[str, str]
    variables: tuple[tuple[str, str | None], ...] = ()
    there: Mapping[Path, str] = field(default_factory=dict)
    written: frozenset[Path] = frozenset()
    during: tuple[float, float] = (0.0, 0.0)


def probe(workers: Workers, jobs: Iterable[Job], opened: Opened, root: Path | None) -> Probed:
    """Check each case once. workers: they listen. root: the folder whose harness they import; None for this one's."""
    began = time.time()
    files: dict[Path, str] = {}
    asked: set[Path] = set()
    written: set[Path] = set()
    ended: dict[str, str] = {}
    installed: dict[str, str] = {}
    variables: tuple[tuple[str, str | None], ...] = ()
    for job in jobs:
        ended[job.case.id] = workers.measure(job, timed=False).status
        opened.so_far()
        # Each time, since a process that crashes takes with it what it knows.
        surveyed = workers.survey()
        for path, content in surveyed.used:
            if content in ("", WRITTEN):
                (written if content else asked).add(Path(path))
            else:
                files[Path(path)] = content
        installed |= dict(surveyed.software)
        variables = surveyed.variables
    fine = all(status in _HARMLESS for status in ended.values())
    right = frozenset(key for key, status in ended.items() if status == "ok")
    # This process loads modules of its own meanwhile, and the asked process reads all of its harness for a digest. What
    # the asked process loads of them, it tells itself. A worktree has a file .git, which git reads.
    roots = {python.own_root(), root or python.own_root()}
    own = [top / "harness" for top in roots]
    seen = frozenset(file for file in opened.so_far() if file.name != ".git" and not any(map(file.is_relative_to, own)))
    return Probed(
        files,
        frozenset(asked),
        seen,
        opened.complete,
        fine,
        right,
        installed,
        variables,
        there={path: _at(path) for path in asked | files.keys()},
        written=frozenset(written),
        during=(began, time.time()),
    )


def watched(repository: Repository, codes: Iterable[Checkout]) -> AbstractContextManager[Opened]:
    """Notes what is opened in the sides' own trees, in the repository, and in what was made for a side."""
    folders = {Path(name).parent for name in submodules.listed(repository.top)}
    tops = {repository.top, *(code.folder for code in codes if code.folder)}
    listed = {place for top in tops for folder in folders if (place := top / folder).is_dir()}
    made = {folder for code in codes if code.home for folder in _below(code.home)}
    built = {folder for top in tops for place in submodules.ignored(top) for folder in _below(place)}
    return Opened(listed | made, built)


def _below(place: Path) -> Iterator[Path]:
    """A folder and all folders below it, without other software, other repositories, and the cache of the harness."""
    cache = paths.cache().resolve()
    for top, inside, files in os.walk(place):
        if cache.is_relative_to(top) or not _OF_OTHERS.isdisjoint({*inside, *files, Path(top).name}):
            inside.clear()
        else:
            yield Path(top)


def compared(
    repository: Repository, codes: Mapping[Side, Checkout], probed: Mapping[Side, Probed], scenarios: set[Path]
) -> UsedCode:
    """What both sides used. scenarios: the files with them, which both sides read."""
    package = repository.package or Path()
    listed = {*submodules.listed(repository.top)}
    # This process's scripts start the processes of both sides. Torch's compiler reads them, as all files on the stack.
    of_both = scenarios | {Path(file).resolve() for file in (start.__file__, hatchery.__file__)}
    named = {side: SideNames(codes[side], package) for side in codes}
    found: dict[Side, dict[str, str]] = {side: dict(_files(probed[side], named[side], of_both)) for side in probed}
    top = repository.top
    scenario_names = {str(f.relative_to(top)) for f in scenarios if f.is_relative_to(top)}
    differing = {*submodules.changed(top, codes["base"].code.revision)} - {*submodules.at(top, "HEAD")}
    changed = sorted(differing - scenario_names)
    folders: Mapping[Side, Path] = {"base": codes["base"].folder or top, "now": top}
    used = {n for n in changed if any(_is_used(n, side, folders, found[side], probed[side]) for side in found)}
    starts = any(path.name == ANYTHING for side in probed.values() for path in side.asked)
    silent = starts and any(_decides_unopened(n, folders) for n in changed if n not in used)
    if repository.package is not None:
        found = _without_instrument(found, f"{package / 'harness'}/", top)
    return UsedCode(
        base=tuple(sorted((shown(name), content) for name, content in found["base"].items())),
        now=tuple(sorted((shown(name), content) for name, content in found["now"].items())),
        shared=tuple(sorted(map(shown, {*_shared(top, named["base"], probed, of_both), *_begun_with(top, changed)}))),
        changed=tuple(shown(name) for name in changed if name in used),
        unused=tuple(shown(name) for name in changed if name not in used),
        software=tuple(map(shown, software.changed(changed, codes["base"].folder or top, top))),
        versions=tuple(software.differing(probed["base"].software, probed["now"].software)),
        # A case that crashed may not have come to all of its files.
        complete=all(side.complete and side.fine for side in probed.values()) and not silent,
        unmatched=tuple(
            map(shown, _unmatched(top, folders["base"], probed, found["base"].keys() - found["now"].keys()))
        ),
        outside=tuple(sorted(map(shown, _outside(top, codes, probed)))),
        filtered=tuple(sorted(map(shown, _other_contents(found) & listed - differing))),
        older=tuple(
            sorted(map(shown, _older(top, found["now"].keys() - listed, [n for n in changed if n not in used])))
        ),
    )


def _without_instrument(found: Mapping[Side, dict[str, str]], own: str, top: Path) -> dict[Side, dict[str, str]]:
    """The files without what measures, where one side alone used it and the working tree has the same file.

    The base's process reads scenarios, and begins in a script of its own. own: how names of the harness's files begin.
    """
    both, collection = found["base"].keys() & found["now"].keys(), tuple(f"{own}{name}" for name in paths.COLLECTION)

    def counts(name: str, content: str) -> bool:
        measures = name.startswith(own) and not name.startswith(collection)
        return not measures or name in both or digest(top / name) != content

    return {side: {n: content for n, content in files.items() if counts(n, content)} for side, files in found.items()}


def edited(code: Checkout, used: UsedCode) -> tuple[str, ...]:
    """Files of the working tree that aren't as its processes used them at first: somebody has edited them since."""
    top = code.folder
    if top is None:
        return ()
    # Where another harness measures, its files have the names of those in the working tree.
    own = f"{code.own_root.relative_to(top) / 'harness'}/" if code.own_root else ""
    known = {shown(name): top / name for name in submodules.listed(top)}
    ours = ((name, content) for name, content in used.now if name in known and not (own and name.startswith(own)))
    return tuple(name for name, content in ours if digest(known[name]) != content)


def _unmatched(top: Path, base: Path, probed: Mapping[Side, Probed], base_alone: Iterable[str]) -> list[str]:
    """What git ignores in the working tree and the base lacks: files that its processes used, paths that a side asked.

    base_alone: what only the base used. What it made for itself in the same place, or by the same name, takes the place
    of such a file, as in a cache with a digest of the source in its paths.
    """
    now = probed["now"]
    built = {file for file in now.opened if not BUILT.isdisjoint(file.suffixes)}
    inside = {file.relative_to(top) for file in {*now.files} | built if file.is_relative_to(top)}
    inside |= {*_asked_about(top, {"base": base, "now": top}, probed)}
    absent = {path for path in inside if not (base / path).exists() and not _OF_INSTALLATIONS.search(f"{path}/")}
    if not absent:
        return []
    known = {*submodules.listed(top), *submodules.listed(base)}
    around = {str(folder) for name in known for folder in PurePath(name).parents}
    made = [PurePath(name) for name in base_alone if name not in known]
    alike = {(path.suffix, place) for path in made for place in (path.parent, path.name)}
    alone = (path for path in absent if alike.isdisjoint({(path.suffix, path.parent), (path.suffix, path.name)}))
    return sorted(name for path in alone if (name := str(path)) not in known | around)


def _asked_about(top: Path, folders: Mapping[Side, Path], probed: Mapping[Side, Probed]) -> Iterator[Path]:
    """What lay in the working tree before its processes ran, and a side asked about, from the top on."""
    of_others = (paths.cache().resolve(), Path(sys.prefix), Path(sys.base_prefix))
    asked = ((path, folder) for side, folder in folders.items() for path in probed[side].asked)
    for name in {path.relative_to(folder) for path, folder in asked if path.is_relative_to(folder)}:
        path = top / name
        theirs = any(map(path.is_relative_to, of_others)) or ".git" in name.parts
        if path.exists() and not theirs and not _is_changed(path, probed["now"].during):
            yield name


def _older(top: Path, ignored: Iterable[str], unopened: Iterable[str]) -> Iterator[str]:
    """Files that git ignores and the working tree used, and that are older than a changed source that nobody opened."""
    sources = [top / name for name in unopened if PurePath(name).suffix in COMPILED]
    newest = max((source.stat().st_mtime for source in sources if source.is_file()), default=0.0)
    built = (name for name in ignored if not LINKED.isdisjoint(PurePath(name).suffixes) and not name.startswith(MADE))
    yield from (name for name in built if not os.path.isabs(name) and (top / name).stat().st_mtime < newest)  # noqa: PTH117


def _other_contents(found: Mapping[Side, Mapping[str, str]]) -> set[str]:
    """Files that both sides used, with other contents."""
    base, now = found["base"], found["now"]
    return {name for name in base.keys() & now.keys() if base[name] != now[name]}


def _outside(top: Path, codes: Mapping[Side, Checkout], probed: Mapping[Side, Probed]) -> Iterator[str]:
    """Files around the working tree that its processes used, and that the base looked for around its own tree."""
    base = codes["base"].folder or top
    for file in probed["now"].files:
        if not any(file.is_relative_to(tree) for tree in (top, *codes["now"].trees)):
            there = Path(os.path.normpath(base / os.path.relpath(file, top)))
            if there in probed["base"].asked and not there.exists():
                yield str(file)


def _begun_with(top: Path, changed: Iterable[str]) -> Iterator[str]:
    """Changed modules that Python ran in this process when it began: what they set holds for the base, too."""
    for module in map(sys.modules.get, ("sitecustomize", "usercustomize")):
        file = Path(getattr(module, "__file__", None) or "/").resolve()
        if file.is_relative_to(top) and str(file.relative_to(top)) in changed:
            yield str(file.relative_to(top))


def _decides_unopened(name: str, folders: Mapping[Side, Path]) -> bool:
    """Whether a process may tell the sides apart by a file that it doesn't open: by its presence, or by its mode."""
    contents = [digest(folder / name) for folder in folders.values()]
    there = [os.path.lexists(folder / name) for folder in folders.values()]
    return there[0] != there[1] or contents[0] == contents[1]


def _is_used(name: str, side: Side, folders: Mapping[Side, Path], found: Mapping[str, str], probed: Probed) -> bool:
    """Whether a side used a file of its folder, asked about it, or used a copy, as an installation makes one."""
    folder = folders[side]
    if name in found or folder / name in probed.asked or _is_noticed(name, folder, folders, probed.asked):
        return True
    if name.endswith(".pyc") and os.path.relpath(source_of(str(folder / name)), folder) in found:
        return True  # Python may run it in place of its source, whatever the source says
    content = digest(folder / name)
    copies = {of_copy for copy, of_copy in found.items() if copy.startswith(MADE)}
    return content not in ("", _EMPTY) and content in copies


def _is_noticed(name: str, folder: Path, folders: Mapping[Side, Path], asked: frozenset[Path]) -> bool:
    """Whether a side asked something that a file, which is there on one side alone, gives another answer to.

    The file's folder may be on one side alone, too, with folders around.
    """
    parts = PurePath(name).parts
    paths_to = [Path(*parts[:count]) for count in range(1, len(parts) + 1)]
    alone = [path for path in paths_to if len({os.path.lexists(top / path) for top in folders.values()}) == 2]
    return bool(alone) and any(folder / path in asked for path in (*alone, alone[0].parent / EVERYTHING))


def _shared(top: Path, names: SideNames, probed: Mapping[Side, Probed], scenarios: set[Path]) -> Iterator[str]:
    """Files that the base used though they aren't its own: all in the working tree, others if both sides used them.

    A side that has only written a file has used it, if the other side reads it or looks for it. What a library writes
    without Python, such as `torch.save`, is known by when the file was changed.
    """
    before, now = probed["base"], probed["now"]

    def elsewhere(files: Iterable[Path]) -> set[Path]:
        return {file for file in files if names.of(file) is None and not file.is_relative_to(top)}

    used_now = {*now.files, *now.opened}
    # Another program may have opened a file of the working tree meanwhile.
    used = {*before.files, *(before.opened & used_now)}
    # What the base only asked about wasn't there yet, so the base made it, and the working tree found it.
    made = (before.asked | before.written) & used_now
    made |= {file for file in elsewhere(now.files) if _is_changed(file, before.during)}
    # What has come, gone or changed since where the base looked is the working tree's doing. The base finds that, too.
    left = {path for path in elsewhere(before.there) if _at(path) != before.there[path]}
    left |= {file for file in elsewhere(before.files) if digest(file) not in ("", before.files[file])}
    # It may have been as it is now from the start: the process of the gate loads the working tree's ops, too.
    for one, other in ((before, now), (now, before)):
        looked = other.files.keys() | (other.asked - other.written)
        left |= {file for file in elsewhere(one.written) if not looked.isdisjoint({file, file.parent / EVERYTHING})}
    inside = {file for file in used if names.of(file) is None and file.is_relative_to(top)}
    yield from (str(file.relative_to(top)) for file in inside - scenarios)
    yield from map(str, elsewhere((used & used_now) | made | left) - scenarios)


def _at(path: Path) -> str:
    """What one learns of a path without opening it: nothing is there, or a folder, or a file of some size."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return "folder" if stat.S_ISDIR(found.st_mode) else str(found.st_size)


def _is_changed(file: Path, during: tuple[float, float]) -> bool:
    """Whether a file was made or changed then."""
    began, ended = during
    try:
        return began - _CLOCK <= file.stat().st_ctime <= ended
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class SideNames:
    """The paths of a side's files as both sides have them. package: where in the repository the harness lies."""

    code: Checkout
    package: Path

    def of(self, file: Path) -> str | None:
        """The path from the top on, or below what was made for the side; None for a file of neither."""
        home, folder = self.code.home, self.code.folder
        if home and file.is_relative_to(home / measuring.FOLDER):
            return str(self.package / file.relative_to(home / measuring.FOLDER))
        if home and file.is_relative_to(home):
            return f"{MADE}/{file.relative_to(home)}"
        return str(file.relative_to(folder)) if folder and file.is_relative_to(folder) else None


def _files(probed: Probed, names: SideNames, scenarios: set[Path]) -> Iterator[tuple[str, str]]:
    """Name and digest of each file of a side. What only pip reads of a package isn't code."""
    heard = {file: digest(file) for file in probed.opened if names.of(file) and file not in probed.files}
    for file, content in {**probed.files, **heard}.items():
        name = names.of(file)
        of_pip = name is not None and name.startswith(MADE) and file.name in _OF_PIP
        if file not in scenarios and content and not of_pip:
            yield name or str(file), content
