"""From definitions to jobs: order, filters, and cases that several scenarios share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.errors import InputError, Problem, UsageError
from harness.model import Job, Timing
from harness.ops import Catalogue, Op
from harness.scenario import Definition, Plan, Selection, find, load, plan

Loaded = Callable[..., Definition]

TWO = "shapes: [{M: 1, N: 8}, {M: 2, N: 4}]\ndtypes: [float16, float32]\n"


@pytest.fixture
def both(loaded: Loaded) -> list[Definition]:
    """Twelve cases of `add`, four of them on a CPU, and two of `shrink`, on CUDA only."""
    return [loaded(TWO + "tags: [small]\n", "a.yaml"), loaded("shapes: [{N: 8}]\ntags: [odd]\n", "b.yaml", op="shrink")]


def ids(planned: Plan) -> list[str]:
    return [job.case.id for job in planned.jobs]


def test_order_is_dtype_then_shape_then_variant_with_the_baseline_first(
    both: list[Definition], catalogue: dict[str, Op]
) -> None:
    planned = plan(both, catalogue, Selection("cuda"))
    assert ids(planned) == [
        "add/eager/float16/M1-N8",
        "add/fast/float16/M1-N8",
        "add/slow/float16/M1-N8",
        "add/eager/float16/M2-N4",
        "add/fast/float16/M2-N4",
        "add/slow/float16/M2-N4",
        "add/eager/float32/M1-N8",
        "add/fast/float32/M1-N8",
        "add/slow/float32/M1-N8",
        "add/eager/float32/M2-N4",
        "add/fast/float32/M2-N4",
        "add/slow/float32/M2-N4",
        "shrink/first/float32/N8",
        "shrink/second/float32/N8",
    ]
    assert [(s.name, s.op, len(s.cases), s.baseline) for s in planned.scenarios] == [
        ("a", "add", 12, "eager"),
        ("b", "shrink", 2, "first"),
    ]
    assert {job.case.device for job in planned.jobs} == {"cuda"}


def test_only_what_the_device_runs_is_planned(both: list[Definition], catalogue: dict[str, Op]) -> None:
    planned = plan(both, catalogue, Selection("cpu"))
    assert {job.case.variant for job in planned.jobs} == {"eager"}
    assert len(planned.jobs) == 4
    assert [scenario.name for scenario in planned.scenarios] == ["a"]


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (Selection("cuda", tags=("odd",)), 2),
        (Selection("cuda", tags=("odd", "small")), 14),
        (Selection("cuda", variants=("fast", "first")), 5),
        (Selection("cuda", dtypes=("float16",)), 6),
        (Selection("cuda", only=("add/*/float32/M2-*", "shrink/first/*")), 4),
        (Selection("cuda", only=("add/*",), variants=("slow",), dtypes=("float32",), tags=("small",)), 2),
    ],
)
def test_filters(both: list[Definition], catalogue: dict[str, Op], selection: Selection, count: int) -> None:
    planned = plan(both, catalogue, selection)
    assert len(planned.jobs) == count
    assert [id_ for scenario in planned.scenarios for id_ in scenario.cases] == ids(planned)


def test_filters_that_name_what_is_not_there_are_told_together(
    both: list[Definition], catalogue: dict[str, Op]
) -> None:
    selection = Selection(
        "cuda",
        only=("add/*", "ADD/*", "add/fats/float32/M2-N4"),
        tags=("smal",),
        variants=("fats",),
        dtypes=("float61",),
        precision=1.0,
        max_time=0.0,
    )
    with pytest.raises(InputError) as caught:
        plan(both, catalogue, selection)
    *rest, upper, typo = caught.value.problems
    assert rest == [
        Problem("--tag", "no tag of these scenarios is named 'smal'", "did you mean 'small'?"),
        Problem("--variants", "no variant of these scenarios is named 'fats'", "did you mean 'fast'?"),
        Problem("--dtype", "no dtype of these scenarios is named 'float61'", "did you mean 'float16'?"),
        Problem("--precision", "must be between 0 and 1, found 1"),
        Problem("--max-time", "must be more than 0 seconds, found 0"),
    ]
    assert upper.message == "'ADD/*' matches no case on cuda"
    assert typo.advice.startswith("cases near it: add/fast/float32/M2-N4, ")


@pytest.mark.parametrize(
    ("selection", "message", "advice"),
    [
        (
            Selection("cpu", variants=("fast",)),
            "nothing to run on cpu: add/fast (needs cuda)",
            "name other variants, or run it where such a device is; 'harness env' says what this machine has",
        ),
        (
            Selection("cuda", dtypes=("bfloat16",)),
            "nothing to run: --dtype bfloat16 keeps none of the 14 cases that are left",
            "these cases have float16, float32",
        ),
        (
            Selection("cuda", tags=("odd",), only=("add/*", "*/float16/*")),
            "nothing to run: --only add/* */float16/* keeps none of the 2 cases that are left",
            "these cases have shrink/first/float32/N8, shrink/second/float32/N8",
        ),
    ],
)
def test_an_empty_selection_names_the_filter_that_emptied_it(
    both: list[Definition], catalogue: dict[str, Op], selection: Selection, message: str, advice: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plan(both, catalogue, selection)
    assert (caught.value.message, caught.value.advice) == (message, advice)


def test_nothing_that_the_device_runs(both: list[Definition], catalogue: dict[str, Op]) -> None:
    with pytest.raises(UsageError, match=r"nothing to run on cpu: shrink/first, second \(need cuda\)"):
        plan(both[1:], catalogue, Selection("cpu"))
    with pytest.raises(UsageError, match="no scenario was given"):
        plan([], catalogue, Selection("cpu"))


def test_what_was_asked_for_and_needs_another_device_is_named(both: list[Definition], catalogue: dict[str, Op]) -> None:
    assert plan(both, catalogue, Selection("cuda")).left_out == ""
    everything = plan(both, catalogue, Selection("cpu")).left_out
    assert everything == "left out on cpu: add/fast, slow; shrink/first, second (need cuda)"
    some = plan(both, catalogue, Selection("cpu", variants=("eager", "slow"))).left_out
    assert some == "left out on cpu: add/slow (needs cuda)"
    assert plan(both, catalogue, Selection("cpu", variants=("eager",))).left_out == ""
    with pytest.raises(
        InputError, match=r"matches no case on cpu, only cases on another device: add/fast \(needs cuda\)"
    ):
        plan(both, catalogue, Selection("cpu", only=("*/fast/*",)))


def test_what_many_ops_leave_out_is_counted(both: list[Definition], catalogue: dict[str, Op]) -> None:
    others = {f"op{i}": replace(catalogue["shrink"], name=f"op{i}") for i in range(3)}
    more = [replace(both[1], name=name, op=name) for name in others]
    told = plan([*both, *more], catalogue | others, Selection("cpu")).left_out
    assert told == "left out on cpu: 10 variants of 5 ops, such as add/fast, slow (need cuda)"


def test_timing_given_by_hand_replaces_the_scenario_s(loaded: Loaded, catalogue: dict[str, Op]) -> None:
    definition = loaded(TWO + "timing: {precision: 0.1, max_time: 5, timeout: 9}\n")
    for selection, timing in (
        (Selection("cpu"), Timing(0.1, 5, 9)),
        (Selection("cpu", precision=0.5), Timing(0.5, 5, 9)),
        (Selection("cpu", max_time=1), Timing(0.1, 1, 9)),
    ):
        assert {job.timing for job in plan([definition], catalogue, selection).jobs} == {timing}


def test_a_case_of_two_scenarios_is_one_job_of_both(loaded: Loaded, catalogue: dict[str, Op]) -> None:
    first = loaded("shapes: [{M: 1, N: 8}]\ndtypes: [float32]\n", "a.yaml")
    second = loaded(TWO, "b.yaml")
    planned = plan([first, second], catalogue, Selection("cpu"))
    assert ids(planned) == [
        "add/eager/float32/M1-N8",
        "add/eager/float16/M1-N8",
        "add/eager/float16/M2-N4",
        "add/eager/float32/M2-N4",
    ]
    assert [len(scenario.cases) for scenario in planned.scenarios] == [1, 4]
    assert "add/eager/float32/M1-N8" in planned.scenarios[1].cases


def test_a_case_of_two_scenarios_is_timed_once_as_the_stricter_one_asks(
    loaded: Loaded, catalogue: dict[str, Op]
) -> None:
    first = loaded(TWO + "timing: {precision: 0.001, timeout: 20}\n", "a.yaml")
    second = loaded(TWO + "timing: {max_time: 9, timeout: 10}\n", "b.yaml")
    planned = plan([first, second], catalogue, Selection("cpu"))
    assert [len(scenario.cases) for scenario in planned.scenarios] == [4, 4]
    assert {job.timing for job in planned.jobs} == {Timing(precision=0.001, max_time=9, timeout=20)}
    assert len(planned.jobs) == 4
    by_hand = plan([first, second], catalogue, Selection("cpu", max_time=1)).jobs
    assert {job.timing.max_time for job in by_hand} == {1}


def test_choices_and_worlds_are_cases_of_their_own(loaded: Loaded, catalogue: dict[str, Op]) -> None:
    text = "shapes: [{N: 8}]\nchoices: {layout: [backward, forward]}\nworld: [1, 2]\n"
    planned = plan([loaded(text, op="scale")], catalogue, Selection("cpu"))
    assert ids(planned) == [
        "scale/eager/float32/N8/layout=backward",
        "scale/eager/float32/N8/layout=backward/world=2",
        "scale/eager/float32/N8",
        "scale/eager/float32/N8/world=2",
    ]
    assert [job.case.world for job in planned.jobs] == [1, 2, 1, 2]
    for glob in ("*/layout=forward,*/world=2", "scale/eager/float32/N8/world=2"):
        assert ids(plan([loaded(text, op="scale")], catalogue, Selection("cpu", only=(glob,)))) == ids(planned)[-1:]


def test_a_plan_knows_the_role_of_each_variant(loaded: Loaded, catalogue: dict[str, Op]) -> None:
    [scenario] = plan([loaded("shapes: [{N: 8}]\n", op="scale")], catalogue, Selection("cpu")).scenarios
    assert scenario.roles == (("eager", "baseline"),)


def test_hot_and_cold_are_two_cases(loaded: Loaded, catalogue: dict[str, Op]) -> None:
    cold = loaded(TWO, "a.yaml")
    hot = loaded(TWO + "cache: hot\ntiming: {max_time: 9}\n", "b.yaml")
    jobs = plan([cold, hot], catalogue, Selection("cpu")).jobs
    assert len(jobs) == 8
    assert jobs[4] == Job(replace(jobs[0].case, cache="hot"), Timing(max_time=9))
    assert jobs[4].case.id == "add/eager/float16/M1-N8/hot"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_bundled_scenario_has_cases_on(device: str) -> None:
    catalogue = Catalogue()
    for file in find(["quick", "copy", "prelu"]):
        planned = plan(load([file], catalogue), catalogue, Selection(device))
        [scenario] = planned.scenarios
        assert scenario.baseline == "eager"
        assert planned.jobs[0].case.variant == "eager"
    together = plan(load(find(["quick", "copy", "prelu"]), catalogue), catalogue, Selection(device))
    assert len(set(ids(together))) == len(together.jobs)
