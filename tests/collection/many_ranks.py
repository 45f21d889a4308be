"""Measure cases on many ranks, which are forks of one process: a folder, and questions on standard input.

Each rank is a measuring process that answers the questions about cases of its world, in the file WORLD-RANK in the
folder. Torch is loaded once for all of them, so eight take little longer to start than one.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from harness.ops import Catalogue
from harness.processes.child import Worker
from harness.processes.messages import Measure, Question, decode_question, encode
from harness.ranks import FOLDER

PLUGIN = Path(__file__).parents[1] / "plugins" / "kept_by_ranks.py"


def main(folder: Path, questions: Sequence[Question]) -> int:
    """Fork the ranks of one world after the other, and wait for them. Returns 0 if all of them ended well."""
    # Nearly all that the imports make stays, so searches for garbage would take a third of their time.
    gc.disable()
    import torch
    import torch._dynamo  # which DistributedDataParallel loads, and which takes as long as torch itself

    Catalogue()
    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)
    return max(together(world, folder, [*asked]) for world, asked in groupby(questions, world_of))


def world_of(question: Question) -> int:
    assert isinstance(question, Measure)
    return question.job.case.world


def together(world: int, folder: Path, questions: Sequence[Question]) -> bool:
    """Have so many ranks answer. Returns whether any of them failed. Two meet as those of two hosts do."""
    meeting = folder / str(world)
    meeting.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world))
    os.environ.update(sizes, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ[FOLDER] = "" if world == 2 else str(meeting)
    ended, held = os.pipe()
    pids = [fork(rank, folder / f"{world}-{rank}", questions, ended, held) for rank in range(world)]
    os.close(held)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]  # all of them are waited for
    return any(statuses)


def fork(rank: int, file: Path, questions: Sequence[Question], ended: int, held: int) -> int:
    """The process of a rank, which ends by itself. Rank 0 has the store, so it ends when nobody holds the pipe."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        worker = Worker("cpu", [PLUGIN], lambda _: None)
        file.write_bytes(b"".join(encode(worker.answer(question)) for question in questions))
        status = 0
        os.close(held)
        if rank == 0:
            os.read(ended, 1)
    finally:
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [decode_question(line) for line in sys.stdin]))
