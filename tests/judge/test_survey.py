"""What running a reference of another form tells of it, and what its results are compared with."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.errors import UsageError
from harness.judge.forms import _reference, _survey
from harness.judge.forms._reference import compared
from harness.judge.records import Sheet, Sized, TensorForm
from harness.ops import comparer
from harness.ops.comparer import Expected, complaint
from tests.one_test import one_test

SHEET = Sheet("own", "mine.py", "theirs.py", "", "cpu", "float32", 7, "judged", notes=("first",))
Values = list[torch.Tensor]


class Doubling:
    """y = 2 x for N numbers, with memory for y among the data. Other sizes are 1, 2, 3 ..."""

    weights = 40
    decides = False

    def __init__(self, **functions: Any) -> None:
        vars(self).update(functions)
        self.asked: list[int] = []

    def inputs(self, arguments: dict[str, Any], seed: int) -> Values:
        self.asked.append(arguments["N"])
        drawn = torch.randn(arguments["N"], generator=torch.Generator().manual_seed(seed))
        return [drawn, torch.zeros(arguments["N"])]

    def call(self, values: Values) -> Any:
        return values[0] * 2

    def precisely(self, values: Values) -> Any:
        return self.call([one.double() for one in values])

    def vary(self, arguments: dict[str, Any], _rng: random.Random) -> Iterator[dict[str, Any]]:
        return ({**arguments, "N": size} for size in itertools.count(1))


def sized(n: int) -> Sized:
    return Sized({"N": n}, {"N": n})


def survey(*, sizes: tuple[int, ...] = (6,), tested: tuple[int, ...] = (), **functions: Any) -> Sheet:
    asked = replace(SHEET, timed=tuple(map(sized, sizes)), tested=tuple(map(sized, tested)))
    return _survey.surveyed(asked, Doubling(**functions))


def test_the_sheet_of_a_reference() -> None:
    found = survey(sizes=(6, 5), tested=(4,))
    form = TensorForm((6,), "float32", 0, (1,))
    assert found.timed[0] == Sized(
        {"N": 6}, {"N": 6}, inputs=(form,), outputs=(form,), buffers=(replace(form, place=1),), weights=40
    )
    assert [case.sizes["N"] for case in (*found.timed, *found.tested)] == [6, 5, 4]
    assert [case.arguments["N"] for case in found.unseen] == [case.sizes["N"] for case in found.unseen] == [1, 2, 3, 4]
    assert (found.precise, found.is_constant, found.dtype) == (True, False, "float32")
    assert found.notes == ("first", "The reference runs in float64.")


def test_the_first_case_says_which_dtype_stands_for_all() -> None:
    def call(values: Values) -> torch.Tensor:
        return values[0].double() if len(values[0]) == 5 else values[0] * 2

    assert [survey(sizes=sizes, call=call).dtype for sizes in ((6, 5), (5, 6))] == ["float32", "float64"]


def test_four_unseen_sizes_are_looked_for_in_thirty_two() -> None:
    """Sizes that are known, and sizes that the reference doesn't take, are no unseen ones."""

    def call(values: Values) -> Any:
        if len(values[0]) not in (6, 30, 31, 32, 33):
            raise ValueError("other sizes")
        return values[0] * 2

    assert [case.sizes["N"] for case in survey(call=call).unseen] == [30, 31, 32]
    assert [case.sizes["N"] for case in survey(sizes=(1, 3)).unseen] == [2, 4, 5, 6]

    def vary(*_: object) -> Iterator[dict[str, Any]]:
        return iter([{"N": 6}, {"N": 9}, {"N": 9}])

    found = survey(vary=vary)
    assert [case.sizes["N"] for case in found.unseen] == [9]
    told = "The reference takes no other sizes, so only values are new to the candidate."
    assert told not in found.notes
    assert told in survey(vary=lambda *_: iter(())).notes


@pytest.mark.parametrize("what", ["outputs", "dtype", "buffers"])
def test_an_unseen_size_has_the_tensors_of_the_given_one(what: str) -> None:
    """Two of four sizes are so."""

    def inputs(arguments: dict[str, Any], seed: int) -> Values:
        n = arguments["N"]
        drawn = torch.randn(n, generator=torch.Generator().manual_seed(seed))
        drawn = drawn.double() if what == "dtype" and n % 2 else drawn
        return [drawn, torch.zeros(n + (what == "buffers" and n % 2))]

    def call(values: Values) -> Any:
        return [values[0] * 2] * (1 + (what == "outputs" and len(values[0]) % 2))

    found = survey(inputs=inputs, call=call, vary=lambda *_: ({"N": size} for size in range(1, 5)))
    assert [case.sizes["N"] for case in found.unseen] == [2, 4]


def other_each_time() -> Callable[[Values], Any]:
    made = itertools.count()
    return lambda values: values[0] * 2 + next(made)


@one_test(
    ("functions", "said"),
    [
        ({"call": lambda v: v[5]}, "the reference at N=6 fails: IndexError"),
        ({"call": lambda _: None}, "the reference at N=6 returns no tensor"),
        ({"call": lambda v: v[0].to(torch.complex64)}, "the reference at N=6 has a tensor of complex64"),
        ({"inputs": lambda _, seed: [torch.randn(4 + seed % 2)]}, "N=6 has inputs whose sizes depend on the seed"),
        ({"inputs": lambda *_: [torch.ones(6)]}, "the inputs of the reference at N=6 are the same for every seed"),
        ({"inputs": lambda *_: [torch.randn(6)]}, "at N=6 differ from one time to the next for the same seed"),
        ({"call": other_each_time()}, "the reference gives another result at each call"),
    ],
)
def test_what_nothing_can_be_judged_by(functions: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        survey(**functions)
    assert said in raised.value.message


def test_an_error_of_the_request_stays_what_it_is() -> None:
    def call(_: Values) -> None:
        raise UsageError("the request", "mend it")

    with pytest.raises(UsageError) as raised:
        survey(call=call)
    assert raised.value.message == "the request"


def failing(_: Values) -> None:
    raise TypeError("not for float64")


@one_test(
    ("functions", "precise", "said"),
    [
        ({}, True, "The reference runs in float64."),
        (
            {"precisely": lambda v: v[0] * 2},
            True,
            "The reference runs with inputs in float64, and converts them to float32 itself.",
        ),
        (
            {"precisely": failing},
            False,
            "The reference runs in float32 with TF32 off: in float64 it fails (TypeError: not for float64",
        ),
        (
            {"precisely": lambda v: v[0][:3].double() * 2},
            False,
            "The reference runs in float32 with TF32 off: in float64 its outputs have other sizes.",
        ),
        ({"precisely": lambda v: v[0].double() * 2.0015}, True, "The reference runs in float64."),
        ({"precisely": lambda v: v[0].double() * 2.01}, False, "float64 isn't what it rounds to (y0: "),
        (
            {"call": lambda v: v[0].argmax()},
            False,
            "The reference runs as it is, with TF32 off: it has outputs that rounding may turn into others.",
        ),
    ],
)
def test_how_precise_a_reference_is(functions: dict[str, Any], precise: bool, said: str) -> None:
    """Results may be off by up to eight times the tolerance: they are then still what float64 rounds to."""
    found = survey(**functions)
    assert found.precise is precise
    assert said in found.notes[1]


def test_a_reference_whose_outputs_do_not_depend_on_its_inputs_is_told() -> None:
    found = survey(call=lambda v: torch.ones_like(v[0]))
    assert found.is_constant
    assert "The reference gives the same outputs for other inputs, so a constant is right here." in found.notes
    assert survey(inputs=lambda *_: [], call=lambda _: torch.ones(3)).is_constant is False, "no inputs could differ"


@pytest.mark.parametrize(
    ("precisely", "second", "said"),
    [
        (failing, torch.float32, "The reference runs in float16 with TF32 off: in float64 it fails"),
        (failing, torch.int64, "The reference runs as it is, with TF32 off"),
        (
            lambda v: [v[0].half() * 2, v[0].double() * 2],
            torch.float32,
            "The reference runs with inputs in float64, and converts them to float16 itself.",
        ),
    ],
)
def test_of_several_outputs_the_first_says_how_precise_a_reference_is(precisely, second, said) -> None:
    """Integers among the outputs may be others where floats are rounded to others."""

    def call(values: Values) -> Values:
        return [values[0].half() * 2, (values[0] * 2).to(second)]

    assert survey(call=call, precisely=precisely).notes[1].startswith(said)


def test_only_memory_of_an_output_s_form_that_is_never_read_is_for_outputs() -> None:
    def inputs(arguments: dict[str, Any], seed: int) -> Values:
        n = arguments["N"]
        generator = torch.Generator().manual_seed(seed)
        read = torch.randn(n, generator=generator)
        return [read, torch.zeros(n), torch.zeros(n + 1), torch.zeros(n).half(), torch.zeros(n)]

    def call(values: Values) -> torch.Tensor:
        if values[4].isnan().any():
            raise ValueError("it looks at what it is given")
        return values[0] * 2

    [case] = survey(inputs=inputs, call=call).timed
    assert [one.place for one in case.buffers] == [1]
    assert [one.place for one in case.inputs] == [0, 2, 3, 4]


@pytest.mark.parametrize(
    ("outputs", "inputs", "dtype"),
    [
        (["int64", "float16"], ["float32"], "float16"),
        (["int64"], ["int32", "float32"], "float32"),
        (["int64", "int32"], ["int16"], "int64"),
    ],
)
def test_which_dtype_stands_for_a_case(outputs: list[str], inputs: list[str], dtype: str) -> None:
    forms = [tuple(TensorForm((2,), name) for name in names) for names in (inputs, outputs)]
    assert _survey._dtype(Sized({}, {}, *forms)) == dtype


def test_the_smallest_case_is_looked_at_for_precision() -> None:
    reference = Doubling()
    asked = replace(SHEET, timed=(sized(50), sized(9)), tested=(sized(20),))
    _survey.surveyed(asked, reference)
    assert reference.asked[:6] == [50, 50, 9, 9, 20, 20]
    assert reference.asked[6:10] == [9] * 4


def test_names_of_sizes_keep_what_is_no_size() -> None:
    case = Sized({"n": 4, "mode": "fast", "world_": 3}, {"n": 5, "mode": "fast", "world": 6})
    assert _survey._renamed(case, {"n": 4, "mode": "fast", "world": 3}) == {"n": 5, "mode": "fast", "world_": 6}


# ---- The comparison.


def wrong(got: list[float], want: list[float], dtype: torch.dtype = torch.float32) -> str | None:
    return complaint(compared([torch.tensor(got, dtype=dtype)], [torch.tensor(want, dtype=torch.float64)]))


@one_test(
    ("dtype", "allowed"),
    [(torch.float64, 1e-7), (torch.float32, 1e-4), (torch.float16, 1e-2), (torch.bfloat16, 1e-2)],
)
def test_a_result_may_be_off_by_as_much_as_its_dtype_allows(dtype: torch.dtype, allowed: float) -> None:
    """Relative and absolute, each: numbers of the size of 4 may be off by five times it."""
    near, far = 4 + 4.5 * allowed, 4 + 5.6 * allowed
    [expected] = compared([torch.tensor([4.0, 4.0], dtype=dtype)], [torch.tensor([4.0, -4.0], dtype=torch.float64)])
    assert isinstance(expected, Expected)
    assert expected.allowed.tolist() == pytest.approx([5 * allowed] * 2)
    if dtype != torch.bfloat16:
        assert wrong([near] * 2, [4.0] * 2, dtype) is None
    assert wrong([far] * 2, [4.0] * 2, dtype)


def test_the_absolute_error_is_scaled_where_outputs_are_small() -> None:
    small = torch.tensor([3e-3, -4e-3, 0.0, math.inf], dtype=torch.float64)
    [expected] = compared([small.float()], [small])
    typical = math.sqrt((9e-6 + 16e-6) / 4)
    assert expected.allowed[:3].tolist() == pytest.approx([1e-4 * (typical + size) for size in (3e-3, 4e-3, 0.0)])


def test_a_dtype_without_a_tolerance_must_be_the_reference_rounded() -> None:
    [expected] = compared([torch.ones(2).to(torch.float8_e5m2)], [torch.ones(2, dtype=torch.float64)])
    assert expected.allowed.tolist() == [0.0, 0.0]


def test_integers_other_shapes_and_what_has_no_elements_are_compared_as_they_are() -> None:
    whole = torch.tensor([1, 2])
    [expected] = compared([whole], [whole])
    assert expected.allowed is None
    assert "y1 has shape (3,)" in complaint(compared([whole, torch.ones(3)], [whole, torch.ones(2)]))
    assert complaint(compared([torch.ones(0)], [torch.ones(0)])) is None


def test_large_outputs_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparer, "CHUNK", 4)
    want = torch.ones(2, 5, dtype=torch.float64)
    got = want.float()
    got[1, 4] = 3.0
    parts = list(compared([got], [want]))
    assert [(part.start, part.got.numel()) for part in parts] == [(0, 4), (4, 4), (8, 2)]
    assert "element 9 is 3.0" in complaint(parts)


# ---- What a reference runs under.


def test_all_generators_are_seeded() -> None:
    numpy = sys.modules["numpy"]

    def drawn(seed: int) -> tuple[float, float, float]:
        _reference.seed_all(torch.device("cpu"), seed)
        return random.random(), float(numpy.random.rand()), float(torch.rand(()))

    first, again, other = drawn(2**33 + 5), drawn(2**33 + 5), drawn(6)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert drawn(5)[1] == drawn(2**32 + 5)[1], "numpy takes seeds of 32 bits"
    assert drawn(5)[1] not in (drawn(69)[1], drawn(2**31 + 5)[1])


def test_generators_of_gpus_are_seeded_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    _reference.seed_all(torch.device("cpu"), 3)
    assert seeded == []
    _reference.seed_all(torch.device("cuda"), 4)
    assert seeded == [4]


def test_a_reference_runs_without_tf32_and_gradients() -> None:
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "tf32"
    try:
        with _reference.exactly():
            assert (products.fp32_precision, torch.is_grad_enabled()) == ("ieee", False)
        assert products.fp32_precision == "tf32"
    finally:
        products.fp32_precision = before


def test_copies_have_memory_of_their_own() -> None:
    given = {"x": torch.ones(2), "n": 3}
    made = _reference.copied(given)
    made["x"].zero_()
    assert (given["x"].tolist(), made["n"]) == ([1.0, 1.0], 3)
