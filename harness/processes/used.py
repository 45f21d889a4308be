"""Which files this process uses: so the gate learns which code it measures on each side.

Two sides that load one and the same file measure the same code there, whatever their revisions say.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from harness import paths
from harness.processes import compilers
from harness.processes.installed import NAMES, Installed, digest
from harness.processes.own_modules import OwnModules

_OWN = Path(__file__).resolve().parents[1]
_SYSTEM = tuple(
    f"/{name}"
    for name in ["usr", "lib", "lib32", "lib64", "bin", "sbin", "etc", "proc", "sys", "dev", "run", "snap", "nix/store",
                 "var/lib", "var/cache", "opt/cuda", "opt/nvidia", "opt/conda"]
)  # fmt: skip
_OF_USERS = ("/dev/shm", "/run/user")
"""Folders among them where programs keep files by their names."""
_INSTALLATIONS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CONDA_PREFIX", "NVHPC_ROOT", "CUDA_CACHE_PATH")
"""Variables that name folders of both sides' software outside of the system's folders, or of the driver's own cache."""
# What libraries and the driver compiled is kept there by its content, so no side can get what another one made. Users'
# programs keep files there by their names, too, such as plans.
_BY_CONTENT = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR")
_KEPT_BY_CONTENT = frozenset({".triton", ".cupy"})
_INDUCTOR = "torchinductor_"  # with the name of the user
"""The names of the usual folders."""
_HASH = re.compile(r"(?=[A-Za-z]*\d)[0-9A-Za-z]{32,}")
"""What is part of the path of a file that is kept by its content."""
_LONGEST_PATH = 4096
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"})
_STDLIB = os.path.realpath(sysconfig.get_path("stdlib"))
_LISTS = frozenset({"os.listdir", "os.scandir"})
_OPENS = {"open": 0, "ctypes.dlopen": 0, "import": 1, "sqlite3.connect": 0}
"""Events of something that reads a file, and which argument names the file."""
_NAMES_GIVEN = frozenset({"os.rename", "os.link", "os.symlink"})
"""Events of something that gives a file a name, which is the second argument."""
_OF_IMPORTS = ("importlib._bootstrap", "importlib/metadata/")
_OF_PIP = re.compile(r".*\.dist-info/(METADATA|RECORD|entry_points\.txt|direct_url\.json)")
"""What tells of a package that is installed, and is no code of it."""
EVERYTHING = "*"
"""In place of the name of a file: the process has asked which names the folder has."""
WRITTEN = ">"
"""In place of the digest of a file: the process has written it, and hasn't read it."""
ANYTHING = "**"
"""In place of the name of a file: a process that a side has started, or native code, may ask about any file below."""
_LIBRARY = re.compile(r".*\.so(\.[\d.]+)?")
_LAUNCHER, _TRITON = f"{_OWN}/cuda/native.py", "/triton/runtime/build.py"
"""Where C for the host is compiled that is kept by its content: one side compiles it, and the other finds it."""
_readlink, _real = os.readlink, cache(os.path.realpath)


class UsedFiles:
    """Files that this process has loaded, has opened to read, or has named to a process that it started.

    trees: folders of the code that is measured, the repository's last. What lies in none of them counts unless it is of
    this Python, of the system, of the harness or of its cache, or pip has installed it. Modules that were installed
    from the repository count wherever they lie. before: modules that start the process; all until now unless told.
    """

    def __init__(self, trees: Sequence[Path], before: Sequence[ModuleType] = ()) -> None:
        """Begin to listen. A process can't stop listening: make one object, in a process that will end soon."""
        self._trees = [str(tree.resolve()) for tree in trees]
        self._opened, self._tried, self._written, self._libraries = set[str](), set[str](), set[str](), set[str]()
        self._started: set[tuple[str, ...]] = set()
        self._asked, self._listed = set[str](), set[str]()
        self._starts, self._listens = False, True
        self._digests: dict[str, str] = {}
        self._own: OwnModules | None = None
        self._installed = Installed(entry for entry in sys.path if not self._tree(_real(entry)))
        self._judged: tuple[Mapping[str, Sequence[str]], dict[str, bool]] = {}, {}
        # What starts this process comes from outside of the code that is measured.
        early = before or [*sys.modules.values()]
        self._before = {f for m in early if isinstance(f := getattr(m, "__file__", None), str)}
        self._mapped_before, self._compilers = _mapped(), compilers.named()
        sys.addaudithook(self._hear)
        for name in ("stat", "lstat", "access", "readlink"):
            _replace(name, self._asking(getattr(os, name)))
        importlib.util.find_spec = self._finding(importlib.util.find_spec)

    def libraries_loaded(self) -> None:
        """What is mapped into the memory until now is of Python and torch."""
        self._mapped_before = _mapped()

    def so_far(self) -> tuple[tuple[str, str], ...]:
        """The full path and the SHA-256 of each file, sorted.

        "" in place of the SHA-256 for a path that the process has only asked about, such as whether there is a file, or
        has tried to open. FOLDER/* is such a path, too: which files there are in a folder of the trees. So is TREE/**:
        what another process asked about that it has started, or native code that it has loaded. WRITTEN stands for a
        file outside of the trees that the process has only written.
        """
        self._listens = False  # what this method asks about is no code's
        self._digests |= {file: digest(Path(file)) for file in self._files() - self._digests.keys()}
        left_out = self._left_out()
        # The base lies in the cache, of which nothing else counts. What it asks about may lie beside it.
        cache = str(paths.cache().resolve())
        near = {str(Path(tree).parents[1]) for tree in self._trees if _is_below(tree, cache)}
        about = self._asked | self._installed.lists | {file for file in self._tried if not os.path.exists(file)}  # noqa: PTH110 - there are thousands
        listed = {f"{_real(folder)}/{EVERYTHING}" for folder in self._listed}  # by code of the trees
        # What a link of the trees leads to may be a file that doesn't count, such as one of the system.
        linked = (link for file in {*about, *filter(self._tree, self._tried)} for link in _links(file))
        told = {
            path: ""
            for path in {*map(source_of, about), *linked}
            if self._tree(path)
            or any(_is_below(path, folder) for folder in near)
            or not ((path.endswith("/*") and path not in listed) or self._is_left_out(path, left_out))
        }
        asks = (
            self._starts
            or any(map(_LIBRARY.fullmatch, self._digests))
            or not all("/" in name and self._is_software(source_of(name), left_out) for name in self._libraries)
        )
        told |= {f"{tree}/{ANYTHING}": "" for tree in self._trees if asks}
        written = {source_of(file) for file in self._written.copy()}
        told |= {file: WRITTEN for file in written if not self._tree(file) and self._counts(file, left_out)}
        self._listens = True
        return tuple(sorted((told | self._digests).items()))

    def _files(self) -> set[str]:
        self._own = self._own or OwnModules.of([*map(Path, self._trees)], self._installed)
        modules = {
            name: source_of(file)
            for name, module in list(sys.modules.items())
            if isinstance(file := getattr(module, "__file__", None), str)
        }
        mine = {file for name, file in modules.items() if self._own.have(name, file) and not _standard(file)}
        heard = {source_of(file) for file in (*self._opened, *self._named(), *(_mapped() - self._mapped_before))}
        early = {source_of(file) for file in self._before}
        every = {file for file in modules.values() if file not in early or self._tree(file)} | heard
        left_out = self._left_out()
        return mine | {file for file in every if file in self._own.files or self._counts(file, left_out)}

    def _tree(self, file: str) -> str:
        """The innermost folder of code that a file lies in; "" if it lies in none."""
        return max((tree for tree in self._trees if _is_below(file, tree)), key=len, default="")

    def _left_out(self) -> dict[str, list[str]]:
        """What doesn't count of each folder of code, and of what lies in none of them."""
        here = [str(paths.cache().resolve()), sys.prefix, sys.base_prefix]
        kept = [folder for name in _INSTALLATIONS if (folder := _named_by(name))]
        own = (_OWN, _OWN.parent / "pyproject.toml", paths.data("kernels"), paths.data("scenarios"))
        # A repository may hold a virtual environment or the cache. It may also lie below a Python for all users.
        inside = {tree: [place for place in here if _is_below(place, tree) and place != tree] for tree in self._trees}
        return {**inside, "": [*here, *kept, *map(str, own), *self._compilers]}

    def _counts(self, file: str, left_out: Mapping[str, Sequence[str]]) -> bool:
        there = not self._is_software(file, left_out) and os.path.isfile(file)  # noqa: PTH113 - there are thousands
        return there and os.access(file, os.R_OK)

    def _is_software(self, file: str, left_out: Mapping[str, Sequence[str]]) -> bool:
        """Whether a file is left out, or is as pip has installed it, in whatever folder that is of no side's."""
        return self._is_left_out(file, left_out) or (not self._tree(file) and self._installed.has(file))

    def _is_left_out(self, file: str, left_out: Mapping[str, Sequence[str]]) -> bool:
        """Whether a path is of this Python, of the system, or of what else is no code of a side."""
        if self._judged[0] != left_out:
            self._judged = left_out, {}
        known = self._judged[1]  # there are thousands, and each case asks about all of them again
        if file not in known:
            known[file] = self._is_of_others(file, left_out)
        return known[file]

    def _is_of_others(self, file: str, left_out: Mapping[str, Sequence[str]]) -> bool:
        tree = self._tree(file)
        inside = file[len(tree) :].split("/")
        return (
            not NAMES.isdisjoint(inside)
            or not {"__pycache__", ".git"}.isdisjoint(inside)
            or (not tree and (_is_of_system(file) or ".nv" in inside or _is_kept_by_content(file)))
            or any(_is_below(file, folder) for folder in left_out[tree])
        )

    def _named(self) -> Iterator[str]:
        """What the commands of started processes name, as far as it is a file."""
        for folder, *words in self._started:
            for word in words:
                if word and len(word) < _LONGEST_PATH:
                    yield os.path.join(folder, word)  # noqa: PTH118 - may be any text

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: called for everything that this process does, so it must be quick and never raise."""
        if event in _STARTS:
            words = tuple(_words(event, arguments))
            built = (file := _caller()) == _LAUNCHER or (file.endswith(_TRITON) and not self._tree(file))
            self._started.add(tuple(word for word in words if not (built and compilers.PROGRAMS.fullmatch(word))))
            opens = any(map(compilers.PROGRAMS.fullmatch, words[1:2]))
            self._starts = self._starts or (not opens and self._is_called_by_a_side())
            return
        if event == "ctypes.dlopen" and self._is_called_by_a_side(_OF_IMPORTS):
            self._libraries.add(os.fsdecode(arguments[0] or ""))
        if event in _LISTS:
            lister = _caller()
            ours = not any(word in lister for word in _OF_IMPORTS) and not _is_of_instrument(lister)
            if ours and (folder := _folder(arguments[0])):
                self._asked.add(f"{folder}/{EVERYTHING}")
                self._listed |= {folder} if self._tree(lister) else set()
            return
        if event in _NAMES_GIVEN:
            self._written.add(_full(os.fspath(arguments[1])))
            return
        if (named := _OPENS.get(event)) is None or not isinstance(arguments[named], (str, bytes)):
            return
        if event == "open" and isinstance(arguments[2], int) and _only_writes(arguments[2]):
            self._written.add(_full(arguments[0]))  # what a process writes is no code of it
            return
        file = _full(arguments[named])
        if not _OF_PIP.fullmatch(file) or self._tree(file) or self._is_called_by_a_side(_OF_IMPORTS[:1]):
            self._opened.add(file)  # else Python or a library merely looks which packages there are
        self._tried |= {file} if event == "open" else set()

    def _is_called_by_a_side(self, without: Sequence[str] = ()) -> bool:
        """Whether a function of the trees, but not of the harness, calls now, itself or by a library.

        without: parts of names of files. What such a file calls doesn't count, such as an import.
        """
        frame: FrameType | None = sys._getframe(2)  # of who calls the audit hook
        while frame:
            file = frame.f_code.co_filename
            if self._tree(file) and not _is_of_instrument(file):
                return True
            if any(word in file for word in without):
                return False
            frame = frame.f_back
        return False

    def _asking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of `os` that notes which path it is asked about. No audit event tells that."""

        @functools.wraps(function)
        def asked(path: Any, *more: Any, **options: Any) -> Any:
            if self._listens and isinstance(path, (str, bytes, os.PathLike)):
                name = os.fsdecode(path)
                if folder := "/" if name.startswith("/") else _folder(options.get("dir_fd")):
                    self._asked.add(os.path.join(folder, name))  # noqa: PTH118 - may be a full path
            return function(path, *more, **options)

        return asked

    def _finding(self, find: Callable[..., Any]) -> Callable[..., Any]:
        """`find_spec`, which tells whether a module is there without loading the module."""

        @functools.wraps(find)
        def found(*named: Any, **options: Any) -> Any:
            spec = find(*named, **options)
            for place in (getattr(spec, "origin", None), *(getattr(spec, "submodule_search_locations", None) or ())):
                if isinstance(place, str):
                    self._asked.add(_full(place))
            return spec

        return found


def _replace(name: str, function: Callable[..., Any]) -> None:
    """Put a function in place of one of `os`, which can do the same."""
    before = getattr(os, name)
    for able in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        if before in able:
            able.add(function)
    setattr(os, name, function)


def _is_below(file: str, folder: str) -> bool:
    """Whether a path lies in a folder, or is the folder. Both are full, without links."""
    return file.startswith(folder) and file[len(folder) :][:1] in ("", "/")


def _mapped() -> set[str]:
    """Files that are mapped into the memory of this process, such as libraries that another library needs."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {words[5] for line in lines if len(words := line.split(None, 5)) == 6 and words[5].startswith("/")}


def _only_writes(flags: int) -> bool:
    """Whether a file is opened without reading what it held before: a file to read and write isn't made anew."""
    return bool(flags & os.O_WRONLY) or bool(flags & os.O_RDWR and flags & os.O_CREAT)


def _is_kept_by_content(file: str) -> bool:
    """Whether a file lies in a folder of files that are kept by their content, and its path there has a hash."""
    folders = [f"{folder}/" for name in _BY_CONTENT if (folder := _named_by(name))]
    inside = [file[len(folder) :] for folder in folders if file.startswith(folder)]
    parts = file.split("/")
    usual = (n for n, part in enumerate(parts) if part in _KEPT_BY_CONTENT or part.startswith(_INDUCTOR))
    inside += ["/".join(parts[n + 1 :]) for n in usual]
    return any(map(_HASH.search, inside))


def _full(name: str | bytes) -> str:
    text = os.fsdecode(name)
    return text if text.startswith("/") else str(_here() / text)


def _named_by(variable: str) -> str:
    """The folder that a variable names, without links; "" for none, and for the folder of all files."""
    folder = os.path.realpath(os.environ.get(variable) or "/")
    return "" if folder == "/" else folder


def _words(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    """The folder in which a process is started, and the words of its command."""
    given = arguments[2] if event == "subprocess.Popen" else None
    yield str(_here() / os.fsdecode(given)) if isinstance(given, (str, bytes, os.PathLike)) else str(_here())
    first, more = (arguments[0], ()) if event == "os.system" else arguments[:2]
    texts = [*(more if isinstance(more, (list, tuple)) else [more]), first]
    for text in texts:
        if isinstance(text, (str, bytes, os.PathLike)):
            word = os.fsdecode(text)
            yield word
            if " " in word:  # a line for a shell
                yield from _split(word)


def _split(line: str) -> Iterable[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:  # somebody has removed it
        return Path("/")


def _caller() -> str:
    """The file of the code that acts now: not Python's own library, unless that searches for modules."""
    frame: FrameType | None = sys._getframe(2)  # of who calls the audit hook
    while frame:
        file = frame.f_code.co_filename
        if any(word in file for word in _OF_IMPORTS) or not (file.startswith("<frozen ") or _standard(file)):
            return file
        frame = frame.f_back
    return ""


def _is_of_instrument(file: str) -> bool:
    """Whether a file is of the harness, but not of its collection."""
    return _is_below(file, str(_OWN)) and file[len(str(_OWN)) + 1 :].split("/", 1)[0] not in paths.COLLECTION


def _is_of_system(file: str) -> bool:
    return any(_is_below(file, one) for one in _SYSTEM) and not any(_is_below(file, one) for one in _OF_USERS)


def _folder(given: Any) -> str:
    """The full path of a folder that is given by its path, by a descriptor, or by None; "" where nobody knows it."""
    if not isinstance(given, int):
        return _full(os.fspath(given or "."))
    try:
        return _readlink(f"/proc/self/fd/{given}")
    except OSError:
        return ""


@cache
def _links(file: str) -> tuple[str, ...]:
    """The links on the way to a file, which may be one itself. Each is a full path, without links before its name."""
    folder, _, name = file.rpartition("/")
    path = os.path.normpath(f"{_real(folder or '/')}/{name}")
    above = _links(folder) if folder else ()
    return (*above, path) if os.path.islink(path) else above  # noqa: PTH114 - there are thousands


@cache
def source_of(file: str) -> str:
    """The full path of a file without links; of the source where Python has kept a module compiled."""
    file = os.path.realpath(file)
    if not file.endswith(".pyc"):
        return file
    try:
        return importlib.util.source_from_cache(file)
    except ValueError:
        return file


def _standard(file: str) -> bool:
    """Whether a file is of Python's own library."""
    return _is_below(file, _STDLIB) and NAMES.isdisjoint(file.split("/"))
