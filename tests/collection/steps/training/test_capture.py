"""Steps of several ranks are made on the stream that torch captures them on."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.collection.steps.training._capture import capture_stream


def test_each_stream_waits_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    names = ("current", "captures")
    streams: dict[str, Any] = {
        name: SimpleNamespace(wait_stream=lambda other, name=name: told.append(f"{name} waits for {other.name}"))
        for name in names
    }
    for name in names:
        streams[name].name = name

    @contextmanager
    def on(stream: Any) -> Any:
        told.append(f"on {stream.name}")
        yield
        told.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams["current"])
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: "a graph")
    monkeypatch.setattr(torch.cuda, "graph", lambda _: SimpleNamespace(capture_stream=streams["captures"]))
    monkeypatch.setattr(torch.cuda, "stream", on)
    with capture_stream():
        told.append("made")
    assert told == ["captures waits for current", "on captures", "made", "off captures", "current waits for captures"]


@pytest.mark.gpu
def test_torch_captures_on_the_stream_that_steps_are_made_on() -> None:
    with capture_stream():
        made_on = torch.cuda.current_stream()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        captured_on = torch.cuda.current_stream()
    assert captured_on == made_on != torch.cuda.current_stream()
