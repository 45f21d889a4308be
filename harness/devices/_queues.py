"""The state of a GPU's queues in which every case of a process is timed.

A process begins with few of the queues that its launches go through. Once it has launched from seven streams, or made
four graphs, each kernel takes longer, in every graph and for the rest of the process: on an H200 (driver 580) 0.18 us
longer in a graph of one kernel of 0.91 us, and 0.3 us longer in graphs over many buffers. So the first case of a
process would seem faster than all others. A program that has worked for a while is in the second state, and no process
leaves it, so that all cases are timed in it.
"""

from __future__ import annotations

from functools import cache

_STREAMS = 32  # as many as torch hands out before it begins anew, and as queues that there can be
_GRAPHS = 8


@cache
def fill(index: int) -> None:
    """Launch from many streams and make many graphs, once in a process for each GPU. index: torch's current GPU."""
    import torch

    place = torch.device("cuda", index)
    number = torch.zeros(1, device=place)
    for _ in range(_STREAMS):
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream(place)):
            number.add_(1)
    for _ in range(_GRAPHS):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream(place)):
            # With several ranks, a thread of NCCL queries its own events meanwhile, which 'global' forbids.
            graph.capture_begin(capture_error_mode="thread_local")
            number.add_(1)
            graph.capture_end()
        graph.replay()
    torch.cuda.synchronize()
