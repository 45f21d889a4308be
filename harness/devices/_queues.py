"""The state of a process in which every case is timed on a GPU.

A process launches faster at first. On an H200 (driver 580, torch 2.11), once it has launched from seven streams beside
the default one, or made four graphs, each kernel takes longer, in every graph and for the rest of the process. So the
first case of a process would seem faster than all others: torch.compile's quantize of one row took 0.98 us as the first
case (reports/h200/few_rows_more), and 1.18 us in this state (reports/h200/few_rows_again). No process leaves the state,
and a program that has worked for a while is in it. So all cases are timed in it.

That the GPU's queues of launches are all taken then is a guess. CUDA_DEVICE_MAX_CONNECTIONS=1 changes nothing.
"""

from __future__ import annotations

from functools import cache

_STREAMS = 32  # as many as torch has: then it hands out the first one again
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
