"""Training ResNet-50 from JPEG files: read, decode, cut and resize, copy to the device, train.

Source: OneFlow, "100 days open source" (rows O3 to O5), whose stages overlap where each has two buffers.

A stage is what has a resource of its own, since only such stages can overlap: 'read' has the disk, 'prepare' (decode,
cut and resize) the processors, 'copy' the bus, 'train' (scale and train) the device. With one buffer, one batch is on
its way at a time, so the times of all stages add up. (With one buffer between each two neighbours, only neighbours
would wait for each other.) With queues of two batches between stages, the slowest stage sets the pace.

Where the CPU decodes, processes do so. Threads would wait for Python's lock, and the thread that issues the training
step would wait for them. Where stages overlap, no process waits until all images of a batch are done: it goes on with
the next batch, of up to three.

A call is one training step with the next batch, for which the host waits. Labels are random. Each stage is measured
alone before a case is timed and once more afterwards. Then comes the whole with half of the slowest stage's work, which
must make the whole faster by as much as the stages' rates say.
"""

from __future__ import annotations

import os

from harness.collection.models import MODELS
from harness.collection.ops.elementwise import BOTH
from harness.collection.steps.pipeline._fed import check, prepare, recheck
from harness.collection.steps.pipeline._images import torchvision_missing
from harness.collection.steps.training._resnet import RESNETS
from harness.model import Case, Work
from harness.ops import Choice, Context, Launch, Op, Symbols


def work(symbols: Symbols, _itemsize: int) -> Work:
    """The operations of a training step, as in the op `resnet50_train`. Decoding has no operations that are counted."""
    forward = MODELS[symbols["model"]].flops()
    return Work(flops=(("case", 3 * forward * symbols["B"]),), items=symbols["B"], item="images")


def page_cache(case: Case) -> str | None:
    """Why files can't leave the page cache, if they should; None if they can."""
    if case.values["page_cache"] == "cold" and not hasattr(os, "posix_fadvise"):
        return "this system has no posix_fadvise, by which files leave the page cache: choose page_cache=warm"
    return None


def cpu_decoders(case: Case) -> str | None:
    """Why processes can't decode; None if they can."""
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd_create, by which processes share images: use Linux, or the variant cached"
    return page_cache(case)


def gpu_decoder(case: Case) -> str | None:
    """Why the GPU can't decode; None if it can."""
    return torchvision_missing() or page_cache(case)


OP = Op(
    "image_pipeline",
    "training ResNet-50 from JPEG files, images a second",
    symbols={
        "B": "images of a step",
        "N": "files on the disk",
        "T": "processes that decode and resize, or threads that resize decoded images; 0 for one on each processor",
    },
    defaults={"N": "8 * B", "T": "0"},
    choices={
        "model": Choice("which configuration of harness.collection.models", RESNETS),
        "page_cache": Choice("whether files are in the page cache when they are read", ("warm", "cold")),
    },
    dtypes=("float16", "bfloat16"),
    check=check,
    recheck=recheck,
    work=work,
    timer="steady",
    works_ahead="the next batches are decoded, resized and copied meanwhile",
    pages="harness.collection.steps.pipeline._report",
)


@OP.variant(
    "one_buffer",
    "one batch on its way at a time: its step ends before the next batch is read",
    role="baseline",
    rows=("O3",),
    devices=BOTH,
    unsupported=cpu_decoders,
)
def one_buffer(ctx: Context) -> Launch:
    """The stages wait for each other."""
    return prepare(ctx, "cpu", overlapping=False)


@OP.variant(
    "two_buffers",
    "stages overlap, with a queue of two batches between each two of them",
    role="published",
    rows=("O3",),
    devices=BOTH,
    unsupported=cpu_decoders,
)
def two_buffers(ctx: Context) -> Launch:
    """The slowest stage sets the pace."""
    return prepare(ctx, "cpu")


@OP.variant(
    "gpu_decode",
    "two_buffers, with images decoded by nvJPEG in batches, and resized on the GPU",
    role="published",
    rows=("O4",),
    unsupported=gpu_decoder,
)
def gpu_decode(ctx: Context) -> Launch:
    """The CPU only reads files."""
    return prepare(ctx, "gpu")


@OP.variant(
    "cached",
    "two_buffers from decoded images in the host's memory: what all but reading and decoding can reach",
    role="published",
    rows=("O3", "O5"),
    devices=BOTH,
)
def cached(ctx: Context) -> Launch:
    """Images are still cut, resized and copied in each step."""
    return prepare(ctx, "decoded")


@OP.variant(
    "log_sync",
    "cached, and after each step the host waits for the loss and the norms of weights, and writes a line",
    role="published",
    rows=("O5",),
    devices=BOTH,
)
def log_sync(ctx: Context) -> Launch:
    """The device has nothing to do until the line is written."""
    return prepare(ctx, "decoded", log="sync")


@OP.variant(
    "log_async",
    "cached, and a thread of its own waits for the loss and the norms of weights, and writes the line",
    role="published",
    rows=("O5",),
    devices=BOTH,
)
def log_async(ctx: Context) -> Launch:
    """The next steps are issued meanwhile."""
    return prepare(ctx, "decoded", log="async")
