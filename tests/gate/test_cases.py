"""The cases that a gate measures, and the side that measures each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import InputError
from harness.gate import case_lists
from harness.model import Case, Job, Scenario, Timing
from harness.ops import Catalogue, Choice, Extremes, Op, Tensor
from harness.processes.messages import Surveyed
from harness.scenario import Selection

OURS = ("naive", "naive64", "packed", "packed64", "tuned")  # of prelu
CUDA = Selection("cuda")
PRELU = "title: t\nop: prelu\nshapes: [{N: 8, C: 64, H: 56, W: 56}]\ndtypes: [float32]\n"
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str, name: str = "mine") -> Path:
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        return file

    return make


def variants(asked: case_lists.Wanted) -> set[str]:
    return {job.case.variant for job in asked.jobs}


def test_the_librarys_variants_are_left_out_where_nobody_listed_them(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write(PRELU)], catalogue, CUDA)
    assert variants(asked) == {*OURS}
    assert "prelu/eager/float32/N8-C64-H56-W56" in asked.known


@pytest.mark.parametrize(
    ("more", "selection", "kept"),
    [
        ("variants: [eager, tuned]\n", CUDA, {"eager", "tuned"}),
        ("expect: {tuned: {speedup: 1.1}}\n", CUDA, {"eager", *OURS}),
        ("expect: {tuned: {of_ceiling: 0.9}}\n", CUDA, {*OURS}),
        ("expect: {compile: {of_ceiling: 0.9}}\n", CUDA, {"compile", *OURS}),
        ("", Selection("cuda", only=("prelu/eager/*",)), {"eager"}),
        ("", Selection("cpu"), {"eager", "compile"}),
    ],
)
def test_they_are_measured_where_somebody_needs_them(
    catalogue: Catalogue, write: Write, more: str, selection: Selection, kept: set[str]
) -> None:
    assert variants(case_lists.wanted([write(PRELU + more)], catalogue, selection)) == kept


def roles_of(*roles: str) -> dict[str, Op]:
    """An op with a variant of each role, named otherwise than its role."""
    op = Op("mine", "y = x", {"N": "elements"}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),))
    for number, role in enumerate(roles):
        op.variant(f"v{number}", "one way", role=role)(lambda _: lambda _: None)
    return {"mine": op}


@pytest.mark.parametrize(
    ("expect", "kept"),
    [
        ("{}", {"v2", "v3", "v4"}),
        ("{v3: {speedup: 1.1}}", {"v0", "v2", "v3", "v4"}),
        ("{v3: {of_ceiling: 0.9}}", {"v2", "v3", "v4"}),
    ],
)
def test_the_role_of_a_variant_decides_and_not_its_name(write: Write, expect: str, kept: set[str]) -> None:
    ops = roles_of("baseline", "peer", "control", "ours", "published")
    text = f"title: t\nop: mine\nshapes: [{{N: 8}}]\ndtypes: [float32]\nbaseline: v0\nexpect: {expect}\n"
    asked = case_lists.wanted([write(text)], ops, CUDA)
    assert variants(asked) == kept
    controls = {job.case.variant for job in asked.jobs if case_lists.is_control(job.case, asked.scenarios)}
    assert controls == {"v2"}


def test_what_only_the_base_has_is_judged_by_the_role_that_it_has_or_had(write: Write) -> None:
    """A variant that is still there keeps its role at other sizes; one that is gone is known by its name."""
    ops = roles_of("ours", "peer")
    asked = case_lists.wanted(
        [write("title: t\nop: mine\nshapes: [{N: 8}]\ndtypes: [float32]\nbaseline: v0\n")], ops, CUDA
    )
    names = ("v0", "v1", "tuned", "peer:gone", "eager")
    only = tuple(Job(Case("mine", name, "float32", (("N", 9),))) for name in names)
    cases = case_lists.common(asked, Surveyed((only,), ()), ops, CUDA)
    assert [job.case.variant for job in cases.jobs["base"]] == ["v0", "tuned"]


def test_a_role_is_of_the_variant_of_one_op() -> None:
    """Another op's control of that name would let every loss pass."""
    scenarios = [Scenario("s", "t", op, (), roles=(("v", role),)) for op, role in (("b", "control"), ("a", "ours"))]
    assert [case_lists.role_of(op, "v", scenarios, "peer") for op in "abc"] == ["ours", "control", "peer"]


def test_roles_that_a_run_of_schema_1_did_not_store() -> None:
    prelu, copy = (Scenario("s", "t", op, ()) for op in ("prelu", "copy"))
    names = ("eager", "compile", "memcpy", "peer:liger", "tuned", "packed")
    assert [prelu.role(name) for name in names] == ["baseline", "baseline", "published", "peer", "ours", "published"]
    assert [copy.role(name) for name in ("eager", "compile", "memcpy")] == ["control", "baseline", "control"]
    assert Scenario("s", "t", "copy", (), roles=(("eager", "ours"),)).role("eager") == "ours"


@pytest.mark.parametrize(
    ("timing", "selection", "expected"),
    [
        ("{}", CUDA, Timing(0.003, 0.5)),
        ("{max_time: 0.3, precision: 0.01}", CUDA, Timing(0.01, 0.3)),
        ("{max_time: 0.3, precision: 0.01}", Selection("cuda", precision=0.001, max_time=9), Timing(0.001, 9)),
    ],
)
def test_a_case_is_timed_less_narrowly_than_in_a_run(
    catalogue: Catalogue, write: Write, timing: str, selection: Selection, expected: Timing
) -> None:
    asked = case_lists.wanted([write(f"{PRELU}timing: {timing}\n")], catalogue, selection)
    assert {job.timing for job in asked.jobs} == {expected}


def job(variant: str) -> Job:
    return Job(Case("prelu", variant, "float32", (("N", 8), ("C", 64), ("H", 56), ("W", 56))))


def test_common_cases_come_first_and_in_the_same_order(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write(f"{PRELU}variants: [naive, packed, tuned]\n")], catalogue, CUDA)
    known = ("prelu/packed/float32/N8-C64-H56-W56", "prelu/tuned/float32/N8-C64-H56-W56")
    base = Surveyed(((job("eager"), job("peer:gone"), job("older"), job("tuned")),), known)
    cases = case_lists.common(asked, base, catalogue, CUDA)
    assert [j.case.variant for j in cases.jobs["base"]] == ["packed", "tuned", "older"]
    assert [j.case.variant for j in cases.jobs["now"]] == ["packed", "tuned", "naive"]
    assert [j.case.variant for j in cases.all] == ["packed", "tuned", "naive", "older"]
    assert cases.jobs["base"][-1].timing == Timing(0.003, 0.5)


def test_what_is_gone_is_filtered_like_the_rest(catalogue: Catalogue, write: Write) -> None:
    selection = Selection("cuda", only=("prelu/tuned/*",))
    asked = case_lists.wanted([write(PRELU)], catalogue, selection)
    cases = case_lists.common(asked, Surveyed(((job("older"),),), ()), catalogue, selection)
    assert cases.jobs["base"] == ()
    several = replace(selection, only=("prelu/tuned/*", "prelu/older/*"))
    cases = case_lists.common(asked, Surveyed(((job("older"),),), ()), catalogue, several)
    assert [each.case.variant for each in cases.jobs["base"]] == ["older"]


def test_a_file_that_only_the_base_can_load_is_broken(catalogue: Catalogue, write: Write) -> None:
    good, bad = write(PRELU), write(PRELU.replace("prelu", "gone"), "bad")
    asked = case_lists.wanted([bad, good], catalogue, CUDA)
    assert (asked.files, list(asked.broken)) == ((good,), [bad])
    cases = case_lists.common(asked, Surveyed(((), (job("tuned"),)), ()), catalogue, CUDA)
    [broken] = cases.broken
    assert broken.file == str(bad)
    assert "no op is named 'gone'" in broken.problems[0].message


def test_the_base_s_own_scenario_is_asked_too(catalogue: Catalogue, write: Write) -> None:
    """A document that was dropped together with its op, a smaller shape, a role that the op has changed."""
    file, old = write(PRELU), Path("/base/mine.yaml")
    gone = Job(Case("dropped", "eager", "float32", (("N", 8),)))
    roles = Scenario("mine", "t", "dropped", (gone.case.id,), roles=(("eager", "ours"),))
    larger = Job(replace(job("tuned").case, shape=(("N", 64), ("C", 64), ("H", 56), ("W", 56))))
    base = Surveyed(((job("tuned"),), (job("tuned"), larger, gone)), (job("tuned").case.id,), ((), (roles,)))
    asked = case_lists.wanted([file], catalogue, CUDA)
    cases = case_lists.common(asked, base, catalogue, CUDA, [old])
    assert [j.case.id for j in cases.jobs["base"]] == [job("tuned").case.id, larger.case.id, gone.case.id]
    assert (cases.before, cases.untold) == ((roles,), ())
    assert cases.asked == asked.every


def test_a_case_at_an_old_default_is_gone_under_today_s_name(write: Write) -> None:
    """The id of the base's case is the id of another case now, that may be faster: the other choice is the default."""
    op = Op(
        "mine", "y = x", {"N": "elements"}, (Tensor("x", ("N",)),), (Tensor("y", ("N",)),),
        choices={"layout": Choice("the layout", ("nhwc", "nchw"))},
    )  # fmt: skip
    op.variant("v0", "one way")(lambda _: lambda _: None)
    file, old = write("title: t\nop: mine\nshapes: [{N: 8}]\ndtypes: [float32]\nbaseline: v0\n"), Path("/base/s.yaml")
    asked = case_lists.wanted([file], {"mine": op}, CUDA)
    slow = Case("mine", "v0", "float32", (("N", 8),), (("layout", "nchw"),), usual=("layout",))
    assert [each.case.id for each in asked.jobs] == [slow.id]
    told = Scenario("s", "t", "mine", (slow.id,), roles=(("v0", "ours"),))
    base = Surveyed(((Job(slow),), (Job(slow),)), (), ((told,), (told,)))
    cases = case_lists.common(asked, base, {"mine": op}, CUDA, [old])
    today = f"{slow.id}/layout=nchw"
    assert [each.case.id for each in cases.jobs["base"]] == [today]
    assert [scenario.cases for scenario in cases.before] == [(today,)]


def test_a_base_that_tells_too_little_is_said(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write(PRELU)], catalogue, CUDA)
    [unread] = case_lists.common(asked, Surveyed(((), None), (), ((), ())), catalogue, CUDA, [Path("old.yaml")]).untold
    assert "can't load its own old.yaml" in unread
    [silent] = case_lists.common(asked, Surveyed(((), ()), ()), catalogue, CUDA, [Path("old.yaml")]).untold
    assert "too old to tell the floors" in silent
    assert case_lists.common(asked, Surveyed(((),), ()), catalogue, CUDA).untold == (), "it was asked for no scenario"


@pytest.mark.parametrize(
    ("loaded", "checks", "words"),
    [
        ((), None, ["the harness of the base is too old to tell how strictly its ops are checked"]),
        (None, None, []),
        ((), (), []),  # no op of the base is checked
        ((), (("prelu", "float32", 1e-9, 1e-9),), ["prelu in float32 may be off by "]),
    ],
)
def test_a_base_that_does_not_tell_its_checks_is_not_taken_for_lax(
    catalogue: Catalogue, write: Write, loaded: Any, checks: Any, words: list[str]
) -> None:
    asked = case_lists.wanted([write(PRELU)], catalogue, CUDA)
    for other in ((), ((None,) if loaded is not None else ())):  # its other file it can't load
        old = [Path("old.yaml")] * len(other)
        found = case_lists.common(asked, Surveyed((loaded, *other), (), checks=checks), catalogue, CUDA, old).laxer
    assert [text[: len(start)] for text, start in zip(found, words, strict=True)] == words
    spared = tuple((op, what, 0.0) for op, *_ in checks or () for what in ("all",))
    told = case_lists.common(asked, Surveyed((loaded,), (), checks=checks, spared=spared), catalogue, CUDA).laxer
    assert told == found, "the base spares all"


def test_a_base_that_spares_less_is_told(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write(PRELU)], catalogue, CUDA)
    prelu = replace(catalogue["prelu"], extremes=Extremes({"nan": "a reason"}))
    base = Surveyed(((),), (), checks=(("prelu", "float32", 1.0, 1.0),), spared=())
    found = case_lists.common(asked, base, {**catalogue, "prelu": prelu}, CUDA).laxer
    assert found == ("prelu isn't checked with extreme values (nan) in its inputs now",)


def test_a_step_that_is_not_timed_now_is_told_of_variants_that_both_have(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write(PRELU)], catalogue, CUDA)
    ours = [job for job in asked.jobs if job.case.variant == "packed"]
    prelu = replace(catalogue["prelu"], variants=dict(catalogue["prelu"].variants))
    for name in ("packed", "naive"):
        prelu.variants[name] = replace(prelu.variants[name], decode=lambda *_: {})
    for told, words in ((None, 0), ((), 1), ((("prelu", "packed", "decode"),), 0)):
        base = Surveyed(((),), tuple(job.case.id for job in ours), checks=(), untimed=told)
        assert len(case_lists.common(asked, base, {**catalogue, "prelu": prelu}, CUDA).untimed) == words


def test_a_file_that_neither_can_load_is_bad_input(catalogue: Catalogue, write: Write) -> None:
    asked = case_lists.wanted([write("title: [\n")], catalogue, CUDA)
    with pytest.raises(InputError, match=r"mine\.yaml"):
        case_lists.common(asked, Surveyed((None,), ()), catalogue, CUDA)
