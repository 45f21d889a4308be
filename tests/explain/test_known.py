"""What is read out of stored runs: the newest that has a case, its counters, its other variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.errors import UsageError
from harness.explain import Sibling, command, known, newest
from harness.model import Attachment, Case, Header, KernelFacts, KernelProfile, Measurement, Run, Scenario, Work

Measure = Callable[..., Measurement]


@pytest.fixture
def measured() -> Measure:
    """measured(variant, time, ...): a case of the op `scale` at N = 1024."""

    def make(variant: str, time: float | None = 1e-3, **fields: object) -> Measurement:
        case = Case("scale", variant, "float32", (("N", 1024),))
        if time is None:
            return Measurement(case, "unsupported", error="for N = 1 only\nand more", **fields)
        return Measurement(case, "ok", (time,), (2 * time,), "graph", Work(4096, 4096), **fields)

    return make


@pytest.fixture
def stored(tmp_path: Path, header: Header) -> Callable[..., Path]:
    """stored(name, started, measurements): a run in a folder below the test's."""

    def make(name: str, started: str, *measurements: Measurement) -> Path:
        folder = tmp_path / name
        ids = tuple(m.case.id for m in measurements)
        scenario = Scenario("a.scale", "", "scale", ids)
        with store.create(folder, replace(header, started=started, scenarios=(scenario,))) as writer:
            for measurement in measurements:
                writer.append(measurement)
        return folder

    return make


def test_the_newest_run_has_the_word(stored, measured, tmp_path):
    old = stored("b/old", "2026-01-01T23:30:00+00:00", measured("naive"), measured("tuned"))
    # Half an hour later, though its text sorts before.
    new = stored("a/new", "2026-01-01T19:00:00-05:00", measured("naive", 2e-3))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    found = newest("scale/*/N1024", [tmp_path])
    assert {key: folder for key, (folder, _, _) in found.items()} == {
        "scale/naive/float32/N1024": new,
        "scale/tuned/float32/N1024": old,
    }
    assert list(newest("scale/tuned/float32/N1024", [tmp_path])) == ["scale/tuned/float32/N1024"]
    with pytest.raises(UsageError, match="isn't the header"):
        newest("scale/naive/float32/N1024", [tmp_path / "broken"])
    assert newest("scale/naive/float32/N1024", [old])["scale/naive/float32/N1024"][0] == old


def test_a_case_that_no_run_has(stored, measured, tmp_path):
    with pytest.raises(UsageError) as empty:
        newest("scale/naive/float32/N1024", [tmp_path])
    assert f"no run lies in {tmp_path}" in empty.value.message
    folder = stored("run", "2026-01-01", measured("naive"))
    with pytest.raises(UsageError) as near:
        newest("scale/niave/float32/N1024", [tmp_path])
    assert str(folder) in near.value.message
    assert near.value.advice == "did you mean scale/naive/float32/N1024?"
    with pytest.raises(UsageError, match="no case") as far:
        newest("nothing", [tmp_path])
    assert "glob" in far.value.advice
    with pytest.raises(UsageError, match="no case") as other:
        newest("sum/eager/float16/K7", [tmp_path])
    assert "glob" in other.value.advice, "an id that has less than half in common isn't meant"


def test_an_error_names_three_ids_at_most(stored, measured, tmp_path):
    stored("run", "2026-01-01", *(measured(f"naive{i}") for i in range(5)))
    with pytest.raises(UsageError) as near:
        newest("scale/naive/float32/N1024", [tmp_path])
    assert near.value.advice.count("scale/naive") == 3


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("scale", "'scale' has 1 part; an id has 4 or more: op/variant/type/size"),
        ("scale/naive", "'scale/naive' has 2 parts; an id has 4 or more: op/variant/type/size"),
        ("scale/naive/float32", "'scale/naive/float32' has 3 parts; an id has 4 or more: op/variant/type/size"),
        ("scale/naive/float32/N1024", "no case in "),
        ("scale/other", "no case in "),
    ],
)
def test_an_id_of_too_few_parts_is_told_as_such(stored, measured, tmp_path, pattern, said):
    hot = measured("naive")
    stored("run", "2026-01-01", replace(hot, case=replace(hot.case, cache="hot")), measured("tuned"))
    with pytest.raises(UsageError) as caught:
        newest(pattern, [tmp_path])
    assert caught.value.message.startswith(said)
    assert (f"or a glob: '{pattern}/*'" in caught.value.advice) == ("part" in said)


def test_a_run_whose_date_cannot_be_read_is_older_than_all_others(stored, measured, tmp_path):
    dated = stored("a", "2026-01-01", measured("naive"))
    stored("b", "yesterday", measured("naive"))
    assert newest("scale/naive/float32/N1024", [tmp_path])["scale/naive/float32/N1024"].folder == dated


def test_a_case_without_a_time_cannot_be_explained(stored, measured):
    run = store.load(stored("run", "2026-01-01", measured("naive", None)))
    with pytest.raises(UsageError, match=r"has no time, it is unsupported: for N = 1 only$"):
        known(run, "scale/naive/float32/N1024")


def test_what_is_known_of_a_case(stored, measured):
    facts = KernelFacts("scale", 20, 0, 0)
    folder = stored(
        "run", "2026-01-01", measured("naive", 3e-3, kernels=(facts, facts)), measured("slow", 4e-3), measured("tuned")
    )
    found = known(store.load(folder), "scale/naive/float32/N1024")
    assert found.facts == (facts,)
    assert found.siblings == (Sibling("tuned", 1e-3), Sibling("slow", 4e-3))
    assert (found.time, found.tool, found.kernels, found.moved) == (3e-3, "", (), None)
    assert found.scenario == "a.scale"
    assert command(found) == "harness profile ncu a --only 'scale/naive/float32/N1024'"
    several = replace(found, case=replace(found.case, world=2))
    assert command(several) == "harness profile torch a --only 'scale/naive/float32/N1024/world=2'", "ncu refuses it"


def kernels(*times: float) -> tuple[KernelProfile, ...]:
    return tuple(
        KernelProfile(f"k{i}", 2.0, (("time", time), ("read_bytes", 100.0), ("written_bytes", 50.0)))
        for i, time in enumerate(times)
    )


@pytest.fixture
def with_tools(stored, measured) -> Callable[..., Run]:
    """with_tools(attachment, ...): a run with one case and what tools found of it."""

    def make(*attachments: Attachment) -> Run:
        folder = stored("run", "2026-01-01", measured("naive"))
        store.attach(folder, attachments)
        return store.load(folder)

    return make


def test_counters_are_those_of_a_call(with_tools):
    case = "scale/naive/float32/N1024"
    other = Attachment("scale/other/float32/N1024", "ncu", kernels=kernels(5.0))
    run = with_tools(
        Attachment(case, "torch", kernels=kernels(1.0)), Attachment(case, "ncu", kernels=kernels(3.0, 1.0)), other
    )
    found = known(run, case)
    assert found.tool == "ncu"
    # Shares of the time under the profiler, seconds of the time without it.
    assert [(k.share, k.seconds) for k in found.kernels] == [(0.75, 0.75 * 1e-3), (0.25, 0.25 * 1e-3)]
    assert (found.kernels[0].read, found.kernels[0].written) == (200.0, 100.0)
    assert found.moved == (400.0, 200.0, "by counters")


def test_the_run_with_counters_is_told_beside_the_newest(stored, measured, tmp_path):
    case = "scale/naive/float32/N1024"
    counted, plain = (stored(name, f"2026-01-0{day}", measured("naive")) for day, name in enumerate("ab", 1))
    store.attach(plain, [Attachment(case, "nsys", kernels=(KernelProfile("a", 1.0),))])
    assert newest(case, [tmp_path])[case].counted is None
    store.attach(counted, [Attachment(case, "ncu", kernels=(KernelProfile("a", 1.0), *kernels(3.0)))])
    assert newest(case, [tmp_path])[case][::2] == (plain, counted)


def test_launches_of_other_variants_are_known_where_a_profiler_saw_them(stored, measured):
    folder = stored("run", "2026-01-01", measured("naive", 3e-3), measured("slow", 4e-3), measured("tuned"))
    store.attach(
        folder,
        [
            Attachment("scale/tuned/float32/N1024", "ncu", kernels=kernels(3.0, 1.0)),
            Attachment("scale/slow/float32/N1024", "nsys"),
        ],
    )
    found = known(store.load(folder), "scale/naive/float32/N1024")
    assert found.siblings == (Sibling("tuned", 1e-3, 4.0), Sibling("slow", 4e-3))


def test_kernels_without_figures(with_tools):
    case = "scale/naive/float32/N1024"
    found = known(
        with_tools(Attachment(case, "nsys", kernels=(KernelProfile("a", 1.0), KernelProfile("b", 1.0)))), case
    )
    assert [kernel.share for kernel in found.kernels] == [0.5, 0.5]
    assert found.counted is None
    assert found.moved is None
