"""Change the instrument in one place at a time, and see whether a test fails. If none does, a test is missing.

    python scripts/mutate.py                                  # all modules that make numbers: an hour or two
    python scripts/mutate.py harness/check.py harness/gate    # these modules, or folders of modules
    python scripts/mutate.py harness/check.py:65              # the mutants of a line
    python scripts/mutate.py harness/check.py --list          # the mutants, without running them

A mutant is one change: of a comparison, an operator, a number, a condition, a statement, of what a function returns, or
`min` to `max`. The tests that run its line run one after the other, fast tests first, until one fails; if no test runs
it in this process, all tests of the module do. scripts/mutate.yaml names the tests of each module, and the mutants that
change nothing which anybody could notice, with the reason; they count apart. What was found is kept in --results, so
that a run which ended goes on where it was: a mutant is tried again when its module has changed, a survivor also when
its tests have.

Mutants are made in copies of the tracked files, one for each of --jobs processes, never in the checkout. Such a
process loads torch and pytest once, and is forked for each mutant. The fork loads the harness from its copy, and so do
processes that tests start. A mutant costs about a second.

Libraries serve worse here. mutmut (3.x) forks, too, but changes only bodies of functions that have no decorator: no
constants of a module, which here are tolerances and thresholds, and no properties. cosmic-ray starts pytest anew for
each mutant, which takes four seconds where tests import torch, and changes the files of the checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from mutations import Key, Mutant, mutants

ROOT = Path(__file__).parent.parent
WRITTEN = Path(__file__).with_suffix(".yaml")
LOADED = (
    "torch", "numpy", "pytest", "hypothesis", "scipy.stats", "yaml", "pydantic.dataclasses", "pandas", "rich.progress",
    "typer",
)  # fmt: skip
"""What is loaded before forking: what takes long, and nothing of the harness."""
SECONDS = 10.0  # for a mutant, beside the multiple of its tests' time
MEMORY = 8 * 2**30  # bytes that a mutant may take


def written() -> tuple[dict[str, str], dict[Key, str]]:
    """What mutate.yaml tells: tests by module, and the reasons of mutants that change nothing, by their keys."""
    told = yaml.safe_load(WRITTEN.read_text(encoding="utf-8"))
    equal = {(one["file"], one["in"] or "", one["was"], one["now"]): one["why"] for one in told["equal"]}
    return told["modules"], equal


def is_asked(mutant: Mutant, asked: Sequence[str]) -> bool:
    """Whether a mutant is one of a line that was asked for; all are where only modules were."""
    lines = [one for one in asked if one.partition(":")[2]]
    return not lines or f"{mutant.file}:{mutant.line}" in lines or mutant.file in asked


def files_of(asked: Sequence[str], root: Path = ROOT) -> dict[str, list[str]]:
    """The modules asked for, each with its files of tests. Ends the program where mutate.yaml has none of them."""
    found: dict[str, list[str]] = {}
    modules, _ = written()
    asked = [one.partition(":")[0] for one in asked]
    for pattern, tests in modules.items():
        for file in sorted(root.glob(pattern)):
            name = str(file.relative_to(root))
            if not asked or any(name == one or name.startswith(one.rstrip("/") + "/") for one in asked):
                held = (
                    str(test.relative_to(root)) for test_pattern in tests.split() for test in root.glob(test_pattern)
                )
                found[name] = sorted({test for test in held if Path(test).name.startswith("test_")})
    if not found:
        sys.exit(f"{', '.join(asked)}: no such module; scripts/mutate.yaml has these: {', '.join(modules)}")
    return found


@dataclass(frozen=True)
class Clean:
    """A run of tests with no mutant. seconds: of each test that passed. lines: of each file, the tests of each line."""

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]
    failed: tuple[str, ...] = ()

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that may see a mutant, fast ones first."""
        by_line = self.lines.get(mutant.file, {})
        chosen = {test for line in mutant.lines for test in by_line.get(line, ())}
        return sorted(chosen or self.seconds, key=self.seconds.__getitem__)


class Watching:
    """A plugin of pytest that notes which tests run which lines of some files, and for how long."""

    def __init__(self, files: Sequence[str]) -> None:
        self._names = {str(Path(file).absolute()): file for file in files}
        self._found: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._test = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test, self._seconds[nodeid] = nodeid, -time.perf_counter()
        threading.settrace(self._called)  # threads that the test starts
        sys.settrace(self._called)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)
        self._seconds[nodeid] += time.perf_counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Any:
        name = self._names.get(frame.f_code.co_filename)
        if name is None:
            return None

        def ran(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                self._found[name, frame.f_lineno].add(self._test)
            return ran

        return ran

    def told(self) -> dict[str, Any]:
        lines = [[file, line, sorted(tests - self._failed)] for (file, line), tests in self._found.items()]
        seconds = {test: spent for test, spent in self._seconds.items() if test not in self._failed}
        return {"seconds": seconds, "lines": lines, "failed": sorted(self._failed)}


class Chosen:
    """A plugin of pytest that runs some tests, in their order, and notes which one failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: place for place, test in enumerate(tests)}
        self._failed = ""

    def pytest_collection_finish(self, session: Any) -> None:
        chosen = (item for item in session.items if item.nodeid in self._order)
        session.items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed = report.nodeid

    def told(self) -> dict[str, Any]:
        return {"by": self._failed}


class Copies:
    """What a process has for itself: a copy of the tree, loaded packages, and a server that forks tests' processes."""

    def __init__(self, original: Path) -> None:
        self.original, self._parent = original, os.getppid()
        self.folder = Path(tempfile.mkdtemp(prefix="job-", dir=original.parent))
        self.tree = shutil.copytree(original, self.folder / "tree")
        os.chdir(self.tree)
        os.environ |= {"PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.environ["FORKED_FOLDER"] = forked = tempfile.mkdtemp(prefix="forked-", dir=self.folder)
        client = Path(forked, "python")
        command = shlex.join([sys.executable, "-IS", str(self.tree / "tests/forked/client.py"), forked])
        client.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        client.chmod(0o700)
        self._server = subprocess.Popen(
            [sys.executable, "-P", "tests/forked/server.py", forked],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ""},
            start_new_session=True,
        )
        assert self._server.stdout
        self._server.stdout.readline()
        sys.path[:0] = [str(self.tree)]
        for name in LOADED:
            importlib.import_module(name)
        self._changes = 0

    def run(self, tests: Sequence[str], plugin: Watching | Chosen, limit: float) -> tuple[int | None, dict[str, Any]]:
        """Run files of tests in a fork. Gives the exit code, None where it took too long, and what the plugin tells."""
        if os.getppid() != self._parent:
            os._exit(1)  # nobody waits for what was queued
        told = self.folder / "told.json"
        told.unlink(missing_ok=True)
        process = os.fork()
        if process == 0:
            self._become(tests, plugin, told)
        deadline = time.monotonic() + limit
        code = None
        while code is None and time.monotonic() < deadline:
            time.sleep(0.01)
            ended, status = os.waitpid(process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        if code is None:
            os.waitpid(process, 0)
        return code, json.loads(told.read_text()) if told.exists() else {}

    def _become(self, tests: Sequence[str], plugin: Watching | Chosen, told: Path) -> None:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
            with (self.folder / "output.txt").open("w") as output:
                for number in (1, 2):
                    os.dup2(output.fileno(), number)
            base = f"--basetemp={self.folder / 'tmp'}"
            stop = [] if isinstance(plugin, Watching) else ["-x"]
            arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not gpu", base, *stop, *tests]
            code = int(sys.modules["pytest"].main(arguments, plugins=[plugin]))
            told.write_text(json.dumps(plugin.told()))
        finally:
            os._exit(code)

    def change(self, file: str, source: bytes) -> None:
        """Write a file, with a time that no file had before: by time and size Python tells whether it was changed."""
        self._changes += 1
        (self.tree / file).write_bytes(source)
        os.utime(self.tree / file, (1_000_000 + self._changes, 1_000_000 + self._changes))


_copies: Copies


def copied(folder: Path) -> Path:
    """A copy of the tracked files, as they are now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def begin(original: Path) -> None:
    """Make this process ready: each of the pool has copies of its own."""
    global _copies  # noqa: PLW0603 - what a process of a pool keeps
    _copies = Copies(original)


def watch(files: Sequence[str], tests: Sequence[str]) -> Clean:
    """Run tests with no mutant."""
    code, told = _copies.run(tests, Watching(files), 3600.0)
    if not told:
        raise RuntimeError(f"the tests ended with {code}: {(_copies.folder / 'output.txt').read_text()[-4000:]}")
    lines: dict[str, dict[int, list[str]]] = defaultdict(dict)
    for file, line, which in told["lines"]:
        lines[file][line] = which
    again, failing = _copies.run(tests, Chosen([*told["seconds"]]), 3600.0)
    if again != 0:  # all mutants would count as killed
        raise RuntimeError(f"without a mutant {failing} failed the second time")
    return Clean(told["seconds"], lines, tuple(told["failed"]))


def attempt(mutant: Mutant, tests: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run a mutant: how it ended, and by which test."""
    original = (_copies.original / mutant.file).read_bytes()
    _copies.change(mutant.file, mutant.source)
    try:
        compile(mutant.source, mutant.file, "exec")
        files = sorted({test.partition("::")[0] for test in tests})
        code, told = _copies.run(files, Chosen(tests), seconds)
    except SyntaxError:
        code, told = 1, {"by": "the compiler"}
    finally:
        _copies.change(mutant.file, original)
    # Where none of the tests is found, none of them has failed.
    state = "survived" if code in (0, 5) else "killed" if code is not None else "timeout"
    return {"state": state, "by": told.get("by") or f"exit code {code}"}


class Results:
    """A file of what was found, a line for each mutant."""

    def __init__(self, file: Path, original: Path) -> None:
        self._file, self._original = file, original
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._found = {tuple(entry["key"]): entry for entry in map(json.loads, lines)}
        self._digests: dict[tuple[str, ...], str] = {}

    def of(self, mutant: Mutant, tests: Sequence[str]) -> dict[str, Any] | None:
        """What was found, if that still holds."""
        entry = self._found.get((*mutant.key, mutant.line))
        if entry is None or entry["module"] != self._digest(mutant.file):
            return None
        return entry if entry["state"] != "survived" or entry["tests"] == self._digest(*tests) else None

    def add(self, mutant: Mutant, tests: Sequence[str], ended: dict[str, Any]) -> None:
        """Keep how a mutant ended."""
        digests = {"module": self._digest(mutant.file), "tests": self._digest(*tests)}
        with self._file.open("a", encoding="utf-8") as output:
            print(json.dumps({"key": (*mutant.key, mutant.line), **ended, **digests}), file=output)

    def _digest(self, *files: str) -> str:
        """The digest of files that were copied."""
        if files not in self._digests:
            text = b"\0".join((self._original / file).read_bytes() for file in files)
            self._digests[files] = hashlib.sha256(text).hexdigest()[:16]
        return self._digests[files]


def run(asked: Sequence[str], results: Path, jobs: int, times: float) -> Iterator[tuple[Mutant, str]]:
    """Each mutant, and how it ended. times: a mutant may take so many times as long as its tests take without it."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        original = copied(Path(folder, "original"))
        kept = Results(results, original)
        together = defaultdict(list)
        for module, tests in files_of(asked, original).items():
            together[tuple(tests)].append(module)
        with ProcessPoolExecutor(jobs, get_context("fork"), initializer=begin, initargs=(original,)) as pool:
            for held, files in together.items():
                of_files = (made for file in files for made in mutants(file, (original / file).read_bytes()))
                asked_for = [mutant for mutant in of_files if is_asked(mutant, asked)]
                yield from tried(pool, asked_for, held, kept, times)


def tried(
    pool: ProcessPoolExecutor, made: Sequence[Mutant], tests: Sequence[str], results: Results, times: float
) -> Iterator[tuple[Mutant, str]]:
    """Each of the mutants that these files of tests hold, and how it ended, now or before."""
    entries = {mutant: results.of(mutant, tests) for mutant in made}
    yield from ((mutant, entry["state"]) for mutant, entry in entries.items() if entry)
    waiting = [mutant for mutant, entry in entries.items() if not entry]
    if not waiting:
        return
    clean = pool.submit(watch, sorted({mutant.file for mutant in waiting}), tests).result()
    for test in clean.failed:
        print(f"left out, since it fails without a mutant: {test}", file=sys.stderr)
    running = {}
    for mutant in waiting:
        chosen = clean.tests_of(mutant)
        limit = SECONDS + times * sum(clean.seconds[test] for test in chosen)
        running[pool.submit(attempt, mutant, chosen, limit)] = mutant
    try:
        for future in as_completed(running):
            results.add(running[future], tests, future.result())
            yield running[future], future.result()["state"]
    finally:  # by Ctrl-C: the mutants that have begun are the last ones
        for future in running:
            future.cancel()


def main() -> None:
    """Read the options, run, and print survivors and counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", help="files, folders of files, lines; all of mutate.yaml unless told")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--times", type=float, default=5.0, help="a mutant may take so many times its tests' time")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.jsonl", help="where what was found is kept")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    asked = parser.parse_args()
    if asked.list:
        made = (one for file in files_of(asked.modules) for one in mutants(file, (ROOT / file).read_bytes()))
        print(*(mutant for mutant in made if is_asked(mutant, asked.modules)), sep="\n")
        return
    (_, equal), counts = written(), defaultdict[str, Counter[str]](Counter)
    for mutant, ended in run(asked.modules, asked.results, asked.jobs, asked.times):
        state = "equal" if ended == "survived" and mutant.key in equal else ended
        counts[mutant.file][state] += 1
        if state == "survived":
            print(mutant, flush=True)
    total = sum(counts.values(), Counter[str]())
    print(f"{'module':60} {'mutants':>8} {'killed':>8} {'equal':>8} {'survived':>8}")
    for file, of in [*sorted(counts.items()), ("all", total)]:
        print(f"{file:60} {of.total():8} {of['killed'] + of['timeout']:8} {of['equal']:8} {of['survived']:8}")
    sys.exit(total["survived"] > 0)


if __name__ == "__main__":
    main()
