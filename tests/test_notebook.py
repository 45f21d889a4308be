"""The notebook of the docs runs, and its cells show what they should."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import harness

ROOT = Path(harness.__file__).parents[1]
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


def shown(cell: Any) -> str:
    """All that a cell shows, as text."""
    parts = [output.get("text") or "" for output in cell.outputs]
    parts += [str(text) for output in cell.outputs for text in output.get("data", {}).values()]
    return "\n".join(parts)


@pytest.mark.slow  # tests/api has what its cells call
def test_the_notebook_of_the_docs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "docs" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs: they are of another machine"
    # One stream instead of all: what the machine can do isn't what this shows.
    few = "from harness.devices.cpu import Cpu; Cpu.stream_seconds = 0.0; Cpu.stream_sizes = (2**16, 2**17)"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(few))
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(ROOT / "docs")}}
    )
    # In a thread of its own: tests of the page in a browser leave an event loop running in this one.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, client.async_execute()).result()
    texts = {cell.source: shown(cell) for cell in notebook.cells if cell.cell_type == "code"}

    def said(begin: str) -> str:
        return next(text for source, text in texts.items() if begin in source)

    assert "<table>" in said("t = hb.time(torch.softmax")
    assert "<svg" in said("t = hb.time(torch.softmax")
    assert "elements are wrong by up to" in said("except hb.api.WrongResultError")
    assert "[closure]" in said('name="closure"')
    assert "over eager" in said("r = hb.race")
    assert "my_softmax/in_steps/float32/M16-N256" in said("run.frame()")
    assert "mine" in said('softmax = hb.op("softmax")')
    assert "'s', " in said("stored = hb.load")
