"""Extreme values in inputs: each kind finds a variant that is wrong for it, and an op says which kinds don't apply."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch

from harness import extremes
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Context, Expected, Extremes, Op, Tensor, complaint
from harness.ops.extremes import KINDS
from harness.session import Session
from tests.one_test import one_test

LARGEST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).smallest_normal
MANY = 4 * len(KINDS)

# Which rows have a kind, and no other kind.
HAS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "largest": lambda x: (x.abs() == LARGEST).all(1) & (x > 0).any(1),
    "large": lambda x: ((x.abs() > 1e15) & (x.abs() < 1e25)).any(1),
    "smallest": lambda x: (x.abs() == TINY).all(1),
    "denormal": lambda x: ((x.abs() < TINY) & (x != 0)).all(1),
    "zeros": lambda x: (x == 0).all(1),
    "equal": lambda x: (x == x[:, :1]).all(1) & (x.abs() > 1e-6).all(1) & (x.abs() < 10).all(1),
    "outlier": lambda x: ((x == LARGEST).sum(1) == 1) & (x.abs() < 10).any(1),
    "lowest": lambda x: (x == -LARGEST).all(1),
    "masked": lambda x: (x == -math.inf).any(1) & x.isfinite().any(1),
    "minus_infinity": lambda x: (x == -math.inf).all(1),
    "infinity": lambda x: (x == math.inf).any(1),
    "nan": lambda x: x.isnan().any(1),
}


def op(launch=None, role="ours", **options) -> Op:
    made = Op(
        "twice",
        "y = 2 x",
        {"M": "rows", "N": "columns"},
        inputs=(Tensor("x", ("M", "N")),),
        outputs=(Tensor("y", ("M", "N")),),
        reference=lambda _, t: {"y": t.x.double() * 2},
        **options,
    )
    made.variant("ours", "doubles", devices=("cpu",), role=role)(lambda _: launch or double)
    return made


def double(t) -> None:
    torch.mul(t.x, 2, out=t.y)


def wrong_where(has: Callable[..., torch.Tensor], value: float = 1.0) -> Callable[..., None]:
    """A variant that gives a value for an element of each row of a kind, and doubles all else."""

    def launch(t) -> None:
        double(t)
        t.y[has(t.x), 3] = value

    return launch


def case(rows: int = MANY, columns: int = 16, dtype: str = "float32") -> Case:
    return Case("twice", "ours", dtype, (("M", rows), ("N", columns)), device="cpu")


def judged(sheet: Op, of: Case | None = None) -> tuple[str | None, list[tuple[str, str]]]:
    """What is wrong with the extreme values of a case, and the warnings."""
    with Session(of or case(), sheet, Cpu()) as session:
        session.prepare()
        assert session.check() is None
        wrong = session.extremes()
    return wrong, [(warning.code, warning.message) for warning in session.warnings]


@pytest.mark.slow  # test_extreme_values.py has values of each kind
@one_test("rows", [1, 3, MANY])
@one_test("kind", KINDS)
def test_a_variant_that_is_wrong_for_a_kind_is_found_and_told(kind, rows):
    wrong, warnings = judged(op(wrong_where(HAS[kind])), case(rows))
    assert wrong.startswith(f"where inputs have {KINDS[kind]}: y: ")
    assert re.search(r"element \d+ is 1\.0, the reference (\S+)", wrong)
    assert warnings == []


@one_test("dtype", ["float32", "float16", "bfloat16"])
@one_test("rows", [1, 3, MANY])
def test_an_honest_variant_is_right(dtype, rows):
    assert judged(op(), case(rows, dtype=dtype)) == (None, [])


def test_a_case_that_fails_is_wrong_and_has_no_time():
    timing = Timing(precision=0.5, max_time=0.02, timeout=60.0)
    found = measure(Job(case(), timing), op(wrong_where(HAS["nan"])), Cpu(), timed=False)
    assert found.status == "wrong"
    assert "and NaN once: y: " in found.error
    assert measure(Job(case(), timing), op(), Cpu(), timed=False).status == "ok"


@pytest.mark.parametrize("role", ["baseline", "peer", "control"])
def test_a_library_has_a_warning_in_place_of_it(role):
    wrong, warnings = judged(op(wrong_where(HAS["lowest"]), role=role))
    assert wrong is None
    [(code, message)] = warnings
    assert code == "extremes"
    assert KINDS["lowest"] in message


def calls_of(of: Case, **options) -> list[torch.Tensor]:
    """The inputs of the calls that the check of extreme values makes."""
    seen: list[torch.Tensor] = []

    def launch(t) -> None:
        seen.append(t.x.clone())
        double(t)

    with Session(of, op(launch, **options), Cpu()) as session:
        session.prepare()
        session.check()
        del seen[:]
        session.extremes()
    return seen


def test_all_kinds_share_one_call_and_every_second_row_is_normal():
    [x] = calls_of(case(2**13))
    assert {kind: bool(has(x).any()) for kind, has in HAS.items()} == dict.fromkeys(HAS, True)
    normal = (x.abs() < 10).all(1) & (x.abs() > 1e-6).all(1) & ~HAS["equal"](x)
    assert bool(normal[::2].all())
    assert not bool(normal[1::2].any())


def test_a_case_with_few_rows_has_a_call_for_each_kind_while_calls_are_quick():
    assert len(calls_of(case(2))) == len(KINDS)
    [x] = calls_of(case(2, columns=2**16))
    assert sum(bool(has(x).any()) for has in HAS.values()) == 1


def test_random_numbers_go_on_as_without_it():
    with Session(case(), op(), Cpu()) as session:
        session.prepare()
        before = session._ctx.generator.get_state()
        session.extremes()
        assert torch.equal(before, session._ctx.generator.get_state())


def test_inputs_that_the_op_makes_have_none_unless_it_says_which():
    def made(ctx: Context):
        return {"x": torch.ones(ctx.s.M, ctx.s.N)}

    assert calls_of(case(), make=made) == []
    assert len(calls_of(case(), make=made, extremes=Extremes())) == 1


def test_what_the_op_exempts_is_left_out():
    reason = "its inputs have none"
    for name in ("nan", "x.nan"):
        [x] = calls_of(case(2**13), extremes=Extremes(exempt={name: reason}))
        assert not bool(x.isnan().any())
        assert bool(HAS["infinity"](x).any())
    for name in ("x", "all"):
        assert calls_of(case(), extremes=Extremes(exempt={name: reason})) == []


def test_no_number_is_larger_than_the_largest_one_that_the_op_declares():
    limits = Extremes(largest={"float32": 2.0**20}, why="squares are in float32")
    [x] = calls_of(case(2**13), extremes=limits)
    assert float(x.nan_to_num(posinf=0, neginf=0).abs().max()) == 2.0**20
    own = Extremes(largest={"float32": 2.0**20, "x": 2.0**30}, why="squares are in float32")
    [x] = calls_of(case(2**13), extremes=own)
    assert float(x.nan_to_num(posinf=0, neginf=0).abs().max()) == 2.0**30


def test_rows_lie_along_the_dimension_that_the_op_declares():
    [x] = calls_of(case(8, columns=2**13), extremes=Extremes(apart={"x": 1}))
    assert {kind: bool(has(x.T).any()) for kind, has in HAS.items()} == dict.fromkeys(HAS, True)


def test_lists_and_integers():
    """A list of tensors has pieces of each; integers stay as they are."""
    seen = []

    def launch(t) -> None:
        seen.append((t.xs[0].clone(), t.xs[1].clone(), t.index.clone()))
        for y, x in zip(t.ys, t.xs, strict=True):
            y.copy_(x)

    def shapes(_):
        return [(2000,), (3000,)]

    lists = Op(
        "lists",
        "",
        {"N": ""},
        inputs=(Tensor("xs", shapes), Tensor("index", ("N",), "int64")),
        outputs=(Tensor("ys", shapes),),
        reference=lambda _, t: {"ys": [x.double() for x in t.xs]},
    )
    lists.variant("ours", "copies", devices=("cpu",))(lambda _: launch)
    of = Case("lists", "ours", "float32", (("N", 5),), device="cpu")
    assert judged(lists, of) == (None, [])
    first, second, index = seen[-1]
    assert bool(first.isnan().any())
    assert bool(second.isnan().any())
    assert index.dtype == torch.int64
    lists.variants.clear()
    lists.variant("ours", "forgets NaN", devices=("cpu",))(
        lambda _: lambda t: [y.copy_(x.where(~x.isnan(), 0)) for y, x in zip(t.ys, t.xs, strict=True)]
    )
    wrong, _ = judged(lists, of)
    assert wrong.startswith(f"where inputs have {KINDS['nan']}: ys[0]: ")


@one_test(
    ("options", "said"),
    [
        ({"exempt": {"nam": "why"}}, "has 'nam'"),
        ({"exempt": {"y": "why"}}, "has 'y'"),
        ({"exempt": {"x.nam": "why"}}, "no kind is named 'nam'"),
        ({"exempt": {"nan": ""}}, "has no reason for 'nan'"),
        ({"exempt": ("nan",)}, "isn't a mapping"),
        ({"largest": {"float23": 2.0}, "why": "why"}, "has 'float23'"),
        ({"largest": {"float32": 0.5}, "why": "why"}, "has 0.5"),
        ({"largest": {"float32": 2.0}}, "have a limit alone"),
        ({"why": "why"}, "have a reason alone"),
        ({"apart": {"z": 1}}, "has 'z'"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_with_its_place(options, said):
    with pytest.raises(UsageError, match=re.escape(said)) as error:
        op(extremes=Extremes(**options))
    assert "test_extremes.py:" in error.value.message


def test_another_thing_in_its_place_is_refused():
    with pytest.raises(UsageError, match=re.escape("extremes of op 'twice' is {'nan': 'why'}")):
        op(extremes={"nan": "why"})


def test_an_infinity_is_right_only_where_a_number_within_the_error_rounds_to_it():
    largest = 65504.0
    want = torch.tensor([65500.0, 65500.0, -65500.0, 60000.0], dtype=torch.float64)
    got = torch.tensor([math.inf, largest, -math.inf, largest], dtype=torch.float16)
    assert complaint([Expected("y", got[:3], want[:3], 40.0)]) is None
    assert "1 of 4" in complaint([Expected("y", got, want, 40.0)])
    assert "2 of 3" in complaint([Expected("y", got[:3], want[:3], 10.0)])
    assert "1 of 1" in complaint([Expected("y", -got[:1], want[:1], 40.0)])


def test_a_number_is_right_where_the_reference_is_beyond_the_type_only_within_the_error():
    want = torch.tensor([65530.0], dtype=torch.float64)
    got = torch.tensor([65504.0], dtype=torch.float16)
    assert complaint([Expected("y", got, want, 40.0)]) is None
    assert "1 of 1" in complaint([Expected("y", got, want, 10.0)])
    assert complaint([Expected("y", torch.full_like(got, math.inf), want, 10.0)]) is None


def test_every_kind_has_a_test():
    assert list(HAS) == list(KINDS)
    assert extremes.KINDS is KINDS


def test_large_inputs_of_a_library_have_one_call_even_if_it_is_wrong():
    calls = []
    doubled = wrong_where(HAS["lowest"], math.nan)

    def launch(t) -> None:
        calls.append(t.x.shape)
        doubled(t)

    wrong, [(_, message)] = judged(op(launch, role="peer"), case(2**13))
    assert wrong is None
    assert f"where inputs have rows of {len(KINDS)} kinds: y: " in message
    assert len(calls) == 3  # of prepare, of the check, and this one
