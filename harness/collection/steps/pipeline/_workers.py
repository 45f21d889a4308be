"""Processes that decode and resize images on the CPU. Threads would share Python's lock with the training step.

Images never go through a pipe: the processes find files' bytes in memory that they share with the pipeline, and leave
images there. As threads of a crew do, they take the images of a batch one by one, so that all have the same amount to
do; and a batch needs one message for each process. No process waits for the last image of a batch: it goes on with the
next batch.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.collection.steps.pipeline import _files
from harness.collection.steps.pipeline._images import Item, crops, decoder, resized
from harness.collection.steps.pipeline._shared import SLOTS, SharedBatches

if TYPE_CHECKING:
    import torch

    from harness.collection.steps.pipeline._stages import Crew

_IMPORTS = ["torch", "PIL.Image", "torchvision.io"]
"""Modules that are imported once, by the process that forks all other processes. None of them is of the harness: on
Python 3.11 that process doesn't know the path of modules, and might import another harness. Modules that can't be
imported are left out."""
_STARTED = 120.0
"""Seconds within which all processes must have started."""


# ---- In a process that decodes.


class _Decoding:
    """What a process needs to decode."""

    def __init__(self, batches: SharedBatches, taken: Any) -> None:
        """Keep what all processes share. taken: how many images of each batch some process has taken."""
        import torch

        self._files, self._sizes, self._boxes = batches.files, batches.sizes, batches.boxes
        self._images = torch.from_numpy(batches.images)
        self._taken = taken
        self._decode = decoder()
        self._last: torch.Tensor | None = None

    def both(self, turn: int, files: int, images: int) -> None:
        """Decode and resize images of the batch in slot `files` into slot `images`.

        turn: which of the batches that are worked on.
        """
        for place in self._places(turn):
            self._put(images, place, self._decoded(files, place))

    def decode(self, turn: int, files: int) -> None:
        """Decode images of the batch, and keep only the last one."""
        for place in self._places(turn):
            self._last = self._decoded(files, place)

    def resize(self, turn: int, files: int, images: int) -> None:
        """For each image, resize the one that this process decoded last, or the first one of the batch, by its box."""
        if self._last is None:
            self._last = self._decoded(files, 0)
        for place in self._places(turn):
            self._put(images, place, self._last)

    def _places(self, turn: int) -> Iterator[int]:
        """The places of images that no other process has taken."""
        while True:
            with self._taken.get_lock():
                place = self._taken[turn]
                self._taken[turn] += 1
            if place >= self._sizes.shape[1]:
                return
            yield place

    def _decoded(self, slot: int, place: int) -> torch.Tensor:
        return self._decode(self._files[slot, place, : self._sizes[slot, place]])

    def _put(self, slot: int, place: int, image: torch.Tensor) -> None:
        side = self._images.shape[2]
        self._images[slot, place].copy_(resized(image, self._boxes[slot, place], side))


_decoding: _Decoding


def _begin(batches: SharedBatches, taken: Any, all_begun: Any) -> None:
    """Make a process ready, and wait until all are: a pool starts no new process while one has nothing to do."""
    global _decoding  # noqa: PLW0603 - a pool keeps nothing for its tasks
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all processes
    torch.set_num_threads(1)
    _decoding = _Decoding(batches, taken)
    all_begun.wait(_STARTED)


def _end_with_parent() -> None:
    """End this process when its parent has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def _call(work: str, turn: int, *slots: int) -> None:
    """A task: one method of _Decoding, by its name."""
    getattr(_decoding, work)(turn, *slots)


# ---- In the process that trains.


class Decoders:
    """Processes that share the images of a batch."""

    def __init__(self, count: int, batches: SharedBatches) -> None:
        """Start `count` processes, and wait until they are ready. Raises RuntimeError if one of them dies."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTS)
        self._taken = context.Array("q", SLOTS)
        self._turns = itertools.cycle(range(SLOTS))
        self._count = count
        self._closing = threading.Lock()
        self._pool = ProcessPoolExecutor(count, context, _begin, (batches, self._taken, context.Barrier(count)))
        self.processes: list[BaseProcess] = []
        before = multiprocessing.active_children()
        try:
            with self._explained():
                shares = self._shares(os.getpid)
                self.processes += [one for one in multiprocessing.active_children() if one not in before]
                _wait(shares)
        except BaseException:
            self.close()
            raise

    def each(self, work: str, *slots: int) -> None:
        """Have all images of a batch worked on, and wait for the last one. work: the name of a method of _Decoding.

        As many threads as AT_ONCE may call it at a time. A process that finds no image left of one batch goes on with
        the next one. Raises what a process raised; RuntimeError if a process has died.
        """
        turn = next(self._turns)
        # No process takes images by this turn now, so the lock isn't needed. One that was killed may have kept it
        # forever.
        self._taken.get_obj()[turn] = 0
        with self._explained():
            _wait(self._shares(_call, work, turn, *slots))

    def close(self) -> None:
        """End the processes, and wait until they have ended."""
        with self._closing:  # two threads may find at the same time that a process has died
            self._pool.shutdown(cancel_futures=True)

    def _shares(self, task: Callable[..., object], *arguments: Any) -> list[Future[Any]]:
        """The same task for each process. One that comes late may find that another process has done its part."""
        return [self._pool.submit(task, *arguments) for _ in range(self._count)]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say how a process has died, where the pool only says that a process has died."""
        try:
            yield
        except BrokenProcessPool:
            self.close()  # it waits for all processes, so that their exit statuses are known
            raise RuntimeError(f"a process that decodes images {self._fate()}") from None

    def _fate(self) -> str:
        """How the first dead process died, as far as this is known. The pool ends all other processes by SIGTERM."""
        statuses = [one.exitcode for one in self.processes]
        status = next((one for one in statuses if one not in {0, None, -signal.SIGTERM}), None)
        if status == -signal.SIGKILL:
            why = "most likely by the kernel because memory ran out: choose fewer processes (T) or smaller batches (B)"
            return f"was killed by SIGKILL, {why}"
        how = "ended early" if status is None else f"died with exit status {status}"
        return f"{how}: what it wrote to standard error may say why"


def _wait(shares: Sequence[Future[Any]]) -> None:
    """Wait for all tasks, and only then raise what one raised: none may write a slot that is used again."""
    wait(shares)
    for share in shares:
        share.result()


class ProcessImages:
    """Decodes and resizes batches by processes. An image is resized by the process that decoded it, while it is cached.

    So the processors are one stage: as two stages, decoding and resizing would wait for the same processors, and each
    alone would be faster than both together can be. Items have the slot of their files' bytes until they are prepared.
    """

    def __init__(self, decoders: Decoders, batches: SharedBatches, seed: int) -> None:
        import torch

        self._decoders, self._batches, self._seed = decoders, batches, seed
        self._images = torch.from_numpy(batches.images)
        # Each is used by the one stage that writes the ring. No thread can interrupt another one's next().
        self._next_files, self._next_images = itertools.cycle(range(SLOTS)), itertools.cycle(range(SLOTS))

    def read(self, number: int, files: Sequence[Path], readers: Crew, *, cold: bool) -> Item:
        """Read the files of batch `number` into the next slot."""
        slot = next(self._next_files)
        places, sizes = self._batches.files[slot], self._batches.sizes[slot]

        def one(index: int) -> None:
            sizes[index] = len(_files.read(files[index], cold=cold, into=places[index]))

        readers.each(len(files), one)
        return Item(number, slot)

    def both(self, item: Item) -> Item:
        """Files' bytes -> images (B, side, side, 3) of uint8."""
        return self._into_slot("both", item)

    def decode(self, item: Item) -> Item:
        """Decode all images, and drop them. Gives the item as it is."""
        self._decoders.each("decode", item.data)
        return item

    def resize(self, item: Item) -> Item:
        """Resize one image for each box of the batch.

        Decoded images aren't shared: each process resizes the one that it decoded last, again and again.
        """
        return self._into_slot("resize", item)

    def _into_slot(self, work: str, item: Item) -> Item:
        slot = next(self._next_images)
        boxes = self._batches.boxes[slot]
        boxes[:] = crops(self._seed, item.number, len(boxes))
        self._decoders.each(work, item.data, slot)
        return Item(item.number, self._images[slot])
