"""Lines with a checksum: what is damaged is an error that names the line, and lines without one are read as well."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import store
from harness.errors import UsageError
from harness.model import Attachment, Header, Measurement, Warning
from harness.store.lines import MOST_TEXT
from tests.properties import bounded

Make = Callable[[int], Measurement]


@pytest.fixture
def folder(tmp_path: Path, header: Header, measurement: Make) -> Path:
    """A run of three results, each with a checksum, and an attachment."""
    with store.create(tmp_path / "run", replace(header, sealed=True)) as writer:
        for n in (1, 2, 3):
            writer.append(measurement(n))
    store.attach(tmp_path / "run", [Attachment("copy/a", "ncu")])
    return tmp_path / "run"


def test_each_line_is_json_with_a_checksum_of_what_stands_before_it(folder: Path) -> None:
    for name in (store.RESULTS, store.ATTACHMENTS):
        for line in (folder / name).read_bytes().splitlines():
            content, _, checksum = line.rpartition(b', "crc": ')
            assert json.loads(line)["crc"] == f"{crc32(content):08x}"
            assert checksum == b'"%08x"}' % crc32(content)


@pytest.mark.parametrize("name", [store.RESULTS, store.ATTACHMENTS])
def test_a_wrong_checksum_names_the_line_and_what_to_do(folder: Path, name: str) -> None:
    file = folder / name
    damaged = file.read_text().replace('"copy', '"CoPy', 1)
    file.write_text(damaged)
    with pytest.raises(UsageError, match=rf"{name}:1: the checksum is '\w+', not '\w+', so the line is damaged") as e:
        store.load(folder)
    assert f"sed -i 1d {file}" in e.value.advice
    file.write_text("".join(damaged.splitlines(keepends=True)[1:]))
    assert store.load(folder).losses == ()


def test_a_line_without_a_checksum_in_a_run_with_checksums_is_damaged(folder: Path, measurement: Make) -> None:
    with (folder / store.RESULTS).open("a") as file:
        file.write(f"{store.dump(measurement(4))}\n")
    with pytest.raises(UsageError, match="4: there is no checksum, which each line of this file has"):
        store.load(folder)


def test_an_older_run_is_read_and_gone_on_with(tmp_path: Path, header: Header, measurement: Make) -> None:
    store.create(tmp_path / "run", header).close()
    results = tmp_path / "run" / store.RESULTS
    results.write_text(f"{store.dump(measurement(1))}\n")
    _, writer = store.reopen(tmp_path / "run")
    with writer:
        writer.append(measurement(2))
    run = store.load(tmp_path / "run")
    assert (run.measurements, run.losses) == ((measurement(1), measurement(2)), ())
    results.write_text(results.read_text().replace('"N", 2', '"N", 3'))
    with pytest.raises(UsageError, match=r"results\.jsonl:2: the checksum is"):
        store.load(tmp_path / "run")


def test_a_line_cut_anywhere_is_the_last_line_of_an_interrupted_run(folder: Path, measurement: Make) -> None:
    results = folder / store.RESULTS
    whole = results.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in (*range(last + 1, len(whole) - 1, 97), *range(len(whole) - 25, len(whole) - 1)):
        results.write_bytes(whole[:cut])
        run = store.load(folder)
        assert run.measurements == (measurement(1), measurement(2))
        assert run.losses == (f"{results}:3: one result is lost: the line is cut short",)
    results.write_bytes(whole[:-1])
    assert len(store.load(folder).measurements) == 3


def test_a_line_without_a_checksum_cut_anywhere_loses_that_line_alone(
    tmp_path: Path, header: Header, measurement: Make
) -> None:
    folder = tmp_path / "older"
    store.create(folder, header).close()
    results = folder / "results.jsonl"
    results.write_text("".join(f"{store.dump(measurement(n))}\n" for n in (1, 2)))
    whole = results.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in (first + 1, first + 20, len(whole) - 2):
        results.write_bytes(whole[:cut])
        run = store.load(folder)
        assert run.measurements == (measurement(1),)
        assert run.losses == (f"{results}:2: one result is lost: the line is cut short",)


def test_what_is_attached_after_a_cut_line_takes_it_off(folder: Path) -> None:
    file = folder / store.ATTACHMENTS
    file.write_bytes(file.read_bytes()[:-15])
    following = Attachment("copy/b", "ncu")
    store.attach(folder, [following])
    run = store.load(folder)
    assert (run.attachments, run.losses) == ((following,), ())


@bounded
@given(st.data())
def test_no_damage_becomes_a_result(folder: Path, data: st.DataObject) -> None:
    """Whatever byte is changed, the run is refused, or says what is lost, or is what it was."""
    before, results = store.load(folder), folder / store.RESULTS
    whole = results.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.binary(min_size=0, max_size=3))
    results.write_bytes(whole[:place] + byte + whole[place + 1 :])
    try:
        after = store.load(folder)
        assert set(after.measurements) <= set(before.measurements)
        assert after.losses or after.measurements == before.measurements
    except UsageError as error:
        found = error.message
    else:
        found = f"{results}:"
    finally:
        results.write_bytes(whole)
    assert f"{results}:" in found


@pytest.mark.parametrize("sealed", [True, False])
def test_a_long_error_is_clipped_where_it_is_stored_and_where_it_is_read(
    tmp_path: Path, header: Header, measurement: Make, sealed: bool
) -> None:
    long = f"first line\n{'x' * 1_000_000}\nthe last words"
    crashed = replace(measurement(1), status="crashed", error=long, warnings=(Warning("w", long, long),))
    with store.create(tmp_path / "run", replace(header, sealed=sealed)) as writer:
        writer.append(crashed)
    results = tmp_path / "run" / store.RESULTS
    assert results.stat().st_size < 4 * MOST_TEXT
    if not sealed:  # as an older harness has stored it
        results.write_text(f"{store.dump(crashed)}\n")
    [found] = store.load(tmp_path / "run").measurements
    for text in (found.error, found.warnings[0].message, found.warnings[0].advice):
        assert text
        assert len(text) <= MOST_TEXT
        assert text.startswith("first line\nxxx")
        assert text.endswith("\nthe last words")
        kept = len(text) - len(text.partition("\n[... ")[2].partition("]\n")[0]) - len("\n[... ]\n")
        assert f"\n[... {len(long) - kept} characters left out ...]\n" in text
    again = store.load(tmp_path / "run").measurements[0]
    assert again == found


def test_a_text_of_the_longest_length_is_kept(tmp_path: Path, header: Header, measurement: Make) -> None:
    whole = replace(measurement(1), status="crashed", error="y" * MOST_TEXT)
    with store.create(tmp_path / "run", header) as writer:
        writer.append(whole)
    assert store.load(tmp_path / "run").measurements == (whole,)
