"""A run folder: what goes in comes out, and damage costs no more than it must."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness import store
from harness.errors import MachineError, UsageError
from harness.model import (
    SCHEMA,
    Attachment,
    Case,
    Code,
    ComputePoint,
    Conditions,
    Curve,
    Expectation,
    Header,
    KernelFacts,
    Limits,
    LinkPoint,
    Measurement,
    Scenario,
    StreamPoint,
    Traffic,
    Warning,
    Work,
)
from tests.rare import rare

Make = Callable[[int], Measurement]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_a_measurement_with_every_field_comes_back_equal() -> None:
    full = Measurement(
        case=Case(
            op="prelu",
            variant="tuned",
            dtype="bfloat16",
            shape=(("N", 96), ("C", 64)),
            choices=(("layout", "nhwc"), ("p", 0.1), ("width", 7)),
            world=2,
            device="cuda",
            cache="hot",
        ),
        status="ok",
        samples=(1.0000000000000002e-05, 2.5e-05),
        call_samples=(3e-5,),
        timer="graph",
        work=Work(1, 2, (("float16", 3),), 4, 5, "tokens"),
        traffic=Traffic(5, 6),
        facts=(("empty", 0.25),),
        warnings=(Warning("noisy", "the µs vary", "measure again"),),
        error="first line\nsecond line\u2028third",
        process=3,
        stopped="interval",
        batch=10,
        sets=4,
        seed=2**63 - 1,
        before=Conditions(1.98e9, 3.2e9, 30.0, 100.0, ()),
        after=Conditions(None, None, None, None, ("sw_power_cap",)),
        kernels=(KernelFacts("prelu", 32, 0, 1024),),
        phases=(("compile", 0.5), ("check", 0.1)),
        code=Code("prelu", "c0de"),
    )
    text = store.dump(full)
    assert "\n" not in text
    assert store.parse(Measurement, text) == full


def test_a_header_with_scenarios_and_limits_comes_back_equal(folder: Path, header: Header) -> None:
    scenario = Scenario("s", "A title", "prelu", ("a/b",), expect=(Expectation("tuned", "of_ceiling", 0.95),))
    scenario = replace(scenario, curve=Curve("T * V", "bytes", by="V", littles_law=True))
    limits = Limits(
        (StreamPoint(10, 5, 1e-6, "add"),),
        (StreamPoint(10, 5, 1.1e-6, "add"),),
        (ComputePoint("float16", 64, 32, 16, 1e12, "matmul", "settled"),),
        (LinkPoint(2, 100, 1e-6, "copy"),),
    )
    full = replace(header, scenarios=(scenario,), limits=limits, finished="now", git_revision="abc", git_dirty=True)
    store.create(folder, full).close()
    assert store.load(folder).header == full


def test_a_header_from_before_there_were_curves_is_read(folder: Path, header: Header) -> None:
    full = replace(header, scenarios=(Scenario("s", "A title", "prelu", ("a/b",)),))
    store.create(folder, full).close()
    written = json.loads((folder / store.HEADER).read_text())
    del written["scenarios"][0]["curve"]
    (folder / store.HEADER).write_text(json.dumps(written))
    assert store.load(folder).header == full


def test_nan_and_infinity_come_back(measurement: Make) -> None:
    odd = replace(measurement(1), samples=(math.nan, math.inf, -math.inf))
    not_a_number, up, down = store.parse(Measurement, store.dump(odd)).samples
    assert math.isnan(not_a_number)
    assert (up, down) == (math.inf, -math.inf)


def test_undecodable_bytes_in_an_error_do_not_spoil_the_record(measurement: Make) -> None:
    odd = replace(measurement(1), error=os.fsdecode(b"can't open \xff"))
    assert store.parse(Measurement, store.dump(odd)).error == "can't open ?"


def test_results_are_on_disk_as_soon_as_they_are_appended(folder: Path, header: Header, measurement: Make) -> None:
    with store.create(folder, header) as writer:
        writer.append(measurement(1))
        assert store.load(folder).measurements == (measurement(1),)
        writer.append(measurement(2))
        assert store.load(folder).measurements == (measurement(1), measurement(2))


def test_an_updated_header_replaces_the_old_one(folder: Path, header: Header) -> None:
    with store.create(folder, header) as writer:
        writer.update(replace(header, finished="later"))
    assert store.load(folder).header.finished == "later"
    assert sorted(path.name for path in folder.iterdir()) == ["results.jsonl", "run.json"]


def test_a_folder_that_holds_a_run_is_refused(folder: Path, header: Header) -> None:
    store.create(folder, header).close()
    with pytest.raises(UsageError, match="holds a run already") as caught:
        store.create(folder, header)
    assert "--resume" in caught.value.advice


def test_a_file_in_the_place_of_the_folder_is_refused(folder: Path, header: Header) -> None:
    folder.write_text("mine")
    with pytest.raises(UsageError, match="not a folder"):
        store.create(folder, header)
    assert folder.read_text() == "mine"


@pytest.mark.parametrize("second", [store.create, lambda folder, _header: store.reopen(folder)])
def test_two_writers_are_refused(folder: Path, header: Header, second: Callable[[Path, Header], object]) -> None:
    with store.create(folder, header), pytest.raises(UsageError, match="another run is being written there"):
        second(folder, header)


def test_the_lock_goes_with_a_killed_writer(folder: Path, header: Header, measurement: Make) -> None:
    store.create(folder, header).close()
    script = (
        "import os, sys, pathlib; from harness import store; from harness.model import Measurement;"
        "run, writer = store.reopen(pathlib.Path(sys.argv[1]));"
        f"writer.append(store.parse(Measurement, {store.dump(measurement(7))!r})); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", script, folder], cwd=Path(store.__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    run, writer = store.reopen(folder)
    writer.close()
    assert run.measurements == (measurement(7),)


def test_reopening_takes_a_cut_line_off_and_goes_on(folder: Path, header: Header, measurement: Make) -> None:
    with store.create(folder, header) as writer:
        writer.append(measurement(1))
        writer.append(measurement(2))
    results = folder / "results.jsonl"
    os.truncate(results, results.stat().st_size - 30)
    run, writer = store.reopen(folder)
    with writer:
        writer.append(measurement(3))
    assert len(run.losses) == 1
    assert store.load(folder).measurements == (measurement(1), measurement(3))
    assert store.load(folder).losses == ()


def test_a_last_line_that_lacks_only_its_end_is_kept(folder: Path, header: Header, measurement: Make) -> None:
    with store.create(folder, header) as writer:
        writer.append(measurement(1))
    results = folder / "results.jsonl"
    os.truncate(results, results.stat().st_size - 1)
    _, writer = store.reopen(folder)
    with writer:
        writer.append(measurement(2))
    run = store.load(folder)
    assert run.measurements == (measurement(1), measurement(2))
    assert run.losses == ()


@pytest.mark.parametrize("garbage", ["{not json}", '{"case": 1, "status": "ok"}', "\x00\x00"])
def test_a_garbled_line_is_skipped_and_named(folder: Path, header: Header, measurement: Make, garbage: str) -> None:
    store.create(folder, header).close()
    results = folder / "results.jsonl"
    results.write_text("\n".join([store.dump(measurement(1)), garbage, store.dump(measurement(2)), ""]))
    run = store.load(folder)
    assert run.measurements == (measurement(1), measurement(2))
    [loss] = run.losses
    assert loss.startswith(f"{results}:2: one result is lost: ")


def test_a_status_of_another_version_is_a_loss_that_says_so(folder: Path, header: Header, measurement: Make) -> None:
    store.create(folder, header).close()
    (folder / "results.jsonl").write_text(store.dump(measurement(1)).replace('"ok"', '"melted"') + "\n")
    assert "'unsupported'" in store.load(folder).losses[0]


def test_a_folder_without_a_run_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no run \(there is no run\.json\)"):
        store.load(tmp_path)
    with pytest.raises(UsageError, match="holds no run"):
        store.reopen(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_runs_names_one_of_them(tmp_path: Path, header: Header) -> None:
    for name in ("b", "a"):
        store.create(tmp_path / name, header).close()
    with pytest.raises(UsageError, match="holds no run") as caught:
        store.load(tmp_path)
    assert caught.value.advice == f"name a folder that 'harness run' has written, such as {tmp_path / 'a'}"


def test_a_newer_schema_is_refused(folder: Path, header: Header) -> None:
    store.create(folder, replace(header, schema=SCHEMA + 1)).close()
    with pytest.raises(UsageError, match=f"has schema {SCHEMA + 1}; this version reads up to {SCHEMA}"):
        store.load(folder)


@pytest.mark.parametrize("read", [store.load, store.reopen])
def test_an_older_schema_is_refused_and_the_harness_that_reads_it_is_named(
    folder: Path, header: Header, read: Callable[[Path], object]
) -> None:
    store.create(folder, replace(header, schema=1)).close()
    with pytest.raises(UsageError, match=f"has schema 1, of an older harness; this version reads schema {SCHEMA}") as e:
        read(folder)
    assert "harness 0.1.0 of commit 814e77e" in e.value.advice


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "found no JSON object"),
        ("{}", "no 'schema'"),
        ('{"schema": 2}', "name: Field required"),
        ('{"schema": "1"}', 'the schema is "1"; it is a whole number from 1 on'),
        ('{"schema": 0}', "the schema is 0; it is a whole number from 1 on"),
        ('{"schema": -1}', "the schema is -1; it is a whole number from 1 on"),
        ('{"schema": true}', "the schema is true"),
        ('{"schema": NaN}', "the schema is NaN"),
        (f'{{"schema": 2, "machine": {"[" * 100_000}', "it is nested too deeply"),
        (f'{{"schema": {"9" * 5000}}}', "Exceeds the limit"),
    ],
)
def test_a_broken_header_is_one_clear_error(folder: Path, header: Header, content: str, reason: str) -> None:
    store.create(folder, header).close()
    (folder / "run.json").write_text(content)
    with pytest.raises(UsageError, match=rf"run\.json: isn't the header of a run: .*{reason}"):
        store.load(folder)


def test_a_folder_in_the_place_of_a_file_is_one_clear_error(folder: Path, header: Header) -> None:
    store.create(folder, header).close()
    (folder / "results.jsonl").unlink()
    (folder / "results.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"results\.jsonl: not a file"):
        store.load(folder)
    with pytest.raises(UsageError, match=r"results\.jsonl: not a file"):
        store.reopen(folder)


def test_a_full_disk_is_an_error_of_the_machine(
    folder: Path, header: Header, measurement: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with store.create(folder, header) as writer, monkeypatch.context() as patch:
        patch.setattr("harness.store.files.os.write", full)
        with pytest.raises(MachineError, match=r"results\.jsonl: can't be written: No space left on device") as caught:
            writer.append(measurement(1))
    assert "--resume" in caught.value.advice


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: a disk that fills up in the middle of a line.

    Only around the statement under test, since it holds for pytest's own output as well.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_written_before_the_disk_was_full_is_kept(folder: Path, header: Header, measurement: Make) -> None:
    with store.create(folder, header) as writer:
        writer.append(measurement(1))
        size = (folder / "results.jsonl").stat().st_size
        with pytest.raises(MachineError, match="can't be written: File too large"), small_files(2 * size - 50):
            writer.append(measurement(2))
    run = store.load(folder)
    assert run.measurements == (measurement(1),)
    assert len(run.losses) == 1


def test_a_header_that_does_not_fit_leaves_the_old_one(folder: Path, header: Header) -> None:
    refused = pytest.raises(MachineError, match=r"run\.json: can't be written")
    with store.create(folder, header) as writer, refused, small_files(100):
        writer.update(replace(header, finished="later"))
    assert store.load(folder).header == header
    assert sorted(path.name for path in folder.iterdir()) == ["results.jsonl", "run.json"]


def test_twice_as_many_results_take_twice_as_much_work(folder: Path, header: Header, measurement: Make) -> None:
    """Work is counted in calls of functions, which are the same on every machine."""
    store.create(folder, header).close()
    calls, made = [], []
    for count in (200, 400):
        (folder / "results.jsonl").write_text("".join(f"{store.dump(measurement(n))}\n" for n in range(count)))
        sys.setprofile(lambda _frame, event, _argument: made.append(event))
        run = store.load(folder)
        sys.setprofile(None)
        calls.append(len(made))
        made.clear()
        assert len(run.measurements) == count
    assert calls[0] > 200
    assert calls[1] < 2.1 * calls[0]


def test_the_header_is_made_to_be_read(folder: Path, header: Header) -> None:
    store.create(folder, header).close()
    text = (folder / "run.json").read_text()
    assert json.loads(text)["machine"]["devices"][0]["name"] == "A processor"
    assert text.count("\n") > 10


def test_what_a_tool_found_stands_beside_the_results(folder: Path, header: Header) -> None:
    store.create(folder, header).close()
    assert store.load(folder).attachments == ()
    first = Attachment("copy/a", "ncu", (("dram_read", 1e6),), ("profiles/a.ncu-rep",))
    other = Attachment("copy/a", "torch", (("idle", 0.5),))
    store.attach(folder, [first, other])
    again = replace(first, values=(("dram_read", 2e6),))
    store.attach(folder, [again])
    assert store.load(folder).attachments == (again, other)


def test_an_attachment_that_was_cut_is_named_and_costs_only_itself(folder: Path, header: Header) -> None:
    store.create(folder, header).close()
    whole = Attachment("copy/a", "ncu")
    store.attach(folder, [whole])
    with (folder / store.ATTACHMENTS).open("a") as file:
        file.write('{"case": "copy/b", "to')
    run = store.load(folder)
    assert run.attachments == (whole,)
    assert "attachments.jsonl:2: one attachment is lost: the line is cut short" in run.losses[0]
    following = Attachment("copy/c", "ncu")
    store.attach(folder, [following])
    assert store.load(folder).attachments == (whole, following)


def test_nothing_is_attached_where_there_is_no_run(folder: Path) -> None:
    folder.mkdir()
    with pytest.raises(UsageError, match="holds no run"):
        store.attach(folder, [Attachment("copy/a", "ncu")])
    assert list(folder.iterdir()) == []


RUNS = sorted(Path(__file__).parents[2].glob("reports/h200/*/run.json"))


@pytest.mark.skipif(not RUNS, reason="reports aren't part of a source distribution")
@pytest.mark.parametrize("every", [8, rare(1)], ids=["some", "all"])
def test_committed_runs_are_read_whole(every: int) -> None:
    """`make test` reads every 8th run, other ones each day."""
    for header in RUNS[datetime.now(UTC).toordinal() % every :: every]:
        run = store.load(header.parent)
        assert run.losses == ()
        lines = (header.parent / store.RESULTS).read_text().count("\n")
        assert len(run.measurements) == lines > 0
        assert {m.case.id for m in run.measurements} <= {case for s in run.header.scenarios for case in s.cases}
        assert run.limits is not None
        assert run.limits.peak is not None
