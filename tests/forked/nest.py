"""Forks workers of pytest-xdist from a process that has imported the files of tests.

Each worker would import them itself, and that was half of its start.

`nest.py FOLDER ...` does what server.py does, for workers alone. Files are imported by pytest, with the arguments `...`
that its session has. server.py forks this one, so torch is there.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import server  # type: ignore[import-not-found]

del sys.path[0]

if TYPE_CHECKING:
    from collections.abc import Iterator


COMPILER = "torch._inductor.fx_passes.joint_graph"
"""What torch imports for the first function that a test compiles, with all that this imports: for a second or two."""


class Imports:
    """A plug-in of pytest that imports each file of tests, and gives no tests of it."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        if not isinstance(collector, pytest.Module):
            return None
        with suppress(Exception, pytest.skip.Exception):  # a worker tells what can't be imported
            collector.obj  # noqa: B018 - it imports
        return pytest.CollectReport(collector.nodeid, "passed", None, [])


@contextmanager
def silence() -> Iterator[None]:
    """What is written to standard output and error goes nowhere."""
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    yield
    sys.stdout.flush()
    for number, file in zip((1, 2), kept, strict=True):
        os.dup2(file, number)
    for file in (nowhere, *kept):
        os.close(file)


@cache
def load() -> None:
    """Import what workers collect. It happens once, for the first of them."""
    with suppress(ImportError):
        importlib.import_module(COMPILER)
    with silence():
        pytest.main([*sys.argv[2:], "-n0"], plugins=[Imports()])
    if "hypothesis" in sys.modules:
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants()  # it reads each file of the harness
    gc.freeze()


if __name__ == "__main__":
    server.load = load
    server.main()
