"""The rule about cases whose work differs, and that verdicts are about times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.gate import Evidence, deciding, findings
from harness.gate.pairing import pair_of
from harness.gate.records import CaseEvidence, Margin
from harness.gate.rules import work
from harness.model import Case, Measurement, Traffic, Work
from harness.ops import Op, Tensor

N = 2**20
BYTES, BITS = Work(2 * N, N), Work(2 * N, N // 8)


def test_an_untouched_case_is_ok_whatever_its_work_is_said_to_be(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement], case: Callable[..., Case]
) -> None:
    """A variant with a mask of bits made the essential bytes fewer, and 100 us of an untouched one 29.2% slower."""
    base, now = measured(100e-6, work=BYTES), measured(100e-6, work=BITS)
    assert BITS.moved / BYTES.moved - 1 == pytest.approx(-0.292, abs=5e-4)
    pair = pair_of(base, now, "base", "screen")
    assert pair is not None
    assert pair.change == 0
    key, margin = case().id, Margin(0.01)
    screen, confirm = [pair.change] * deciding.SCREEN_PAIRS, [pair.change] * 20
    decision = deciding.decided({key: screen}, {key: confirm}, {key: margin})[key]
    assert decision.outcome == "ok"
    found = evidence(decision=decision, base=(base,) * 3, now=(now,) * 3, pairs=(pair,) * 3, margin=margin)
    [finding] = [f for f in findings(Evidence("main", (), (found,))) if f.rule == "work"]
    assert finding.severity == "undecided"
    assert "--accept work" in finding.advice
    assert finding.message == (
        f"1 case has other work than in main, so only the times were compared: {key} (bytes written)"
    )


def test_a_leaner_variant_changes_nothing_for_an_untouched_one() -> None:
    op = Op(
        "mask",
        "y = relu(x), m = x > 0",
        {"N": "elements"},
        (Tensor("x", ("N",)),),
        (Tensor("y", ("N",)), Tensor("m", ("N",), "uint8")),
    )
    op.variant("tuned", "a byte an element")(lambda _: lambda _: None)
    before = op.work_of({"N": N}, "float16"), op.traffic_of(op.variants["tuned"], {"N": N}, "float16")
    bits = (Tensor("y", ("N",)), Tensor("m", ("N // 8",), "uint8"))
    op.variant("bits", "a bit an element", outputs=bits)(lambda _: lambda _: None)
    assert (op.work_of({"N": N}, "float16"), op.traffic_of(op.variants["tuned"], {"N": N}, "float16")) == before
    assert op.traffic_of(op.variants["bits"], {"N": N}, "float16") == Traffic(2 * N, 2 * N + N // 8)


@pytest.mark.parametrize(
    ("base", "now", "fields"),
    [
        ({}, {}, None),
        ({"read": 7}, {}, "bytes read"),
        ({}, {"sent": 3, "items": 32}, "bytes sent, items"),
        ({"flops": (("float32", 10),)}, {"flops": (("float32", 20),)}, "operations"),
        # A rate of operations that nobody declares any more can't fall below its floor.
        ({"flops": (("float16", 10),)}, {}, "operations"),
        ({}, {"flops": (("float16", 10),)}, "operations"),
        # Bytes that are said to come from the cache don't count against the memory.
        ({"again": N}, {}, "bytes read again"),
        ({"again": N}, {"again": 2 * N}, "bytes read again"),
    ],
)
def test_the_note_names_what_differs(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    base: dict[str, object],
    now: dict[str, object],
    fields: str | None,
) -> None:
    same = Work(4 * N, 4 * N)
    sides = {"base": replace(same, **base), "now": replace(same, **now)}
    crashed = measured(status="crashed", work=None)
    found = evidence(**{side: (crashed, measured(work=of_side)) for side, of_side in sides.items()})
    notes = list(work.judge(Evidence("main", (), (found, evidence(None, base=(), now=())))))
    assert [note.message.rpartition(": ")[2] for note in notes] == (
        [f"{found.case.id} ({fields})"] if fields is not None else []
    )


@pytest.mark.parametrize(("count", "more"), [(3, ")"), (4, "and 1 more"), (5, "and 2 more")])
def test_one_note_for_all_cases_names_the_first_few(
    evidence: Callable[..., CaseEvidence],
    measured: Callable[..., Measurement],
    case: Callable[..., Case],
    count: int,
    more: str,
) -> None:
    cases = tuple(evidence(of=case(n=n), base=(measured(work=Work(1, n)),)) for n in range(1, count + 1))
    [note] = work.judge(Evidence("main", (), cases))
    assert note.message.startswith(f"{count} cases have other work than in main")
    assert note.message.count("(bytes read, bytes written)") == 3
    assert note.message.endswith(more)
    assert note.case is None


def test_other_types_of_operations_are_other_work(
    evidence: Callable[..., CaseEvidence], measured: Callable[..., Measurement]
) -> None:
    """Its ceiling is another one, so a floor of it may be passed without being faster."""
    counted = replace(BYTES, flops=(("float16", 10),))
    base, now = measured(work=counted), measured(work=counted, arithmetic=(("float32", 10),))
    (note,) = work.judge(Evidence("main", (), (evidence(base=(base,), now=(now,)),)))
    assert note.message.endswith("(types of operations)")
    assert not list(work.judge(Evidence("main", (), (evidence(base=(now,), now=(now,)),))))
