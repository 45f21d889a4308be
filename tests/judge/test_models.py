"""What KernelBench's form makes of a model: its inputs, smaller batches, its weights, and the candidate's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.errors import UsageError
from harness.judge import loading
from harness.judge.forms import _survey, kernelbench
from harness.judge.records import Asked, Sheet, Sized
from harness.judge.sources import Source

SHEET = Sheet("kernelbench", "mine.py", "theirs.py", "ModelNew", "cpu", "float32", 7, "judged",
              options={"manifest": {}, "cast": "float32"})  # fmt: skip
NEEDED = ("Model", "get_inputs", "get_init_inputs")


class Linear(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, features: int, *, bias: bool = True) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(features, 2, bias=bias)

    def forward(self, x: torch.Tensor, *rest: object) -> torch.Tensor:
        return self.linear(x)


def module(**own: Any) -> SimpleNamespace:
    known = {"Model": Linear, "get_inputs": lambda: [torch.randn(4, 3)], "get_init_inputs": lambda: [3]}
    return SimpleNamespace(**(known | own))


@pytest.fixture
def reference(monkeypatch) -> Callable[..., Any]:
    """Makes the reference of a file that defines these names."""

    def made(options: dict[str, Any] | None = None, **own: Any) -> Any:
        monkeypatch.setattr(loading, "load", lambda *_: module(**own))
        return kernelbench.reference(replace(SHEET, options={**SHEET.options, **(options or {})}))

    return made


# ---- What a request says.


def asked(**more: Any) -> Asked:
    return replace(Asked(Path("mine.py"), "cpu", 7), **more)


def test_the_form_is_recognised_by_its_classes(monkeypatch) -> None:
    def recognises(*names: str, **more: Any) -> bool:
        return kernelbench.recognises(asked(**more), Source(Path("mine.py"), frozenset(names)))

    assert recognises("ModelNew", *NEEDED)
    assert recognises("Mine", *NEEDED, function="Mine")
    assert not recognises(*NEEDED)
    assert recognises(*NEEDED, isolated=True)
    assert not recognises("ModelNew", *NEEDED, op="softmax")
    assert not any(recognises("ModelNew", *(one for one in NEEDED if one != left)) for left in NEEDED)
    monkeypatch.setattr(kernelbench, "read", lambda file: Source(file, frozenset(NEEDED)))
    assert recognises("ModelNew", reference=Path("theirs.py"))


def test_the_sheet_of_a_request() -> None:
    def sheet(**more: Any) -> Sheet:
        return kernelbench.sheet(asked(**more), Source(Path("mine.py")))

    found = sheet()
    assert (found.function, found.dtype, found.options["cast"], found.seed) == ("ModelNew", "float32", "float32", 7)
    assert found.reference == found.candidate == str(Path("mine.py").resolve())
    assert found.notes[0].startswith("The reference stands in the candidate's own file")
    named = sheet(reference=Path("theirs.py"), dtypes=("bfloat16",), function="Mine")
    assert (named.function, named.dtype, named.notes) == ("Mine", "bfloat16", ())
    assert named.reference == str(Path("theirs.py").resolve())
    for more, said in (
        ({"sizes": ({"B": 3},)}, "--sizes can't be given"),
        ({"dtypes": ("int8",)}, "--dtype int8 can't be judged"),
        ({"dtypes": ("float16", "float32")}, "--dtype float16,float32 can't be judged"),
    ):
        with pytest.raises(UsageError) as raised:
            sheet(**more)
        assert raised.value.message.startswith(said)


# ---- Inputs.


def test_inputs_are_drawn_by_the_seed_in_the_dtype_that_is_asked_for(reference) -> None:
    made = reference({"cast": "float16"}, get_inputs=lambda: [torch.randn(4, 3), torch.arange(4), 5])
    first, again, other = (made.inputs({}, seed) for seed in (1, 1, 2))
    assert [getattr(one, "dtype", one) for one in first] == [torch.float16, torch.int64, 5]
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert made.batch == 4
    assert {weight.dtype for weight in made._model.parameters()} == {torch.float16}


@pytest.mark.parametrize(
    ("cut", "shapes"),
    [("all", [(3, 3), (3,), (5, 4), ()]), ("first", [(3, 3), (4,), (5, 4), ()])],
)
def test_a_smaller_batch_cuts_inputs_that_have_the_batch(reference, cut: str, shapes: list[tuple[int, ...]]) -> None:
    made = reference(
        {"cut": cut}, get_inputs=lambda: [torch.randn(4, 3), torch.randn(4), torch.randn(5, 4), torch.randn(())]
    )
    whole, smaller = made.inputs({"B": 4}, 1), made.inputs({"B": 3}, 1)
    assert [tuple(one.shape) for one in smaller] == shapes
    assert torch.equal(smaller[0], whole[0][:3])
    assert smaller[0].untyped_storage().nbytes() == smaller[0].nbytes, "memory of its own"
    assert [tuple(one.shape) for one in made.inputs({}, 1)] == [(4, 3), (4,), (5, 4), ()]


def test_without_a_dimension_there_is_no_batch(reference) -> None:
    made = reference(get_inputs=lambda: [torch.randn(()), 5], get_init_inputs=lambda: [3])
    assert made.batch == 0
    assert not made.takes("all")
    assert list(made.vary({"B": 0}, random.Random(1))) == []
    assert reference(get_inputs=lambda: [torch.randn(()), torch.randn(6)]).batch == 6


def test_smaller_batches_are_drawn_where_there_is_a_batch(reference) -> None:
    drawn = {one["B"] for one in islice(reference().vary({"B": 4}, random.Random(1)), 60)}
    assert drawn == {1, 2, 3}
    assert list(reference().vary({}, random.Random(1))) == []
    assert list(reference(get_inputs=lambda: [torch.randn(1, 3)]).vary({"B": 1}, random.Random(1))) == []


def test_which_cut_a_model_takes(reference):
    class Product(torch.nn.Module):
        def __init__(self, _: int) -> None:
            super().__init__()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

    made = reference(Model=Product, get_inputs=lambda: [torch.randn(4, 4), torch.randn(4, 4)])
    assert (made.takes("all"), made.takes("first")) == (False, True)
    assert reference().takes("all")
    assert not reference(get_inputs=lambda: [torch.randn(1, 3)]).takes("all"), "no batch is smaller"
    two = reference(get_inputs=lambda: [torch.randn(2, 3)])
    tried: list[int] = []
    two.call = lambda values: tried.append(len(values[0])) or values
    assert two.takes("all")
    assert tried == [1], "a batch that is smaller by one"
    assert next(two.vary({"B": 2}, random.Random(1))) == {"B": 1}


def test_the_sheet_says_the_batch_and_the_cut(monkeypatch, reference) -> None:
    reference()
    monkeypatch.setattr(_survey, "surveyed", lambda sheet, _: sheet)
    found = kernelbench.surveyed(SHEET)
    assert (found.options["cut"], found.timed) == ("all", (Sized({"B": 4}, {"B": 4}),))
    reference(get_inputs=lambda: [torch.randn(())], Model=lambda _: torch.nn.Identity())
    assert kernelbench.surveyed(SHEET).timed == (Sized({}, {}),)


# ---- Weights.


@pytest.mark.parametrize(
    ("given", "bias"), [([3], True), ([[3], {"bias": False}], False), ([[3], {}], True)], ids=["plain", "apart", "none"]
)
def test_a_model_s_arguments_may_stand_apart_by_name(reference, given: list[Any], bias: bool) -> None:
    made = reference(get_init_inputs=lambda: given)
    assert (made._model.linear.bias is not None) is bias
    assert made.weights == 4 * (6 + 2 * bias)
    assert not any(one.requires_grad for one in made._model.parameters())


@pytest.mark.parametrize("given", [[[3], 4], [3, {"bias": False}]])
def test_two_positional_arguments_are_not_apart(reference, given):
    class Two(torch.nn.Module):
        def __init__(self, *arguments: object) -> None:
            super().__init__()
            self.given = arguments

    made = reference(Model=Two, get_init_inputs=lambda: given)
    assert made._model.given == tuple(given)


def test_a_model_and_its_arguments_have_the_seed_of_the_sheet(reference):
    one, other = reference(), reference()
    assert torch.equal(one._model.linear.weight, other._model.linear.weight)
    drawn: list[float] = []
    reference(get_init_inputs=lambda: drawn.append(float(torch.rand(()))) or [3])
    torch.manual_seed(7)
    assert drawn == [float(torch.rand(()))]


def test_the_precise_model_is_a_copy_in_float64(reference) -> None:
    made = reference({"cast": "float16"}, get_inputs=lambda: [torch.randn(4, 3), torch.arange(4)])
    x, number = made.inputs({}, 1)
    found = made.precisely([x, number])
    assert found.dtype == torch.float64
    wanted = x.double() @ made._model.linear.weight.double().t() + made._model.linear.bias.double()
    assert torch.allclose(found, wanted, rtol=1e-12)
    assert made._model.linear.weight.dtype == torch.float16
    precise = made._precise
    made.precisely([x, number])
    assert made._precise is precise, "it is made once"


def test_weights_of_the_reference_may_not_change(reference) -> None:
    made = reference()
    assert made.complaint(None, []) is None
    made.precisely(made.inputs({}, 1))
    assert made.complaint(None, []) is None
    for model in (made._precise, made._model):
        before = model.linear.bias.clone()
        model.linear.bias.add_(1.0)
        assert "the weights of the reference were changed" in made.complaint(None, [])
        model.linear.bias.copy_(before)
        assert made.complaint(None, []) is None
    assert not made.decides


def test_the_candidate_has_the_reference_s_weights_where_it_has_the_same_ones(monkeypatch, reference):
    class Other(torch.nn.Module):
        def __init__(self, features: int) -> None:
            super().__init__()
            torch.rand(5)  # so that the seed alone gives other weights
            self.linear = torch.nn.Linear(features, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    made = reference()
    monkeypatch.setattr(loading, "load", lambda *_: SimpleNamespace(ModelNew=Other, Mine=Linear))
    call = kernelbench.candidate(SHEET, made)
    x = torch.randn(2, 3)
    assert torch.equal(call([x]), made.call([x]))
    with pytest.raises(UsageError, match=r"mine\.py: defines no Mime") as raised:
        kernelbench.candidate(replace(SHEET, function="Mime"), made)
    assert raised.value.advice == "did you mean 'Mine'?"
    other = made.made(lambda _: torch.nn.Linear(3, 2))
    assert not other.weight.requires_grad, "weights of other names are its own"
