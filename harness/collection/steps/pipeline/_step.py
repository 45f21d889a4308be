"""The end of a pipeline: a training step with the batch that has come, and the log of its loss."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.collection.steps.pipeline._images import DEVIATION, MEAN, Item
from harness.collection.steps.pipeline._stages import Loop, QueueClosed, StageError, StageQueue, Stopwatch
from harness.collection.steps.training._rungs import FUSED
from harness.collection.steps.training._settings import EAGER, captured, seed_of, side_stream
from harness.collection.steps.training._trainer import Setup, Trainer
from harness.ops import Context

if TYPE_CHECKING:
    import torch

AHEAD = 2
"""Steps that may wait on the device: one that runs, and one behind it. So the device never waits for the host."""
_LINES = 8
"""Lines that may wait to be written."""


class TrainingStep:
    """Trains with batches, in mixed precision, NHWC, by torch's fused optimizer, which never waits for the device.

    graph: whether the step is a CUDA graph where it runs on a GPU. Without a graph, issuing the step holds Python's
    lock for most of its time, and the threads of other stages need that lock too. But beside a decoder on the same GPU
    the step must not be a graph: the kernels of a graph are all in the device's queue at once, which leaves the
    decoder's kernels no place between them. The labels stay as the trainer made them: noise has no classes.
    """

    def __init__(self, ctx: Context, *, graph: bool = True) -> None:
        import torch

        setup = Setup(ctx.s.model, ctx.s.B, seed_of(ctx), ctx.device, ctx.dtype, "nhwc")
        self.trainer = Trainer(FUSED, setup)
        self._mean, self._deviation = (torch.tensor(one, device=ctx.device)[:, None, None] for one in (MEAN, DEVIATION))
        self._on_gpu = ctx.device.type == "cuda"
        self._step = _graph_of(self.trainer) if self._on_gpu and graph else self.trainer.loss_of_step
        self._ended: deque[Any] = deque()

    @property
    def weights(self) -> list[torch.Tensor]:
        """The weights of the model."""
        return list(self.trainer.model.parameters())

    def __call__(self, item: Item) -> torch.Tensor:
        """Scale the images, and train with them. Gives the loss, a scalar on the device, which isn't waited for.

        The next step may overwrite the loss.
        """
        while len(self._ended) >= AHEAD:
            self._ended.popleft().synchronize()
        self._scale(item.data)
        loss = self._step()
        if self._on_gpu:
            self._ended.append(_mark())
        return loss

    def finish(self) -> None:
        """Wait until the last step has ended."""
        while self._ended:
            self._ended.popleft().synchronize()

    def _scale(self, images: torch.Tensor) -> None:
        """Images (B, side, side, 3) of uint8, or (B, 3, side, side) of float32 -> the trainer's batch, scaled, NHWC."""
        import torch

        if self._on_gpu:
            # The memory came from the stream of another stage, which may give it away only after this use.
            images.record_stream(torch.cuda.current_stream())
        self._scale_into(self.trainer.batch.images, images)

    def scaled(self, images: torch.Tensor) -> torch.Tensor:
        """What a step makes of images before it trains with them."""
        import torch

        made = torch.empty_like(self.trainer.batch.images)
        self._scale_into(made, images)
        return made

    def _scale_into(self, scaled: torch.Tensor, images: torch.Tensor) -> None:
        import torch

        scaled.copy_(images.permute(0, 3, 1, 2) if images.dtype == torch.uint8 else images)
        scaled.sub_(self._mean).div_(self._deviation)


def _graph_of(trainer: Trainer) -> Callable[[], torch.Tensor]:
    """The trainer's step as a CUDA graph. Some steps are made before."""
    with side_stream():
        for _ in range(EAGER):
            trainer.loss_of_step()
    return captured(trainer.loss_of_step)


def statistics_of(loss: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss and the norm of each weight, in one tensor."""
    import torch

    with torch.no_grad():
        return torch.stack([loss.float(), *torch._foreach_norm(weights)])


class SyncLog:
    """Writes a line after each step, for which it waits: meanwhile nothing new is issued to the device."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def __call__(self, values: torch.Tensor) -> None:
        """Wait for the step, and write its line."""
        _write(self._file, values.tolist())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class AsyncLog:
    """Copies what a line needs to pinned memory without waiting. A thread of its own waits for the copy, and writes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._queue = StageQueue(_LINES, Stopwatch())
        self._failure: BaseException | None = None
        self._loop = Loop("log", self._line, self._fail)
        self._loop.start()

    def __call__(self, values: torch.Tensor) -> None:
        """Issue the copy. Raises StageError if an earlier line couldn't be written."""
        import torch

        on_gpu = values.device.type == "cuda"
        line = torch.empty(values.shape, dtype=values.dtype, pin_memory=on_gpu)
        line.copy_(values.detach(), non_blocking=on_gpu)
        try:
            self._queue.put((line, _mark() if on_gpu else None))
        except QueueClosed:
            raise StageError(f"the log failed: {self._failure!r}") from self._failure

    def close(self) -> None:
        """Write what is left, end the thread, and close the file."""
        with suppress(QueueClosed):  # it has failed, and the thread has ended
            self._queue.put(None)
        self._loop.join()
        self._file.close()

    def _line(self) -> None:
        waiting = self._queue.get()
        if waiting is None:
            raise QueueClosed
        line, copied = waiting
        if copied is not None:
            copied.synchronize()
        _write(self._file, line.tolist())

    def _fail(self, _name: str, error: BaseException) -> None:
        self._failure = error
        self._queue.close()


LOGS: dict[str, Callable[[Path], SyncLog | AsyncLog]] = {"sync": SyncLog, "async": AsyncLog}


def _write(file: Any, values: list[float]) -> None:
    """A line: the loss, and how the norms of the weights are spread."""
    loss, *norms = values
    tenths = statistics.quantiles(norms, n=10) if len(norms) > 1 else norms
    json.dump({"loss": loss, "norms": norms, "mean": statistics.fmean(norms), "tenths": tenths}, file)
    file.write("\n")


def _mark() -> Any:
    """An event on the current stream, for which a thread can wait without keeping a processor busy."""
    import torch

    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
