"""What operators keep between calls, and that it can be given back."""

from __future__ import annotations

import torch

from harness.collection import nn
from harness.collection.nn import _dropout, _kernels, _memory, _pieces, _softmax, _unscale
from harness.cuda import workspaces


def test_nothing_is_kept_when_all_is_forgotten(monkeypatch):
    x = torch.randn(64)
    with monkeypatch.context() as patch:
        patch.setattr(_kernels, "_obstacle", lambda wanted: None)
        assert _softmax._softmaxes(x)
    layout = _unscale._layout((64,), (0,), 4, torch.device("cpu"))
    _unscale._table(layout, 0)
    _pieces._CAPTURED.append(layout)
    workspaces.of_stream(torch.device("meta"), 0, 8)
    assert _dropout._drawn_together.cache_clear in _memory.KEPT  # it draws numbers on a GPU
    nn.forget()
    assert not _pieces._CAPTURED
    assert not any(kernels._known for kernels in _kernels.OpKernels.every)
    caches = _unscale._layout, _unscale._table, workspaces._kept
    assert {kept.cache_info().currsize for kept in caches} == {0}
