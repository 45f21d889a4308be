"""The stream that steps of several ranks are made on before they are captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def capture_stream() -> Iterator[None]:
    """The stream on which torch captures graphs, as the current one.

    DistributedDataParallel keeps the nodes that take gradients, and such a node stays on the stream that it was made
    on. Were that another stream than the capture's, each gradient would be a branch of the graph.
    """
    import torch

    current, stream = torch.cuda.current_stream(), torch.cuda.graph(torch.cuda.CUDAGraph()).capture_stream
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)
