"""Cases, their results, and runs: what is derived from them."""

from __future__ import annotations

from dataclasses import replace

from harness.model import (
    Attachment,
    Case,
    Curve,
    DeviceFacts,
    Header,
    Limits,
    Machine,
    Measurement,
    Result,
    Run,
    Scenario,
    Traffic,
    Work,
    by_group,
)
from tests.one_test import one_test

CASE = Case("prelu", "tuned", "float16", (("N", 96), ("C", 64), ("H", 112), ("W", 112)))
WORK = Work(read=600, written=400)


def timed(*samples: float, process: int = 0, case: Case = CASE) -> Measurement:
    return Measurement(case, "ok", samples, work=WORK, traffic=Traffic(1600, 400), process=process)


def test_ids_are_readable_and_tell_hot_from_cold() -> None:
    hot = Case("copy", "eager", "float32", (("N", 8),), cache="hot")
    assert CASE.id == "prelu/tuned/float16/N96-C64-H112-W112"
    assert CASE.group == "prelu/float16/N96-C64-H112-W112"
    assert (hot.id, hot.group) == ("copy/eager/float32/N8/hot", "copy/float32/N8/hot")
    assert Case("sum", "eager", "float32", ()).id == "sum/eager/float32/scalar"
    assert CASE.symbols == {"N": 96, "C": 64, "H": 112, "W": 112}


def test_time_is_the_median_of_the_processes_medians() -> None:
    result = Result(CASE, (timed(1.0, 2.0, 9.0), timed(4.0, 5.0, 6.0, process=1), timed(3.0, process=2)))
    assert result.medians == (2.0, 5.0, 3.0)
    assert result.time == 3.0
    assert Result(CASE, (timed(1.0), timed(9.0, process=1), timed(2.0, process=2))).time == 2.0


def test_one_failed_process_fails_the_case() -> None:
    result = Result(CASE, (timed(1.0), Measurement(CASE, "crashed", error="gone", process=1)))
    assert (result.status, result.time, result.error) == ("crashed", None, "gone")


def test_a_wrong_result_has_no_time_even_with_samples() -> None:
    assert Measurement(CASE, "wrong", (1.0, 2.0)).time is None


def test_groups_hold_the_variants_of_one_job_in_order() -> None:
    eager, other = Case("prelu", "eager", "float16", CASE.shape), Case("prelu", "eager", "float32", CASE.shape)
    results = [Result(case, (timed(1.0, case=case),)) for case in (CASE, other, eager)]
    groups = by_group(results)
    assert {name: [r.case for r in group] for name, group in groups.items()} == {
        "prelu/float16/N96-C64-H112-W112": [CASE, eager],
        "prelu/float32/N96-C64-H112-W112": [other],
    }


def test_choices_and_the_world_are_part_of_an_id() -> None:
    case = Case("dropout", "tuned", "float16", (("N", 8),), choices=(("layout", "nhwc"), ("p", 0.1)), world=2)
    assert case.id == "dropout/tuned/float16/N8/layout=nhwc,p=0.1/world=2"
    assert case.group == "dropout/float16/N8/layout=nhwc,p=0.1/world=2"
    assert case.values == {"N": 8, "layout": "nhwc", "p": 0.1, "world": 2}
    assert case.symbols == {"N": 8}
    whole = Case("a", "v", "float32", (), choices=(("p", 1.0), ("q", 1 / 3)))
    assert whole.id == "a/v/float32/scalar/p=1,q=0.333333333333"


def test_a_fact_of_several_processes_is_their_median() -> None:
    facts = [(("empty", 0.5), ("full", 0.1)), (("empty", 0.7),), (("empty", 0.6),)]
    found = Result(CASE, tuple(Measurement(CASE, "ok", (1.0,), facts=each) for each in facts)).facts
    assert dict(found) == {"empty": 0.6, "full": 0.1}
    far = (Measurement(CASE, "ok", (1.0,), facts=(("empty", value),)) for value in (0.1, 0.9, 0.2))
    assert Result(CASE, tuple(far)).facts == (("empty", 0.2),)


def test_the_time_of_a_call_by_the_host_is_a_median_over_calls_and_processes() -> None:
    calls = ((1.0, 2.0, 9.0), (4.0, 5.0, 60.0), (3.0,))
    result = Result(CASE, tuple(Measurement(CASE, "ok", (1.0,), call_samples=each) for each in calls))
    assert [measurement.call_time for measurement in result.measurements] == [2.0, 5.0, 3.0]
    assert result.call_time == 3.0
    far = (Measurement(CASE, "ok", (1.0,), call_samples=(value,)) for value in (1.0, 9.0, 2.0))
    assert Result(CASE, tuple(far)).call_time == 2.0
    assert Result(CASE, (timed(1.0),)).call_time is None


def test_a_machine_is_named_by_its_devices() -> None:
    one = DeviceFacts("NVIDIA H200", 2**37, 2**26)
    assert Machine("cuda", "f00d", (one,)).name == "NVIDIA H200"
    assert Machine("cuda", "f00d", (one, one)).name == "2 x NVIDIA H200"
    other = DeviceFacts("NVIDIA H100", 2**36, 2**26)
    assert Machine("cuda", "f00d", (other, one)).device == other


def test_the_work_says_what_is_moved_and_computed() -> None:
    work = Work(600, 400, (("float16", 5), ("float32", 7)))
    assert (work.moved, work.operations) == (1000, 12)


def test_results_of_a_run_are_in_the_order_of_measurement() -> None:
    header = Header("a", Machine("cpu", "f00d", (DeviceFacts("A processor", 1, 1),)), (), (), "", "", 1)
    other = Case("prelu", "eager", "float16", CASE.shape)
    run = Run(header, (timed(1.0), timed(2.0, case=other), timed(3.0, process=1)))
    assert [(result.case, len(result.measurements)) for result in run.results] == [(CASE, 2), (other, 1)]
    assert run.attachments == ()
    assert Run(header, (), (), (Attachment(CASE.id, "ncu"),)).attachments[0].tool == "ncu"
    assert run.limits is None
    limits = Limits(cache_bytes=1)
    assert Run(replace(header, limits=limits), ()).limits == limits


def test_a_run_that_was_asked_for_something_else_differs() -> None:
    """By the hash of what was asked for, or by the cases alone, where one of the two has no hash."""
    one, other = (Scenario("s", "t", "prelu", (case,)) for case in ("prelu/a", "prelu/b"))
    machine = Machine("cpu", "f00d", (DeviceFacts("A processor", 1, 1),))

    def asked(plan: str, scenario: Scenario) -> Header:
        return Header("a", machine, (scenario,), (), "", plan, 1)

    assert asked("1", one).differs_from(asked("2", one))
    assert not asked("1", one).differs_from(asked("1", other))
    for before, after in (("", ""), ("1", ""), ("", "1")):
        assert asked(before, one).differs_from(asked(after, other))
        assert not asked(before, one).differs_from(asked(after, one))


def test_a_curve_is_of_variants_unless_lines_are_something_else() -> None:
    assert Curve("N", "size").of_variants
    assert not Curve("N", "size", by="V").of_variants
    assert not Curve("N", "size", littles_law=True).of_variants


@one_test(
    ("op", "variant", "role"),
    [
        ("copy", "eager", "control"),
        ("copy", "memcpy", "control"),
        ("copy", "tuned", "ours"),
        ("prelu", "memcpy", "published"),
        ("prelu", "eager", "baseline"),
        ("prelu", "compile", "baseline"),
        ("prelu", "peer:x", "peer"),
        ("prelu", "tuned", "ours"),
        ("prelu", "naive", "published"),
    ],
)
def test_a_role_that_a_scenario_does_not_tell_goes_by_the_variant_s_name(op: str, variant: str, role: str) -> None:
    assert Scenario("s", "t", op, ()).role(variant) == role
    assert Scenario("s", "t", op, (), roles=((variant, "mine"),)).role(variant) == "mine"


def test_what_a_record_has_computed_belongs_to_it_alone(header: Header) -> None:
    one = timed(1.0, 2.0, 3.0)
    assert (one.case.group, one.time) == ("prelu/float16/N96-C64-H112-W112", 2.0)
    other = replace(one, case=replace(one.case, op="relu"), samples=(5.0,))
    assert (other.case.group, other.time) == ("relu/float16/N96-C64-H112-W112", 5.0)
    run = Run(header, (one,))
    assert [result.case for result in run.results] == [one.case]
    assert [result.case for result in replace(run, measurements=(other,)).results] == [other.case]
    again = Run(header, (replace(one),))
    assert (again, hash(again)) == (run, hash(run))
