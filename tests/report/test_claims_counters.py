"""Claims about traffic: counters answer them where both cases have some, and a count never hides what counters say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from harness.model import Attachment, Claim, Measurement, Run, Traffic
from harness.report.claim_tables import Comparison, comparisons, explained, notes, table
from harness.report.frame import by_scenario
from harness.report.text import cell

SHAPES = ((("N", 2**20),), (("N", 2**22),))
Seen = Sequence[tuple[int, int] | None]
Ask = Callable[..., Comparison]


@pytest.fixture
def compared(measured: Callable[..., Measurement], make_run: Callable[..., Run]) -> Ask:
    """A claim of 'lean' over 'eager', which declare 500 and 1000 bytes. eager, lean: bytes by counters in each case."""

    def ask(
        eager: Seen, lean: Seen, value: float | None = None, metric: str = "traffic", says: str = "better"
    ) -> Comparison:
        cases, found = [], []
        for shape, *both in zip(SHAPES[: len(eager)], eager, lean, strict=True):
            for name, declared, seen in zip(("eager", "lean"), (1000, 500), both, strict=True):
                case = measured(name, "float32", shape, traffic=Traffic(declared // 2, declared // 2))
                cases.append(case)
                if seen:
                    bytes_ = (("kernels", 1.0), ("read_bytes", float(seen[0])), ("written_bytes", float(seen[1])))
                    found.append(Attachment(case.case.id, "ncu", bytes_))
        claim = Claim("O9", "lean", metric, value, "any", says=says)
        ((scenario, lines),) = by_scenario(make_run(cases, attachments=tuple(found), claims=(claim,)))
        (comparison,) = comparisons(scenario, lines)
        return comparison

    return ask


def shown(comparison: Comparison) -> tuple[str, str, str]:
    """What the table shows of it: here, how, agrees."""
    columns = {column.head: column.cells for column in table([comparison]).columns}
    (here,), (how,), (agrees,) = columns["here"], columns["how"], columns.get("agrees", ("",))
    return cell(here), str(how), str(agrees)


def test_counters_that_agree_with_the_count_answer_the_claim(compared: Ask) -> None:
    found = compared([(502, 500)], [(250, 250)], value=0.5)
    assert shown(found) == ("0.50x", "by counters", "yes")
    (note,) = notes([found])
    assert note.text == "O9 claims 0.50x (lean: traffic over eager, any): here 0.50x by counters; agrees: yes"


def test_counters_that_disagree_with_the_count_are_shown_beside_it(compared: Ask) -> None:
    """By count, lean moves half as much as the text says; by counters it moves 900 of 1000 bytes."""
    found = compared([(500, 500)], [(600, 300)], value=0.5)
    assert shown(found) == ("0.90x", "by counters, not 0.50x as counted", "no")
    (note,) = notes([found])
    assert note.text.endswith(": here 0.90x by counters, not 0.50x as counted; agrees: no")


@pytest.mark.parametrize(
    ("lean", "agrees"), [((250, 250), "yes"), ((500, 500), "no: the same"), ((700, 400), "no"), ((500, 480), "yes")]
)
def test_less_traffic_is_judged_by_counters(compared: Ask, lean: tuple[int, int], agrees: str) -> None:
    assert shown(compared([(500, 500)], [lean]))[2] == agrees


def test_cases_are_judged_one_by_one(compared: Ask) -> None:
    found = compared([(500, 500), (500, 500)], [(250, 250), (500, 300)], value=0.5)
    assert shown(found) == (
        "0.65x (0.50x to 0.80x, 2 cases)",
        "by counters, not 0.50x as counted",
        "in 1 of 2 cases",
    )


@pytest.mark.parametrize(("eager", "lean"), [([None], [(250, 250)]), ([(500, 500)], [None]), ([None], [None])])
def test_without_counters_of_both_the_count_stays(compared: Ask, eager: Seen, lean: Seen) -> None:
    found = compared(eager, lean, value=0.5)
    assert shown(found) == ("0.50x", "by count", "")
    assert "By count: computed" in " ".join(explained([found], "a GPU"))


def test_where_some_cases_have_counters_only_those_answer(compared: Ask) -> None:
    found = compared([(500, 500), None], [(300, 300), (250, 250)], value=0.6)
    assert shown(found) == ("0.60x", "by counters (1 of 2 cases), not 0.50x as counted", "yes")
    agrees, counters, some = list(explained([found], "a GPU"))[1:]
    assert agrees == "Agrees, of a ratio of bytes: whether counters are within 3% of the text's figure."
    assert counters.startswith("By counters: the ratio of the bytes that hardware counters saw")
    assert some == "By counters in some cases: the other cases have no counters, and no part in the figure."


def test_what_counters_can_not_answer_stays_as_it_was(compared: Ask) -> None:
    assert shown(compared([(500, 500)], [(900, 900)], says="nothing"))[1:] == ("by counters, not 0.50x as counted", "")
    speed = compared([(500, 500)], [(900, 900)], metric="speedup")
    assert (speed.how, speed.counts) == ("measured", None)


def test_a_copy_without_kernels_has_no_counters(
    measured: Callable[..., Measurement], make_run: Callable[..., Run]
) -> None:
    cases = [measured(name, "float32", SHAPES[0]) for name in ("eager", "lean")]
    nothing = (("kernels", 0.0), ("read_bytes", 0.0), ("written_bytes", 0.0))
    some = (("kernels", 1.0), ("read_bytes", 5.0), ("written_bytes", 5.0))
    found = tuple(Attachment(c.case.id, "ncu", v) for c, v in zip(cases, (nothing, some), strict=True))
    run = make_run(cases, attachments=found, claims=(Claim("O9", "lean", "traffic", None, "any"),))
    ((scenario, lines),) = by_scenario(run)
    assert comparisons(scenario, lines)[0].how == "by count"
