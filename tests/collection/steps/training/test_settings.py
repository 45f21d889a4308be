"""Graphs of steps, with a stand-in for torch's where there is no GPU."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import torch

from harness.collection.steps.training._settings import captured


def test_a_graph_keeps_the_weights_that_it_reads(monkeypatch):
    """Their memory is known to the graph by its address alone."""
    replays: list[None] = []
    graph = SimpleNamespace(replay=lambda: replays.append(None))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda _, **__: nullcontext())
    model, x = torch.nn.Linear(2, 2), torch.ones(2)
    with torch.no_grad():
        weight, first = weakref.ref(model.weight), model(x)
        replay = captured(lambda model=model: model(x))
    del model
    gc.collect()
    assert weight() is not None
    assert replay().equal(first)
    assert replay() is replay()
    assert len(replays) == 3
    del replay
    gc.collect()
    assert weight() is None


def test_a_graph_of_several_ranks_lets_the_thread_of_nccl_query_its_events(monkeypatch):
    modes: list[str] = []

    def graph(_made, *, capture_error_mode):
        modes.append(capture_error_mode)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    for ranks in (1, 2, 8):
        captured(lambda: torch.ones(1), ranks=ranks)
    assert modes == ["global", "thread_local", "thread_local"]
