"""Memory that processes share: room for batches, slots that nobody overwrites, and how it is pinned."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.collection.steps.pipeline import _shared
from harness.collection.steps.pipeline._shared import AT_ONCE, SLOTS, SharedBatches, pinned
from harness.collection.steps.pipeline._stages import DEPTH, Pipeline, Stage, halved


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_all_slots_have_room_of_their_own():
    batches = SharedBatches(3, 7, 2)
    for number, one in enumerate([batches.files, batches.sizes, batches.images, batches.boxes]):
        assert not one.any()
        one[:] = np.arange(10 * number, 10 * number + SLOTS).reshape(SLOTS, *[1] * (one.ndim - 1))
    for number, one in enumerate([batches.files, batches.sizes, batches.images, batches.boxes]):
        assert [set(slot.flat) for slot in one] == [{10 * number + slot} for slot in range(SLOTS)]
    assert batches.files.shape == (SLOTS, 3, 7)
    assert batches.images.shape == (SLOTS, 3, 2, 2, 3)
    batches.close()


def test_memory_is_given_back():
    before = open_files()
    batches = SharedBatches(3, 7, 2)
    assert open_files() > before
    batches.close()
    del batches
    assert open_files() == before


def test_too_little_memory_is_told_before_anything_is_written(monkeypatch):
    def refuses(_descriptor, _start, _size):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    before = open_files()
    monkeypatch.setattr(_shared.os, "posix_fallocate", refuses)
    with pytest.raises(OSError, match=r"no .*B of memory for batches: Cannot allocate memory"):
        SharedBatches(3, 7, 2)
    assert open_files() == before


@pytest.mark.parametrize("at_once", [1, AT_ONCE])
@pytest.mark.parametrize("change", [lambda work: work, halved])
def test_no_slot_is_written_while_the_next_stage_may_read_it(start_clock, change, at_once):
    slots, written = itertools.cycle(range(SLOTS)), {}
    clock = start_clock(3 if at_once == 1 else 4)
    begun, reading, go_on, overwritten = threading.Semaphore(0), threading.Event(), threading.Event(), []

    def write(number):
        slot = next(slots)
        written[slot] = number
        begun.release()
        return slot, number

    def read(item):
        reading.set()
        assert go_on.wait(30)
        slot, number = item
        if written[slot] != number:
            overwritten.append(number)
        return number

    pipeline = Pipeline([Stage("write", change(write), at_once), Stage("read", read)])
    assert reading.wait(30)
    clock.settle(at_work=1)  # the reader
    if change is not halved:
        most = at_once + DEPTH + 1
        assert all(begun.acquire(timeout=30) for _ in range(most))
        assert sorted(written.values()) == list(range(most))  # and there are more slots
        assert len(written) < SLOTS
    go_on.set()
    for _ in range(20):
        pipeline.take()
        pipeline.done()
    pipeline.close()
    assert overwritten == []


class Driver:
    """A CUDA runtime that answers as it is told."""

    def __init__(self, status):
        self.status, self.calls = status, []

    def cudaHostRegister(self, *arguments):  # noqa: N802 - the driver's name
        self.calls.append(arguments)
        return self.status

    def cudaHostUnregister(self, *arguments):  # noqa: N802
        self.calls.append(arguments)
        return self.status

    def cudaGetErrorString(self, status):  # noqa: N802
        return f"reason {status}"


def test_all_slots_are_pinned_until_the_end(monkeypatch):
    driver = Driver(0)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(cudart=lambda: driver))
    batches = SharedBatches(3, 7, 2)
    unpin = pinned(batches.memory)
    address = batches.memory.ctypes.data
    assert driver.calls == [(address, batches.memory.nbytes, 1)]
    last = batches.boxes[-1]
    assert address + batches.memory.nbytes >= last.ctypes.data + last.nbytes
    unpin()
    assert driver.calls[1:] == [(address,)]
    driver.status = 2
    with pytest.raises(RuntimeError, match=r"^the .*B that are shared with .* can't be unpinned: reason 2$"):
        unpin()
    with pytest.raises(RuntimeError, match=r"^the .*B that are shared with .* can't be pinned: reason 2$"):
        pinned(batches.memory)
    batches.close()
