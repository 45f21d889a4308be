"""Figures that a pipeline reports of itself, with a library for JPEG and a driver that a test controls."""

from __future__ import annotations

import ctypes
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from harness import cuda, units
from harness.collection.steps.pipeline import _facts
from harness.metrics import METRICS, Subject
from harness.model import Case, Measurement, Work

MAPS = """\
7f00-7f10 r-xp 00000000 08:01 42                         /usr/lib/libc.so.6
7f10-7f20 r-xp 00000000 08:01 43                         /opt/my libs/libnvjpeg.so.13
"""


@pytest.fixture
def maps(monkeypatch, tmp_path):
    """The file that tells which libraries this process has loaded."""
    file = tmp_path / "maps"
    monkeypatch.setattr(_facts, "Path", lambda path: file if path == "/proc/self/maps" else Path(path))
    return file


@pytest.mark.parametrize(
    ("created", "asked", "engines", "log"),
    [(0, 0, 7, ["create", "ask", "destroy"]), (0, 2, None, ["create", "ask", "destroy"]), (3, 0, 0, ["create"])],
)
def test_engines_are_asked_of_the_library_that_is_loaded(monkeypatch, maps, created, asked, engines, log):
    """A GPU without engines can't make the backend that uses them. What was made is destroyed."""
    calls, handles = [], []

    def create(backend, _device, _pinned, flags, handle):
        calls.append("create")
        assert (backend, flags.value) == (3, 0)
        handle._obj.value = 99
        return created

    def ask(handle, found, cores):
        calls.append("ask")
        handles.append(handle.value)
        found._obj.value, cores._obj.value = 7, 8
        return asked

    def destroy(handle):
        calls.append("destroy")
        handles.append(handle.value)

    library = SimpleNamespace(nvjpegCreateEx=create, nvjpegGetHardwareDecoderInfo=ask, nvjpegDestroy=destroy)
    monkeypatch.setattr(ctypes, "CDLL", {"/opt/my libs/libnvjpeg.so.13": library}.__getitem__)
    maps.write_text(MAPS)
    assert _facts.jpeg_engines() == engines
    assert calls == log
    assert set(handles) <= {99}


def test_no_engines_are_known_where_the_library_is_not_loaded(maps):
    assert _facts.jpeg_engines() is None
    maps.write_text(MAPS.splitlines()[0])
    assert _facts.jpeg_engines() is None


@pytest.mark.parametrize("uuid", ["GPU-1", "1"])
def test_the_use_of_engines_is_a_share(monkeypatch, uuid):
    def refuse(_handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    inits = []
    monkeypatch.setattr(cuda, "device", lambda: SimpleNamespace(uuid=uuid))
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: inits.append(1))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", {"GPU-1": "handle"}.__getitem__)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", {"handle": (40, 20000)}.__getitem__, raising=False)
    assert _facts.jpeg_engine_use() == 0.4
    assert inits == [1]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetJpgUtilization", refuse)
    assert _facts.jpeg_engine_use() is None
    monkeypatch.delattr(pynvml, "nvmlDeviceGetJpgUtilization")
    assert _facts.jpeg_engine_use() is None


def test_the_share_of_the_expected_rate_is_of_items_a_second():
    case = Case("image_pipeline", "v", "float16", (("B", 256),))
    measured = Measurement(case, "ok", samples=(0.1,), work=Work(items=256, item="images"))
    share = METRICS["of_expected"]
    assert share.value(Subject.of(measured, None)) is None
    with_facts = Measurement(case, "ok", samples=(0.1,), work=measured.work, facts=((_facts.EXPECTED, 3200.0),))
    assert share.value(Subject.of(with_facts, None)) == pytest.approx(0.8)
    without = Measurement(case, "ok", samples=(0.1,), facts=((_facts.EXPECTED, 3200.0),))
    assert share.value(Subject.of(without, None)) is None
    assert (share.better, share.unit) == ("higher", units.SHARE)


def test_names_stand_for_their_numbers():
    unit = METRICS[_facts.LIMITING].unit
    assert [unit.write(place) for place in (0.0, 1.0, 2.9999, 3.0)] == ["read", "prepare", "train", "train"]
    head, write = unit.column([1.0], "images")
    assert (head, write(2.0), unit.axis([1.0], "images")) == ("", "copy", ("", 1.0))
    assert "0 read, 1 prepare, 2 copy, 3 train" in METRICS[_facts.LIMITING].hint
    assert METRICS[_facts.DECODER].unit.write(2) == "nvJPEG"


def test_every_figure_that_is_reported_is_a_metric_with_a_unit():
    rates = [_facts.EXPECTED, _facts.DECODE_RATE, *map(_facts.rate_of, (*_facts.STAGES, "resize"))]
    ratios = [_facts.DOUBLED, _facts.GAIN]
    counts = [_facts.ENGINES, _facts.THREADS, _facts.PROCESSES]
    shares = [_facts.ENGINE_USE, _facts.CACHED]
    for unit, names in (
        (units.ITEMS, rates),
        (units.RATIO, ratios),
        (units.COUNT, counts),
        (units.SHARE, shares),
        (units.BYTES, [_facts.FILE]),
    ):
        assert [METRICS[name].unit for name in names] == [unit] * len(names)
    names = list(METRICS)
    assert names.index("of_expected") == names.index("memory") + 1
    assert "in the mean of before and after the timed steps" in METRICS["read_rate"].hint


def test_each_stage_and_part_says_what_it_is():
    for stage in _facts.STAGES:
        assert METRICS[f"{stage}_rate"].hint.startswith("images a second of the stage alone that")
    for part in _facts.PARTS:
        assert METRICS[f"{part}_rate"].hint.startswith("images a second of the part of a stage alone that")
    assert METRICS[_facts.DECODE_RATE].better == "higher"
    queues = [name for name in METRICS if name.endswith(("_empty", "_full"))]
    assert queues == [f"{stage}_{state}" for stage in ("prepare", "copy", "train") for state in ("empty", "full")]


@pytest.mark.parametrize(("shortest", "calls"), [(0.0, _facts.FEWEST), (1.0, 4)])
def test_a_rate_is_of_calls_after_the_first_with_the_wait_for_their_work(monkeypatch, shortest, calls):
    """Calls that take a quarter of a second, and a second until their work is done."""
    now, log = [50.0], []
    monkeypatch.setattr(_facts, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def taking(name, seconds):
        def act(*_):
            log.append(name)
            now[0] += seconds

        return act

    found = _facts.rate_alone(taking("call", 0.25), itertools.count(), shortest, taking("wait", 1.0))
    assert log == ["call", "wait", *["call"] * calls, "wait"]
    assert found == calls / (calls * 0.25 + 1.0)
    assert _facts.FEWEST == 3


def test_one_item_at_a_time_is_worked_on_in_the_thread_that_asks():
    """A training step issues its work to the current stream of its thread."""
    threads, items = set(), []

    def work(item):
        items.append(item)
        threads.add(threading.current_thread())

    _facts.rate_alone(work, iter("abcd"), 0.0, lambda: None)
    assert (items, threads) == (list("abcd"), {threading.current_thread()})
