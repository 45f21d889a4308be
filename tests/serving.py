"""Starts the servers of forked/, whose clients stand for Python: sys.executable is one of them.

One server forks processes that tests start, for all workers of pytest-xdist. Another one forks these workers, and has
imported what they collect.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FORKED = Path(__file__).parent / "forked"
FOLDER = "FORKED_FOLDER"
"""The variable that names the folder of the server of forked/server.py, and of the client that stands for Python."""

WORKERS = "FORKED_WORKERS"
"""The variable that says that workers of pytest-xdist are forked, too."""


def serve(config: pytest.Config, *, uses_a_gpu: bool) -> None:
    """Start the servers, unless this is a worker, and have sys.executable stand for Python.

    A GPU is used by workers that Python has started, as users' processes are.
    """
    if not uses_a_gpu:
        os.environ[WORKERS] = "1"
    if FOLDER in os.environ:
        sys.executable = str(Path(os.environ[FOLDER], "python"))
        return
    python = sys.executable
    os.environ[FOLDER] = folder = tempfile.mkdtemp(prefix="forked-")
    config.add_cleanup(lambda: os.environ.pop(FOLDER))
    # A process that has started threads can't be forked.
    sys.executable = _started(config, python, folder, "server.py", {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": ""})
    if WORKERS in os.environ and (count := config.getoption("numprocesses", None)):
        folder = tempfile.mkdtemp(prefix="forked-workers-")
        known = {"OMP_NUM_THREADS": "1", "PYTEST_XDIST_WORKER_COUNT": str(count)}
        sys.executable = _started(config, python, folder, "nest.py", known, *config.invocation_params.args)


def _started(
    config: pytest.Config, python: str, folder: str, script: str, variables: dict[str, str], *arguments: str
) -> str:
    """Start a server that listens in a folder, and make its client there, which stands for `python`.

    The server ends with this process, however that ends.
    """
    config.add_cleanup(lambda: shutil.rmtree(folder))
    client = Path(folder, "python")
    client.write_text(f'#!/bin/sh\nexec {shlex.join([python, "-IS", str(FORKED / "client.py"), folder])} "$@"\n')
    client.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-P", FORKED / script, folder, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    config.add_cleanup(server.communicate)
    assert server.stdout
    server.stdout.readline()
    return str(client)
