"""Runs that can't be true: exit code 2 with file and line, whoever reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import differences, explain, store
from harness.errors import UsageError
from harness.model import (
    Attachment,
    Case,
    ComputePoint,
    Header,
    KernelFacts,
    KernelProfile,
    Limits,
    LinkPoint,
    Measurement,
    RangeProfile,
    StreamPoint,
    Traffic,
    Work,
)
from harness.report import build
from harness.report.formats.json import text
from harness.report.formats.markdown import render
from tests.properties import bounded

Make = Callable[[int], Measurement]
LIMITS = Limits(
    tuple(StreamPoint(2**n, 2**n, 1e-6 * n, "memcpy", is_copy=True) for n in (20, 22)),
    (StreamPoint(2**20, 2**20, 2e-5, "memcpy", is_copy=True),),
    (ComputePoint("float32", 64, 64, 64, 1e12, "matmul"),),
    (LinkPoint(2, 100, 1e-6, "copy"),),
)


@pytest.fixture
def folder(tmp_path: Path, header: Header, measurement: Make) -> Path:
    """A run of two results and an attachment, without checksums, as an older harness wrote it."""
    folder = tmp_path / "run"
    store.create(folder, replace(header, limits=LIMITS)).close()
    more = {"facts": (("empty", 0.5),), "kernels": (KernelFacts("k", 32, 0, 0),), "call_samples": (2e-5,)}
    work = Work(64, 64, (("float32", 8),))
    records = [replace(measurement(n), work=work, traffic=Traffic(64, 64), **more) for n in (1, 2)]
    (folder / store.RESULTS).write_text("".join(f"{store.dump(record)}\n" for record in records))
    kernels, ranges = (
        (KernelProfile("k", 1.0, (("time", 1e-6),)),),
        (RangeProfile("step", 0, 1.0, (("median", 1e-6),)),),
    )
    found = Attachment(records[0].case.id, "ncu", (("idle", 0.5),), kernels=kernels, ranges=ranges)
    (folder / store.ATTACHMENTS).write_text(f"{store.dump(found)}\n")
    return folder


def changed(folder: Path, name: str, line: int, path: str, value: Any) -> None:
    """Give a field of a record another value. path: names and indices with dots between."""
    lines = [(folder / name).read_text()] if name == store.HEADER else (folder / name).read_text().splitlines()
    record = place = json.loads(lines[line])
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in way:
        place = place[part]
    place[last] = value
    lines[line] = json.dumps(record)
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("samples", [], "the status is 'ok', and there is no sample"),
        ("samples.3", 0.0, "a call takes 0.0 s; allowed are 1e-15 s to 1e+09 s"),
        ("samples.3", -1e-5, "a call takes -1e-05 s"),
        ("samples.3", math.nan, "a call takes nan s"),
        ("samples.0", math.nan, "a call takes nan s"),
        ("samples.3", math.inf, "a call takes inf s"),
        ("samples.3", 5e-324, "a call takes 5e-324 s"),
        ("call_samples", [0.0], "a call takes 0.0 s"),
        ("work.read", 10**400, "the work has a number that is negative, or 2**100 or more"),
        ("work.written", -1, "the work has a number that is negative"),
        ("work.again", 65, "the work reads 65 bytes a second time, and 64 bytes at all"),
        ("work.flops.0.1", 10**400, "the operations in float32 are negative, or 2**100 or more"),
        ("arithmetic", [["tf32", -1]], "the operations in tf32 are negative, or 2**100 or more"),
        ("traffic.read", -1, "the traffic has a number that is negative"),
        ("facts.0.1", math.nan, "empty is nan"),
        ("kernels.0.registers", -1, "the kernel k has a number that is negative"),
        ("case.shape.0.1", 10**400, "the size N is negative, or 2**100 or more"),
        ("case.choices", [["p", math.nan]], "the choice p is nan"),
        ("case.choices", [["p", 10**400]], r"the choice p is 2\*\*1328 or more"),
        ("case.world", 0, "the world is 0"),
    ],
)
def test_a_result_that_cannot_be_true_names_its_line(folder: Path, path: str, value: Any, told: str) -> None:
    changed(folder, store.RESULTS, 1, path, value)
    with pytest.raises(UsageError, match=rf"results\.jsonl:2: {told.replace('2**', '2[*][*]').replace('+', '[+]')}"):
        store.load(folder)


def test_a_last_line_without_its_end_is_judged_as_well(folder: Path) -> None:
    changed(folder, store.RESULTS, 1, "samples", [0.0])
    results = folder / store.RESULTS
    results.write_text(results.read_text().rstrip("\n"))
    with pytest.raises(UsageError, match=r"results\.jsonl:2: a call takes 0\.0 s"):
        store.load(folder)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("machine.devices", [], "the machine has no device; allowed is one or more"),
        ("machine.devices.0.memory_bytes", 10**400, "it has the number 2"),
        ("repeat", 0, "repeat is 0"),
        ("jobs", -1, "jobs -1"),
        ("limits.points.0.seconds", 0.0, "a stream takes 0.0 s"),
        ("limits.end.0.seconds", math.nan, "a stream takes nan s"),
        ("limits.points.0.read", -(2**22), "a stream reads -4194304"),
        ("limits.points.0.read", 2**62, "a stream reads"),
        ("limits.compute.0.rate", 0.0, "the rate of float32 is 0.0"),
        ("limits.links.0.seconds", 0.0, "a link sends 100 bytes in 0.0 s"),
        ("limits.cache_bytes", -1, "a cache has -1 bytes"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(folder: Path, path: str, value: Any, told: str) -> None:
    changed(folder, store.HEADER, 0, path, value)
    with pytest.raises(UsageError, match=rf"run\.json: isn't the header of a run: .*{told}"):
        store.load(folder)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("kernels.0.launches", 0.0, "a kernel is launched 0.0 times a call"),
        ("kernels.0.values.0.1", math.nan, "time is nan"),
        ("values.0.1", math.inf, "idle is inf"),
        ("ranges.0.count", 0.0, "a call has 0.0 ranges"),
        ("ranges.0.depth", -1, "a range has the depth -1"),
        ("ranges.0.depth", 101, "a range has the depth 101"),
        ("ranges.0.values.0.1", math.nan, "median is nan"),
    ],
)
def test_an_attachment_that_cannot_be_true_is_neither_read_nor_written(
    folder: Path, path: str, value: Any, told: str
) -> None:
    before = (folder / store.ATTACHMENTS).read_text()
    changed(folder, store.ATTACHMENTS, 0, path, value)
    wrong = store.parse(Attachment, (folder / store.ATTACHMENTS).read_text())
    with pytest.raises(UsageError, match=rf"attachments\.jsonl:1: {told}"):
        store.load(folder)
    (folder / store.ATTACHMENTS).write_text(before)
    with pytest.raises(UsageError, match=f"ncu tells of copy/.*: {told}"):
        store.attach(folder, [wrong])
    assert (folder / store.ATTACHMENTS).read_text() == before


def test_a_training_that_diverged_is_attached(folder: Path) -> None:
    store.attach(folder, [Attachment("copy/a", "losses", series=(("losses", (1.0, math.nan, math.inf)),))])
    assert len(store.load(folder).attachments) == 2


def test_no_unusual_number_of_the_harness_is_refused(folder: Path) -> None:
    """What a run on a machine without a link, with the smallest and the largest cases, may have."""
    _, writer = store.reopen(folder)
    case = Case("copy", "v", "int8", (("N", 2**62), ("M", 0)), (("p", -1.5), ("q", 0)), world=8)
    with writer:
        writer.append(Measurement(case, "out_of_memory", work=Work(2**66, 2**66)))
        writer.append(Measurement(case, "ok", (1e-9,), facts=(("change", -0.5),), process=1))
    assert len(store.load(folder).measurements) == 4


NASTY: tuple[Any, ...] = (
    0, -1, 1, 0.5, -0.0, 5e-324, 1e-300, 1e-15, 1e9, 1e18, 1e308, math.nan, math.inf, -math.inf, 2**50, 2**62, 2**63,
    2**99, 10**300, 10**400, -(10**400), "", "x", None, True, [], {}, [[]],
)  # fmt: skip


def paths(record: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    parts = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for name, part in parts:
        yield (*above, str(name))
        yield from paths(part, (*above, str(name)))


@pytest.mark.slow  # the tests above have values that no run has
@bounded
@given(st.data())
def test_no_value_of_a_stored_run_is_a_bug_of_a_command(folder: Path, data: st.DataObject) -> None:
    """One field, of any record, with a value that nobody measures: refused, or compared, explained and reported."""
    name = data.draw(st.sampled_from([store.HEADER, store.RESULTS, store.RESULTS, store.ATTACHMENTS]))
    whole = (folder / name).read_text()
    fields = [".".join(path) for path in paths(json.loads(whole if name == store.HEADER else whole.splitlines()[0]))]
    changed(folder, name, 0, data.draw(st.sampled_from(fields)), data.draw(st.sampled_from(NASTY)))
    try:
        run = store.load(folder)
    except UsageError:
        return
    finally:
        (folder / name).write_text(whole)
    differences.compare(run, run)
    render(build.page(run))
    text(run)
    for result in run.results:
        with suppress(UsageError):  # it has no time
            known = explain.known(run, result.case.id)
            explain.verdict(known, explain.explain(known))
