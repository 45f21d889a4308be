"""The stream that steps of several ranks are made on before they are captured."""

from __future__ import annotations

from contextlib import AbstractContextManager

from harness.collection.steps.training._settings import side_stream


def capture_stream() -> AbstractContextManager[None]:
    """The stream on which torch captures graphs, as the current one.

    DistributedDataParallel keeps the nodes that take gradients, and such a node stays on the stream that it was made
    on. Were that another stream than the capture's, each gradient would be a branch of the graph.
    """
    import torch

    return side_stream(torch.cuda.graph(torch.cuda.CUDAGraph()).capture_stream)
