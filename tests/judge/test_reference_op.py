"""The op of a reference of another project: its sets of buffers, its baselines, and what is right in it."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from harness import intact
from harness.errors import UsageError
from harness.judge import loading
from harness.judge.forms import _op, _survey
from harness.judge.records import STRIDES, Sheet, Sized
from harness.model import Case, Work
from harness.ops import Context, Op
from harness.ops.comparer import complaint
from tests.judge.test_survey import SHEET, Doubling, Values, sized


class Scaled(Doubling):
    """y = scale x: besides x and memory for y, the data has a number and a table that is no input."""

    def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
        drawn, memory = super().inputs(arguments, seed)
        return [drawn, memory, {"scale": arguments.get("scale", 2)}]

    def call(self, values: Any) -> Any:
        return values[0] * values[2]["scale"]

    def precisely(self, values: Any) -> Any:
        return self.call([values[0].double(), *values[1:]])

    def complaint(self, _values: Any, _outputs: Values) -> str | None:
        return None


def surveyed(reference: Any, cases: tuple[Sized, ...] = (sized(6), sized(5)), **more: Any) -> Sheet:
    return replace(_survey.surveyed(replace(SHEET, timed=cases, options={"manifest": {}}), reference), **more)


def made(reference: Any = None, makes: Any = None, sheet: Sheet | None = None) -> Op:
    reference = reference or Scaled()
    return _op.op(sheet or surveyed(reference), lambda _: reference, makes or (lambda _, of: of.call))


def context(op: Op, n: int = 6, **choices: str) -> Context:
    case = Case("judged", "candidate", "float32", (("N", n),), tuple(choices.items()), device="cpu")
    return Context(case, torch.float32, torch.device("cpu"), torch.Generator().manual_seed(1), op)


def buffers(op, ctx):
    """A set of buffers of a case."""
    found = SimpleNamespace(**op.make(ctx))
    vars(found).update(op.variants["candidate"].encode(ctx, found))
    return found


def test_inputs_are_tensors_of_the_data_and_memory_for_outputs_is_each_set_s_own() -> None:
    op = made()
    assert [(one.name, one.dtype) for one in (*op.inputs, *op.outputs)] == [("x0", "float32"), ("y0", "float32")]
    ctx = context(op)
    first, second = (buffers(op, ctx) for _ in range(2))
    assert first.x0.shape == (6,)
    assert not torch.equal(first.x0, second.x0), "each set draws its own"
    [memory] = first.buffers
    assert (memory.shape, memory.isnan().all().item(), memory is second.buffers[0]) == ((6,), True, False)
    assert op.inputs[0].shapes({"N": 5}) == [(5,)]


def test_a_candidate_is_given_the_form_s_data_with_the_set_s_tensors() -> None:
    given: list[Any] = []

    def candidate(values: Any) -> Any:
        given.append((values, torch.is_grad_enabled()))
        return [values[0] * 2, {"more": values[1]}]

    op = made(makes=lambda *_: candidate)
    ctx = context(op)
    t = buffers(op, ctx)
    returned = op.variants["candidate"].prepare(ctx)(t)
    [(values, gradients)] = given
    assert values[0] is t.x0
    assert values[1] is t.buffers[0]
    assert (values[2], gradients) == ({"scale": 2}, False)
    assert len(returned) == 2
    assert returned[1] is t.buffers[0]


def test_a_tensor_on_another_device_is_the_same_in_all_sets() -> None:
    class Elsewhere(Scaled):
        table = torch.empty(3, device="meta")

        def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
            return [*super().inputs(arguments, seed), self.table]

    given: list[Any] = []
    op = made(Elsewhere(), makes=lambda *_: given.append)
    ctx = context(op)
    op.variants["candidate"].prepare(ctx)(buffers(op, ctx))
    assert given[0][3] is Elsewhere.table
    assert [one.name for one in op.inputs] == ["x0"]


def test_sets_are_drawn_by_seeds_that_nobody_guesses():
    asked: list[int] = []

    class Seeded(Scaled):
        def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
            asked.append(seed)
            return super().inputs(arguments, seed)

    op = made(Seeded())
    ctx = context(op)
    asked.clear()
    for _ in range(20):
        op.make(ctx)
    assert len({*asked}) == 20
    assert max(asked) > 2**28


def test_weights_among_the_data_are_inputs_without_gradients() -> None:
    class Parameters(Scaled):
        def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
            drawn, *rest = super().inputs(arguments, seed)
            return [torch.nn.Parameter(drawn), *rest]

    op = made(Parameters())
    assert not buffers(op, context(op)).x0.requires_grad


def test_the_bytes_of_inputs_weights_and_outputs_count_once() -> None:
    op = made()
    assert op.work_of({"N": 6}, "float32") == Work(4 * 6 + 40, 4 * 6)
    reference = Scaled()
    uncounted = made(reference, sheet=surveyed(reference, is_counted=False))
    assert uncounted.work_of({"N": 6}, "float32") == Work(0, 0)


def test_arguments_that_are_no_sizes_are_choices() -> None:
    reference = Scaled()
    cases = tuple(
        Sized({"N": n, "scale": str(scale)}, {"N": n, "scale": scale}) for n, scale in ((6, 2), (5, 3), (4, 2))
    )
    op = made(reference, sheet=surveyed(reference, cases, unseen=()))
    assert {name: choice.values for name, choice in op.choices.items()} == {"scale": ("2", "3")}
    assert [*op.symbols] == ["N"]
    ctx = context(op, 5, scale="3")
    assert torch.equal(op.variants["eager"].prepare(ctx)(t := buffers(op, ctx))[0], t.x0 * 3)


def test_torch_s_baselines_are_the_reference_as_it_is_and_compiled(monkeypatch):
    compiled: list[dict[str, Any]] = []

    def compile_(function, **options):
        compiled.append(options)
        return lambda values: counters["stats"].update(unique_graphs=1) or function(values)

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(torch.compiler, "reset", lambda: compiled.append({}))
    op = made()
    devices = {name: variant.devices for name, variant in op.variants.items()}
    assert devices == {
        "eager": ("any",), "compile": ("any",), "compile_autotune": ("cuda",), "candidate": ("any",),
    }  # fmt: skip
    assert [op.variants[name].summary for name in ("eager", "compile")] == [
        "the reference as it is", "the reference, compiled in the mode default",
    ]  # fmt: skip
    assert {variant.role for name, variant in op.variants.items() if name != "candidate"} == {"baseline"}
    assert all(variant.returns and variant.encode for variant in op.variants.values())
    ctx = context(op)
    t = buffers(op, ctx)
    for name in ("eager", "compile"):
        assert torch.equal(op.variants[name].prepare(ctx)(t)[0], t.x0 * 2)
    assert [one for one in compiled if one] == [{"dynamic": False, "mode": "default"}]
    assert compiled[0] == {}, "what was compiled before is forgotten"


@pytest.mark.parametrize("compiles", [True, False])
def test_a_reference_that_torch_compile_leaves_out_has_no_compiled_baseline(compiles, monkeypatch):
    """Its time would be the plain reference's, by another name. What was compiled before counts for nothing."""
    counters["stats"]["unique_graphs"] += 1
    if compiles:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    else:
        monkeypatch.setattr(Scaled, "call", torch.compiler.disable(Scaled.call))
    op = made()
    ctx = context(op)
    launch, t = op.variants["compile"].prepare(ctx), buffers(op, ctx)
    for _ in range(2):
        if compiles:
            assert torch.equal(launch(t)[0], t.x0 * 2)
        else:
            with pytest.raises(UsageError, match="compiles nothing of the reference"):
                launch(t)


@pytest.mark.parametrize("breaks", [True, False])
def test_a_reference_that_torch_compile_compiles_in_parts_is_told_of(breaks, monkeypatch):
    """Once, with torch's reason: a reference as a whole may be faster."""

    def call(_, values):
        y = values[0] * 2
        if breaks:
            torch._dynamo.graph_break()
        return y + values[0]

    monkeypatch.setattr(Scaled, "call", call)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    op = made()
    ctx = context(op)
    launch, t = op.variants["compile"].prepare(ctx), buffers(op, ctx)
    for _ in range(3):
        assert torch.equal(launch(t)[0], t.x0 * 3)
    found = [(note.code, note.message.partition(": ")[0]) for note in ctx.notes]
    assert found == [("in-parts", "torch.compile compiles the reference in parts, since")] * breaks


def test_a_reference_that_is_compiled_anew_at_each_call_has_no_compiled_baseline(monkeypatch):
    """After eight times torch would go on with the plain reference. A candidate is left to torch's own ways."""

    def call(self, values):
        self.calls = getattr(self, "calls", 0) + 1
        return values[0] * 2 * (self.calls / self.calls)

    monkeypatch.setattr(Scaled, "call", call)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    op = made()
    ctx = context(op)
    launch, t = op.variants["compile"].prepare(ctx), buffers(op, ctx)
    with pytest.raises(UsageError, match="gives up the reference"):
        [launch(t) for _ in range(20)]
    assert torch._dynamo.config.fail_on_recompile_limit_hit
    op.variants["candidate"].prepare(ctx)
    assert not torch._dynamo.config.fail_on_recompile_limit_hit


# ---- What is right.


def complains(reference, factor=2.0, **more):
    """What is wrong with factor times x."""
    op = made(reference, sheet=surveyed(reference, **more))
    ctx = context(op)
    t = buffers(op, ctx)
    before = SimpleNamespace(x0=t.x0.clone())
    return complaint(op.check(ctx, SimpleNamespace(**vars(t), y0=t.x0 * factor, before=before)))


def test_outputs_are_compared_with_the_reference_in_float64_where_it_can() -> None:
    class Roughly(Scaled):
        """In its own precision it gives three times x."""

        def precisely(self, values: Any) -> Any:
            return values[0].double() * 2

        def call(self, values: Any) -> Any:
            return values[0] * 3

    assert complains(Scaled()) is None
    assert complains(Scaled(), 2.1)
    assert complains(Roughly(), precise=True) is None
    assert complains(Roughly(), precise=False)
    assert complains(Roughly(), 3.0, precise=False) is None


def test_the_form_s_own_check_counts_and_decides_where_nothing_is_more_precise() -> None:
    class Checking(Scaled):
        decides = True
        said: str | None = None

        def complaint(self, values: Any, outputs: Values) -> str | None:
            values[0].zero_()  # it may do what it wants with what it is given
            return self.said

    assert complains(Checking(), 2.1), "float64 says it is wrong"
    assert complains(Checking(), 2.1, precise=False) is None
    assert complains(Checking(), precise=True) is None
    assert complains(Checking(said="not like this")) == "not like this"


@pytest.mark.parametrize(
    ("made_as", "given", "warned"),
    [
        (lambda x: x.t().contiguous(), lambda x: x.t(), True),
        (lambda x: x.t(), lambda x: x.t(), False),
        (lambda x: x.t(), lambda x: x.t().contiguous(), False),
        (lambda x: x.contiguous(), lambda x: x.contiguous(), False),
    ],
)
def test_outputs_in_another_order_in_memory_are_noted_once(made_as, given, warned):
    x = torch.arange(6.0).reshape(2, 3)
    form = _op.data.described(made_as(x))
    ctx: Any = SimpleNamespace(notes=[])
    for _ in range(2):
        _op._note_strides(Sized({}, {}, outputs=(form,)), ctx, [given(x)])
    assert [note.code for note in ctx.notes] == [STRIDES] * warned


def test_the_order_of_outputs_is_looked_at_where_they_are_checked():
    class Square(Scaled):
        def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
            return [one.reshape(2, -1) for one in super().inputs(arguments, seed)[:2]] + [{"scale": 2}]

    op = made(sheet=surveyed(Square(), (sized(6),), unseen=()), reference=Square())
    ctx = context(op)
    t = buffers(op, ctx)
    y0 = (t.x0 * 2).t().contiguous().t()
    assert complaint(op.check(ctx, SimpleNamespace(**vars(t), y0=y0, before=SimpleNamespace(x0=t.x0)))) is None
    assert [note.code for note in ctx.notes] == [STRIDES]


def test_dimensions_of_one_element_and_empty_outputs_have_no_order():
    ctx: Any = SimpleNamespace(notes=[])
    one, empty = torch.ones(1, 3, 2).transpose(1, 2), torch.ones(3, 2, 0).transpose(0, 1)
    for x, strides in ((one, (99, 1, 2)), (empty, (2, 1, 1))):
        form = replace(_op.data.described(x), strides=strides)
        _op._note_strides(Sized({}, {}, outputs=(form,)), ctx, [x])
    assert ctx.notes == []


# ---- The reference may not be changed.


def test_modules_beside_the_reference_are_noted_when_it_is_loaded(monkeypatch, tmp_path):
    loads = itertools.count(1)
    noted: list[str] = []
    monkeypatch.setattr(intact, "remember", lambda modules: noted.extend(module.__name__ for module in modules))
    for name, file in (
        ("beside", "beside.py"), ("deeper", "inside/deeper.py"), ("listed", "more/x.py"),
        (loading.CANDIDATE, "mine.py"), (loading.REFERENCE, "theirs.py"),
    ):  # fmt: skip
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "nowhere", ModuleType("nowhere"))
    sheet = replace(SHEET, reference=str(tmp_path / "theirs.py"), folders=(str(tmp_path / "more"),))
    loaded = _op._Loaded(sheet, lambda _: next(loads))
    assert (loaded.reference, loaded.reference) == (1, 1), "it is loaded once"
    assert sorted(noted) == ["beside", "listed"]
