"""What workers of pytest-xdist do once, that code under test would do anew for each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

PACKAGE, PLUGINS = Path(__file__).parents[1] / "harness", Path(__file__).parent / "plugins"


def make_ready() -> None:
    """Keep what only costs time to make again."""
    import typer.main
    import typer.testing

    # Tests invoke few commands hundreds of times.
    made = cache(typer.main.get_command)
    vars(typer.main)["get_command"] = vars(typer.testing)["_get_command"] = made
    _keep_modules()
    _keep_digest()
    _keep_scenarios()
    _keep_kernels()
    if torch := sys.modules.get("torch"):  # in a process that the server has forked
        # To tell how long its guards take, the compiler empties the processor's caches: 30 ms each time.
        from torch._dynamo import guards

        guards.profile_guard_manager = lambda *_: 0.0
        # Each torch.manual_seed() would read the sources of all functions that call it, for devices that no test uses.
        for of in (torch.cuda, torch.mtia, torch.xpu):
            of.manual_seed_all = lambda seed: None


def _keep_modules() -> None:
    """Look for the modules of our ops once: each catalogue would look for them and import them."""
    from harness.discover import is_foreign
    from harness.ops import catalogue

    found = catalogue._modules_of
    kept = cache(found)

    def modules_of(entry: EntryPoint) -> Sequence[ModuleType]:
        return (found if is_foreign(entry) else kept)(entry)

    catalogue._modules_of = modules_of


def _keep_digest() -> None:
    """Hash all code once: each search and each supervisor would, for 40 ms."""
    from harness import source

    hashed, package = source.digest, source._PACKAGE
    kept = cache(hashed)

    def digest(plugins: Sequence[Path] = (), root: Path | None = None) -> str:
        ours = root is None and package == source._PACKAGE and all(plugin.parent == PLUGINS for plugin in plugins)
        return kept(tuple(plugins)) if ours else hashed(plugins, root)

    source.digest = digest


def _keep_scenarios() -> None:
    """Read each bundled scenario once: a listing reads all of them."""
    from harness.paths import data
    from harness.scenario import checks, documents, finding

    read, bundled = documents.read, data("scenarios")
    kept = cache(read)

    def read_once(file: Path) -> tuple[documents.Document, ...]:
        return (kept if file.parent == bundled else read)(file)

    vars(checks)["read"] = vars(finding)["read"] = read_once


def _keep_kernels() -> None:
    """Look for the file of each bundled kernel once: tests ask ten thousand times, each of which reads all folders."""
    from harness.ops import Op

    found, kept = Op.find, dict[tuple[Path | None, str, Path | None], Path]()

    def find(op: Op, file: str, beside: Path | None = None) -> Path:
        asked = op.file, file, beside
        if asked in kept:
            return kept[asked]
        place = found(op, file, beside)
        # A plug-in may yet get a kernel of the same name beside its file.
        if all(one is None or one.is_relative_to(PACKAGE) for one in (op.file, beside)):
            kept[asked] = place
        return place

    Op.find = find  # type: ignore[assignment, method-assign]


def share_processors() -> None:
    """Give torch's threads a part of the processors: one that waits for other threads takes it from another test.

    Torch takes its number of threads when it is imported, which is later, unless a server has forked this worker.
    """
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
