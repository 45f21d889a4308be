"""`time` and `race` on a processor: what is timed, what is checked, and what is said of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import harness as hb
from harness import devices, interleaved, measure
from harness.api import MachineError, Ratio, UsageError, WrongResultError, timing
from harness.api.called import called, named
from harness.model import Case, Warning
from tests.one_test import one_test

BUDGET = 0.01


def codes(time: hb.api.Time) -> set[str]:
    return {warning.code for warning in time.warnings}


async def later(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(16, 32)


def test_a_function_of_torch(x: torch.Tensor) -> None:
    time = hb.time(torch.softmax, x, -1, budget=BUDGET)
    assert time.name == "softmax"
    low, high = time.interval
    assert low <= time.us <= high
    assert time.us == pytest.approx(1e6 * time.seconds)
    assert min(time.samples) <= time.us <= max(time.samples)
    assert time.bytes == 2 * x.nbytes
    assert time.gb_per_s == pytest.approx(time.bytes / time.seconds / 1e9)
    assert "unchecked" not in codes(time)
    text = repr(time)
    assert text.startswith("softmax  ")
    assert f" us [{low:.4g}"[:6] in text
    assert f"n={len(time.samples)}" in text
    assert "host, " in text


def test_advice_names_no_option_of_a_command(x: torch.Tensor) -> None:
    quieter = "end other work on this machine and measure again"
    for command, here in (
        (
            measure._against_noise(0.1, 0.05, 2.0),
            "sample for longer: budget=8 is enough if the samples go on like this",
        ),
        (measure._against_noise(0.7, 0.002, 2.0), quieter),
        (measure._against_noise(1.5, 0.002, 2.0), quieter),
    ):
        assert timing._for_a_call(Warning("noisy", "", command)).advice == here
    few = [warning for warning in hb.time(torch.exp, x[0, :2], budget=BUDGET).warnings if warning.code == "few-sets"]
    assert [warning.advice for warning in few] == ["take a larger shape, or time a closure"]


def test_bytes_may_be_told(x: torch.Tensor) -> None:
    assert hb.time(torch.exp, x, bytes=1000, budget=BUDGET).bytes == 1000
    work = hb.time(torch.exp, x, bytes=(3, 4), budget=BUDGET).measurement.work
    assert work
    assert (work.read, work.written) == (3, 4)
    with pytest.raises(UsageError, match="bytes=-1"):
        hb.time(torch.exp, x, bytes=-1, budget=BUDGET)


def test_the_ceiling_is_of_streams_of_the_same_bytes(x: torch.Tensor) -> None:
    time = hb.time(torch.exp, x, budget=BUDGET)
    assert time.of_ceiling == pytest.approx(time.bytes / 1e6 / time.seconds, rel=1e-6)


def test_a_wrong_result_has_no_time_and_says_where_and_by_how_much(x: torch.Tensor) -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x)
        y[3, 5] += 1
        return y

    with pytest.raises(WrongResultError) as caught:
        hb.time(wrong, x, check=lambda x: torch.exp(x.double()), budget=BUDGET)
    assert str(caught.value).startswith("wrong: result: 1 of 512 elements are wrong by up to 1; element 101 is ")


def test_a_check_in_higher_precision_lets_rounding_pass(x: torch.Tensor) -> None:
    assert hb.time(torch.softmax, x.half(), -1, check=lambda x, d: torch.softmax(x.double(), d), budget=BUDGET).us > 0


def test_errors_allowed_are_the_callers(x: torch.Tensor) -> None:
    off = partial(torch.mul, other=1.001)
    check = torch.clone
    with pytest.raises(WrongResultError):
        hb.time(off, x, check=check, budget=BUDGET)
    assert hb.time(off, x, check=check, rtol=2e-3, budget=BUDGET).us > 0


def test_results_that_are_kept_are_found(x: torch.Tensor) -> None:
    kept: list[torch.Tensor] = []

    def lazy(x: torch.Tensor) -> torch.Tensor:
        kept[:] = kept or [torch.exp(x)]
        return kept[0]

    with pytest.raises(UsageError, match="the same memory from each call"):
        hb.time(lazy, x, budget=BUDGET)
    with pytest.raises(WrongResultError, match="512 of 512 elements are wrong"):
        hb.time(lambda x: lazy(x).clone(), x, check=torch.exp, budget=BUDGET)


def test_sets_hold_different_values_but_the_first_has_the_given_ones(x: torch.Tensor) -> None:
    seen: dict[float, None] = {}

    def look(x: torch.Tensor) -> torch.Tensor:
        seen[float(x[0, 0])] = None
        return torch.exp(x)

    hb.time(look, x, budget=BUDGET)
    first, *others = seen
    assert first == float(x[0, 0])
    assert len(others) >= 3
    assert all(abs(first) / 2 - 1e-6 <= abs(other) < abs(first) for other in others)


def test_arguments_stay_as_they_are(x: torch.Tensor) -> None:
    before = x.clone()
    hb.time(torch.Tensor.add_, x, 1.0, budget=BUDGET)
    assert torch.equal(x, before)


def test_what_a_function_writes_into_is_checked(x: torch.Tensor) -> None:
    def into(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.exp(x, out=out)

    def little(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.exp(x[:8], out=out[:8])

    y = torch.zeros_like(x)
    assert (
        hb.time(into, x, y, check=lambda x, out: torch.exp(x.double()), budget=BUDGET).bytes == 4 * x.nbytes - x.nbytes
    )
    with pytest.raises(WrongResultError, match="out: 256 of 512 elements are wrong"):
        hb.time(little, x, y, check=lambda x, out: torch.exp(x.double()), budget=BUDGET)


def test_lists_and_keywords_of_tensors(x: torch.Tensor) -> None:
    assert hb.time(torch.cat, [x, x.clone()], kwargs={"dim": 1}, budget=BUDGET).bytes == 4 * x.nbytes
    once = hb.time(torch.add, x, x, budget=BUDGET)
    assert once.bytes == 2 * x.nbytes


def test_integers_keep_their_values(x: torch.Tensor) -> None:
    places = torch.randint(0, 16, (8,))
    assert "same-values" not in codes(hb.time(functional.embedding, places, x, budget=BUDGET))
    assert "same-values" in codes(hb.time(torch.neg, places, budget=BUDGET))


def test_a_function_with_gradients(x: torch.Tensor) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad(torch.exp(x).sum(), x)
        return gradient

    assert hb.time(step, x.requires_grad_(), check=torch.exp, budget=BUDGET).us > 0


def test_a_closure_says_that_its_data_is_where_it_was(x: torch.Tensor) -> None:
    time = hb.time(lambda: torch.exp(x), name="mine", budget=BUDGET)
    assert "closure" in codes(time)
    assert "host, warm" in repr(time)
    with pytest.raises(UsageError, match="the bytes of mine aren't known: it is a closure"):
        _ = time.gb_per_s
    assert hb.time(lambda: torch.exp(x), bytes=2 * x.nbytes, budget=BUDGET).gb_per_s > 0


def test_a_closure_is_checked(x: torch.Tensor) -> None:
    y = torch.empty_like(x)
    assert hb.time(lambda: torch.exp(x, out=y), check=lambda: torch.exp(x), budget=BUDGET).us > 0
    with pytest.raises(WrongResultError, match="result: 512 of 512 elements are wrong"):
        hb.time(lambda: torch.exp(x), check=lambda: torch.exp(x) + 1, budget=BUDGET)
    calls = itertools.count()
    late = hb.time(lambda: torch.full((4,), float(next(calls))), budget=BUDGET)
    assert "unchecked" in codes(late)


@pytest.mark.parametrize(
    ("function", "code"),
    [(functional.dropout, "unchecked"), (lambda x: None, "unchecked"), (lambda x: x.view(-1), "unchecked")],
)
def test_what_cannot_be_checked_says_so(function: Callable[..., Any], code: str, x: torch.Tensor) -> None:
    assert code in codes(hb.time(function, x, budget=BUDGET))


def test_a_view_with_gaps_is_told(x: torch.Tensor) -> None:
    assert "layout" in codes(hb.time(torch.exp, x[:, ::2], budget=BUDGET))
    assert "layout" in codes(hb.time(torch.exp, x.view(-1)[1:], budget=BUDGET))
    assert "layout" not in codes(hb.time(torch.exp, x.t(), budget=BUDGET))


def test_a_calls_own_error_is_raised(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hb.time(torch.mm, x, x, budget=BUDGET)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: hb.time(torch.exp, x, budget=0), "budget=0"),
        (lambda x: hb.time(torch.real, x.to(torch.complex64), budget=BUDGET), "is of complex64"),
        (lambda x: hb.time(torch.exp, x, check=lambda x: (x, x), budget=BUDGET), "check= returns 2 tensors"),
        (lambda x: hb.time(lambda x: x[99], x.to(torch.complex64)), "x is of complex64"),
        (lambda x: hb.time(torch.exp, x.to_sparse(), budget=BUDGET), "argument0 is a tensor in the layout sparse_coo"),
        (lambda x: hb.time(lambda x: x.to_sparse(), x, budget=BUDGET), "result is a tensor in the layout sparse_coo"),
        (lambda x: hb.time(torch.exp(x)), "Tensor isn't a function"),
        (lambda x: hb.time(torch.softmax, x, kwargs=[-1]), "kwargs= is a list, not a dict"),
        (lambda x: hb.race({"a": torch.exp, "b": lambda x: None}, x), "b returns 0 tensors where 1 are compared"),
        (lambda x: hb.time(torch.exp, x, check=torch.exp(x)), "check= is a Tensor, not a function"),
        (lambda x: hb.time(lambda x: (row for row in x), x), "returns a generator, which has computed nothing"),
        (lambda x: hb.time(lambda x: map(torch.exp, x), x), "returns a map, which has computed nothing"),
        (lambda x: hb.time(later, x), "returns a coroutine, which has computed nothing"),
        (lambda x: hb.race(dict[str, Any](a=torch.exp, b=3), x), "int isn't a function"),
        (lambda x: hb.race([torch.exp, torch.exp], x), "the functions of a race are a list, not a dict"),
        (lambda x: hb.race({}, x), "no function to race"),
        (lambda x: hb.race({"a": torch.exp}, x, baseline="b"), "no function is named 'b'"),
    ],
)
def test_what_cannot_be_timed_is_refused(call: Callable[[torch.Tensor], object], said: str, x: torch.Tensor) -> None:
    with pytest.raises(UsageError, match=said):
        call(x)


def test_a_case_that_needs_too_much_memory(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.kinds()["cpu"].__class__, "free_bytes", lambda _: 1)
    with pytest.raises(MachineError, match="exp: needs"):
        hb.time(torch.exp, x, budget=BUDGET)


@one_test(
    ("function", "name"),
    [(torch.exp, "exp"), (lambda: 0, "lambda"), (partial(torch.exp), "exp"), (torch.nn.ReLU(), "ReLU")],
)
def test_names(function: Callable[..., Any], name: str) -> None:
    assert named(function) == name


def test_a_closure_on_a_gpu_is_timed_with_its_cache_flushed(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.kinds()["cpu"].__class__, "is_asynchronous", True)
    options: dict[str, Any] = {"reference": None, "bytes": None, "rtol": None, "atol": None, "name": "f", "usual": "f"}
    made = called({"f": lambda: torch.exp(x)}, (), {}, **options)
    assert made.op.variants["f"].timer == "launch"
    assert "the L2 is flushed" in made.notes[0].message
    assert called({"f": torch.exp}, (x,), {}, **options).op.variants["f"].timer == ""


# ---- Races.


def test_a_race_has_ratios_by_rounds(x: torch.Tensor) -> None:
    race = hb.race({"ours": torch.exp, "eager": torch.exp}, x, baseline="eager", budget=0.05)
    assert list(race) == ["ours", "eager"]
    ratio = race["ours"].over("eager")
    assert ratio == race["ours"].over()
    assert ratio.low <= ratio.value <= ratio.high
    assert ratio.rounds == len(race.rounds["ours"]) == len(race.rounds["eager"]) >= 10
    assert race["eager"].over().value == 1.0
    assert "over eager: " in repr(race)
    with pytest.raises(KeyError, match="no function of the race is named 'x'"):
        race["x"]


def test_random_results_with_gradients_are_compared_without_a_warning(x: torch.Tensor, recwarn) -> None:
    weight = torch.ones(32, requires_grad=True)
    found = hb.time(lambda x: (weight * torch.rand_like(x)).sum(), x, budget=BUDGET)
    assert "unchecked" in codes(found)
    assert not [each for each in recwarn if "requires_grad" in str(each.message)]


def test_all_functions_of_a_race_must_be_right(x: torch.Tensor) -> None:
    functions = {"right": torch.exp, "wrong": lambda x: torch.exp(x) * 1.1}
    with pytest.raises(WrongResultError, match="wrong: result") as found:
        hb.race(functions, x, budget=BUDGET)
    assert found.value.__notes__ == ["what 'right' gives counts as right; check= gives what else is right"]
    with pytest.raises(WrongResultError) as found:
        hb.race(functions, x, check=torch.exp, budget=BUDGET)
    assert found.value.__notes__ == ["correct it; a wrong result has no time"]


@one_test(
    ("own", "verdict"), [([1.0] * 10, "faster"), ([3.0] * 10, "slower"), ([1.9, 2.1] * 5, "~"), ([2.0] * 10, "~")]
)
def test_a_verdict_needs_the_whole_interval(own: list[float], verdict: str) -> None:
    assert Ratio.of([2.0] * 10, own).verdict == verdict


def test_few_rounds_have_no_interval() -> None:
    with pytest.raises(ValueError, match="5 rounds are too few"):
        Ratio.of([2.0] * 5, [1.0] * 5)


def test_rounds_end_when_every_ratio_is_known() -> None:
    steady, noisy = [1.0] * 10, [1.0, 2.0] * 5
    assert interleaved._is_precise([steady, steady], 0.01)
    assert interleaved._is_precise([noisy, noisy], 0.01)
    assert not interleaved._is_precise([steady, noisy], 0.01)
    assert not interleaved._is_precise([noisy], 0.01)


def test_a_function_that_goes_wrong_ends_alone(x: torch.Tensor) -> None:
    options: dict[str, Any] = {"reference": torch.exp, "bytes": None, "rtol": None, "atol": None}
    made = called({"right": torch.exp, "wrong": torch.sin}, (x,), {}, usual="right", name="race", **options)
    measured, rounds = interleaved.interleaved(made.cases, made.op, made.device, hb.model.Timing(max_time=BUDGET))
    assert [each.status for each in measured] == ["ok", "wrong"]
    assert list(rounds) == ["right"]
    assert isinstance(made.cases[0], Case)


# ---- In a notebook.


def test_times_are_a_table_and_a_plot(x: torch.Tensor) -> None:
    html = hb.race({"a<b": torch.exp, "eager": torch.exp}, x, budget=BUDGET)._repr_html_()
    assert html.count("<table>") == html.count("<svg") == 1
    assert "a&lt;b" in html
    assert "a<b" not in html
    assert "over a&lt;b" in html
    assert "GB/s" in hb.time(torch.exp, x, budget=BUDGET)._repr_html_()
    assert "GB/s" not in hb.time(lambda: torch.exp(x), budget=BUDGET)._repr_html_().partition("<svg")[0]
