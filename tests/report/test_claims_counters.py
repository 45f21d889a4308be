"""Claims about traffic: counters answer them where both cases have some, and a count never hides what counters say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.model import Attachment, Claim, Measurement, Run, Traffic
from harness.report.bounded import Bounded
from harness.report.claim_tables import explained, how, notes, table
from harness.report.claims import Comparison, comparisons, contradicted
from harness.report.text import cell

SHAPES = ((("N", 2**20),), (("N", 2**22),))
Seen = Sequence[tuple[int, int] | None]
Ask = Callable[..., Comparison]


@pytest.fixture
def compared(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Ask:
    """A claim of 'lean' over 'eager', which declare 500 and 1000 bytes. eager, lean: bytes by counters in each case."""

    def ask(eager: Seen, lean: Seen, value: float | None = None, metric: str = "traffic", says: str = "") -> Comparison:
        cases, found = [], []
        for shape, *both in zip(SHAPES[: len(eager)], eager, lean, strict=True):
            for name, declared, seen in zip(("eager", "lean"), (1000, 500), both, strict=True):
                case = measured(name, "float32", shape, traffic=Traffic(declared // 2, declared // 2))
                cases.append(case)
                if seen:
                    bytes_ = (("kernels", 1.0), ("read_bytes", float(seen[0])), ("written_bytes", float(seen[1])))
                    found.append(Attachment(case.case.id, "ncu", bytes_))
        claim = Claim("O9", "lean", metric, value, "any", says=says or ("equal" if value else "better"))
        run = make_run(cases, attachments=tuple(found), claims=(claim,))
        (comparison,) = comparisons(run.header.scenarios[0], run)
        return comparison

    return ask


def shown(comparison: Comparison) -> tuple[str, str, str]:
    """What the table shows of it: here, how, verdict."""
    columns = {column.head: column.cells for column in table([comparison]).columns}
    (here,), (way,), (verdict,) = columns["here"], columns["how"], columns.get("verdict", ("",))
    return cell(here), str(way), str(verdict)


def test_counters_that_agree_with_the_count_answer_the_claim(compared: Ask) -> None:
    found = compared([(502, 500)], [(250, 250)], value=0.5)
    assert shown(found) == ("0.50x", "by counters", "agrees")
    [one] = found.found
    assert one.figure == Bounded(500 / 1002, 500 / 1002, 500 / 1002, "counters", 1)
    (note,) = notes([found])
    assert note.text == "O9 claims 0.50x (lean: traffic over eager, any): here 0.50x by counters; agrees"


def test_counters_that_disagree_with_the_count_are_shown_beside_it(compared: Ask) -> None:
    """By count, lean moves half as much as the text says; by counters it moves 900 of 1000 bytes."""
    found = compared([(500, 500)], [(600, 300)], value=0.5)
    assert shown(found) == ("0.90x", "by counters, not 0.50x as counted", "disagrees")
    (note,) = notes([found])
    assert note.text.endswith(": here 0.90x by counters, not 0.50x as counted; disagrees")


@pytest.mark.parametrize(
    ("lean", "verdict"),
    [((250, 250), "agrees"), ((500, 500), "disagrees"), ((700, 400), "disagrees"), ((500, 480), "agrees")],
)
def test_less_traffic_is_judged_by_counters(compared: Ask, lean: tuple[int, int], verdict: str) -> None:
    assert shown(compared([(500, 500)], [lean]))[2] == verdict


@pytest.mark.parametrize(
    ("says", "lean", "verdict"),
    [
        ("equal", (257, 257), "agrees"),
        ("equal", (258, 258), "disagrees"),
        ("equal", (242, 242), "disagrees"),
        ("better", (242, 242), "agrees"),
        ("better", (258, 258), "disagrees"),
        ("worse", (258, 258), "agrees"),
        ("worse", (242, 242), "disagrees"),
    ],
)
def test_a_ratio_of_bytes_is_near_a_figure_up_to_three_percent(
    compared: Ask, says: str, lean: tuple[int, int], verdict: str
) -> None:
    assert shown(compared([(500, 500)], [lean], value=0.5, says=says))[2] == verdict


def test_cases_are_judged_one_by_one(compared: Ask) -> None:
    found = compared([(500, 500), (500, 500)], [(250, 250), (500, 300)], value=0.5)
    assert shown(found) == (
        "0.65x (0.50x to 0.80x, 2 cases)",
        "by counters, not 0.50x as counted",
        "can't tell: agrees in 1 of 2 cases, disagrees in 1",
    )


@pytest.mark.parametrize(("eager", "lean"), [([None], [(250, 250)]), ([(500, 500)], [None]), ([None], [None])])
def test_without_counters_of_both_the_count_stays(compared: Ask, eager: Seen, lean: Seen) -> None:
    found = compared(eager, lean, value=0.5)
    assert shown(found) == ("0.50x", "by count", "can't tell")
    assert "By count: computed" in " ".join(explained([found], "a GPU"))


def test_where_some_cases_have_counters_only_those_answer(compared: Ask) -> None:
    found = compared([(500, 500), None], [(300, 300), (250, 250)], value=0.6)
    assert shown(found) == ("0.60x", "by counters (1 of 2 cases), not 0.50x as counted", "agrees")
    verdict, near, counters, some = list(explained([found], "a GPU"))[1:]
    assert verdict.startswith("Verdict: it agrees if the whole interval is as the text says")
    assert near == "A figure that is off the text's figure by no more than 3% of it, as the claim has it, is as good."
    assert counters.startswith("By counters: from what hardware counters saw")
    assert some == "By counters in some cases: the other cases have no counters, and no part in the figure."


def test_what_counters_can_not_answer_stays_as_it_was(compared: Ask) -> None:
    assert shown(compared([(500, 500)], [(900, 900)], says="nothing"))[1:] == ("by counters, not 0.50x as counted", "")
    speed = compared([(500, 500)], [(900, 900)], metric="speedup")
    assert (how(speed), contradicted(speed.found)) == ("measured", ())


def test_a_copy_without_kernels_has_no_counters(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [measured(name, "float32", SHAPES[0]) for name in ("eager", "lean")]
    nothing = (("kernels", 0.0), ("read_bytes", 0.0), ("written_bytes", 0.0))
    some = (("kernels", 1.0), ("read_bytes", 5.0), ("written_bytes", 5.0))
    seen = tuple(Attachment(c.case.id, "ncu", v) for c, v in zip(cases, (nothing, some), strict=True))
    run = make_run(cases, attachments=seen, claims=(Claim("O9", "lean", "traffic", None, "any"),))
    (found,) = comparisons(run.header.scenarios[0], run)
    assert how(found) == "by count"
