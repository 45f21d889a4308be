"""Processes that decode: the images they give, what they tell of a failure, and that none of them stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from harness.collection.steps.pipeline import _files, _images, _workers
from harness.collection.steps.pipeline._shared import AT_ONCE, SLOTS, SharedBatches
from harness.collection.steps.pipeline._stages import Crew
from harness.collection.steps.pipeline._workers import Decoders, ProcessImages
from tests.rare import rare

COUNT, SIDE, SEED = 3, 32, 7
LIMIT = 30
"""Seconds after which a wait is an error."""


@pytest.fixture(scope="module")
def readers():
    made = Crew(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def files(readers):
    return _files.made(COUNT, readers)


@pytest.fixture
def batches(files):
    made = SharedBatches(COUNT, max(file.stat().st_size for file in files), SIDE)
    yield made
    made.close()


@pytest.fixture(params=[2])
def decoders(batches, request):
    made = Decoders(request.param, batches)
    yield made
    made.close()


def resized(file, number, place):
    decoded = _images.decoder()(_files.read(file, cold=False))
    return _images.resized(decoded, _images.crops(SEED, number, COUNT)[place], SIDE)


@pytest.mark.parametrize("decoders", [rare(1), rare(2), COUNT + 2], indirect=True)
def test_images_are_those_of_the_files_in_every_slot(decoders, batches, files, readers):
    images = ProcessImages(decoders, batches, SEED)
    assert len(decoders.processes) == len({one.pid for one in decoders.processes}) == decoders._count
    for number in range(SLOTS + 2):
        order = [files[(number + place) % COUNT] for place in range(COUNT)]
        found = images.both(images.read(number, order, readers, cold=False))
        assert found.number == number
        wanted = [resized(file, number, place) for place, file in enumerate(order)]
        assert found.data.equal(torch.stack(wanted))


@pytest.mark.parametrize("decoders", [rare(1), 2], indirect=True)
def test_batches_that_are_worked_on_at_once_do_not_mix(decoders, batches, files, readers):
    images = ProcessImages(decoders, batches, SEED)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for first in range(0, 3 * AT_ONCE, AT_ONCE):
            items = [images.read(first + n, files[n:] + files[:n], readers, cold=False) for n in range(AT_ONCE)]
            for n, found in enumerate(threads.map(images.both, items)):
                wanted = [resized(file, first + n, place) for place, file in enumerate(files[n:] + files[:n])]
                assert (found.number, found.data.equal(torch.stack(wanted))) == (first + n, True)


@pytest.mark.parametrize("decoders", [1], indirect=True)
def test_decoding_alone_and_resizing_alone(decoders, batches, files, readers):
    images = ProcessImages(decoders, batches, SEED)
    item = images.read(4, files, readers, cold=False)
    assert images.resize(item).data[2].equal(resized(files[0], 4, 2))  # nothing was decoded before
    images_before = batches.images.copy()
    assert images.decode(item) == item
    assert (batches.images == images_before).all()
    wanted = [resized(files[-1], 4, place) for place in range(COUNT)]
    assert images.resize(item).data.equal(torch.stack(wanted))


def test_processes_have_one_thread_each_no_context_and_nothing_of_the_parent(decoders):
    def told(code):
        return {str(one.result()) for one in decoders._shares(eval, code)}

    assert told("__import__('torch').get_num_threads()") == {"1"}
    assert told("__import__('torch').cuda.is_initialized()") == {"False"}
    others = {"harness.cli", "harness.runner", __name__}
    assert __name__ in sys.modules
    assert told(f"{others} & {{*__import__('sys').modules}}") == {"set()"}


def test_a_file_that_is_no_jpeg_is_told_and_the_next_batch_is_right(decoders, batches, files, readers):
    images = ProcessImages(decoders, batches, SEED)
    item = images.read(0, files, readers, cold=False)
    batches.files[item.data, 1] = 0
    with pytest.raises((OSError, RuntimeError), match=r"identify|JPEG"):
        images.both(item)
    found = images.both(images.read(1, files, readers, cold=False))
    assert found.data[1].equal(resized(files[1], 1, 1))


def test_out_of_memory_stays_what_it_is(decoders):
    with pytest.raises(MemoryError):
        _workers._wait(decoders._shares(bytearray, 1 << 62))


def test_a_process_that_is_killed_at_work_is_told(decoders, batches, files, readers, watched, monkeypatch):
    images = ProcessImages(decoders, batches, SEED)
    item = images.read(0, files, readers, cold=False)
    [first, second] = [one.pid for one in decoders.processes]
    [first_gone, second_gone] = map(watched, (first, second))
    os.kill(first, signal.SIGSTOP)
    os.kill(second, signal.SIGSTOP)
    real = _workers._wait

    def kill_and_wait(shares):
        """Both have a task by now."""
        os.kill(second, signal.SIGKILL)
        assert second_gone(LIMIT)
        os.kill(first, signal.SIGCONT)
        real(shares)

    monkeypatch.setattr(_workers, "_wait", kill_and_wait)
    with pytest.raises(RuntimeError, match=r"a process that decodes images was killed by SIGKILL, .*fewer processes"):
        images.both(item)
    monkeypatch.setattr(_workers, "_wait", real)
    assert first_gone()
    decoders._taken.get_lock().acquire(block=False)  # nobody gives the lock back, whoever has it
    with pytest.raises(RuntimeError):
        ThreadPoolExecutor(1).submit(images.both, item).result(LIMIT)


def test_a_process_that_ends_by_itself_is_told(decoders):
    with pytest.raises(RuntimeError, match="died with exit status 3: what it wrote"), decoders._explained():
        _workers._wait(decoders._shares(os._exit, 3))


def test_a_process_that_cannot_begin_is_told(batches, monkeypatch):
    monkeypatch.setattr(_workers, "_begin", os._exit)  # called with arguments that it doesn't take
    with pytest.raises(RuntimeError, match="a process that decodes images ended early"):
        Decoders(2, batches)
    assert multiprocessing.active_children() == []


def test_closing_leaves_no_process(batches, watched):
    made = Decoders(2, batches)
    ended = [watched(one.pid) for one in made.processes]
    assert not any(one() for one in ended)
    made.close()
    made.close()
    assert all(one() for one in ended)


def test_no_process_outlives_a_parent_that_is_killed(files, watched, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(f"""
import signal
from multiprocessing import util
from harness.collection.steps.pipeline._shared import SharedBatches
from harness.collection.steps.pipeline._workers import Decoders
from tests.forked.forkserver import forking
if __name__ == "__main__":
    util.spawnv_passfds = forking(util.spawnv_passfds)
    decoders = Decoders(2, SharedBatches(1, {max(file.stat().st_size for file in files)}, {SIDE}))
    print(*(one.pid for one in decoders.processes), flush=True)
    signal.pause()
""")
    root = str(Path(_workers.__file__).parents[4])
    command, environment = [sys.executable, "-P", script], os.environ | {"PYTHONPATH": root}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        pids = [int(one) for one in parent.stdout.readline().split()]
        assert len(pids) == 2
        ended = [watched(pid) for pid in pids]
        assert not any(one() for one in ended)
        parent.kill()
    assert all(one(LIMIT) for one in ended)
