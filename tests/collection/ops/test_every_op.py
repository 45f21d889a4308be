"""Every bundled variant keeps the contract of its op, as the check sees it: baselines on the CPU, all on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import devices
from harness.collection.ops import collectives
from harness.devices.cpu import Cpu
from harness.model import Case, Value
from harness.ops import Catalogue, Choice, Op
from harness.session import Session
from tests.one_test import one_test
from tests.rare import rare

OPS = Catalogue()
MEASURED = {"swin_train", "bert_train", "resnet50_train", "swin_infer", "image_pipeline"}
"""Steps that training/test_scenarios.py and pipeline/ in tests/collection/steps measure; test_many_ranks.py measures
scaling."""
SLOWEST = {"adamw", "llama_train", "window_attention", "window_attention_grad", "window_attention_packed"}
"""Ops whose baselines `make slow-test` alone compares: tests of their own compare them, too."""
OF_RANKS = {file.stem for folder in collectives.__path__ for file in Path(folder).glob("[!_]*.py")}
"""Ops that one process has no case of; tests/ops/collectives runs them on several GPUs."""
SIZES = {"T": 32, "V": 4, "U": 1}
"""Sizes that have a meaning of their own; all other sizes are 8."""
ON_A_GPU = {"D": 16}
"""Further ones on a GPU: tensor cores and FlexAttention take heads of 16 and more."""
COMPILED = "compile"
"""What the names of variants begin with that are compiled. They take seconds, and are tried once each, on a GPU."""
SMALL = {"tensors": ("equal",), "model": ("resnet_toy", "bert_toy", "swin_toy", "llama_toy")}
"""Values of a choice, where other values make too large a case for a test: a list of tensors may be a whole model's."""


class SmallCpu(Cpu):
    """A processor with next to no cache, so that few sets of buffers are enough."""

    cache_bytes = 2**10


def shape_of(op: Op, device: str) -> tuple[tuple[str, int], ...]:
    sizes = SIZES | (ON_A_GPU if device == "cuda" else {})
    return tuple((symbol, sizes.get(symbol, 8)) for symbol in op.symbols)


def values(name: str, choice: Choice) -> list[Value]:
    allowed = [value for value in SMALL.get(name, choice.values) if choice.accepts(value)]
    return allowed or list({choice.usual, choice.low, choice.high})


def usual(name: str, choice: Choice) -> Value:
    return values(name, choice)[0] if name in SMALL else choice.usual


def cases(op: Op, device: str) -> Iterator[Case]:
    """A small case for each variant that isn't compiled, which takes seconds, each dtype and each choice.

    Whole steps take long: they have one dtype here, and on a CPU one case; tests/collection/steps has the other cases.
    """
    steps = op.timer == "steady"
    dtypes = op.dtypes[: 1 if steps else None]
    variants = [variant for variant in op.variants.values() if variant.runs_on(device)]
    few = steps and device == "cpu"
    # Of whole steps, and of lists with all their choices, a CPU is slow with more.
    less = {"B": 4} if few else {"T": 4} if "tensors" in op.choices and device == "cpu" else {}
    shape = tuple((symbol, less.get(symbol, size)) for symbol, size in shape_of(op, device))
    allowed = [[usual(*choice)] if few else values(*choice) for choice in op.choices.items()]
    combined = itertools.product if device == "cuda" else pairs
    for variant in variants[: 1 if few else None]:
        if not variant.name.startswith(COMPILED):
            for dtype, *chosen in combined(dtypes, *allowed):
                yield Case(op.name, variant.name, dtype, shape, tuple(zip(op.choices, chosen, strict=True)), 1, device)


def pairs(*lists: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Few combinations of values, one from each list, that have any two values of two lists together."""
    every = list(itertools.product(*lists))
    missing = {pair for one in every for pair in itertools.combinations(enumerate(one), min(2, len(lists)))}
    while missing:
        best = max(every, key=lambda one: len(missing & {*itertools.combinations(enumerate(one), min(2, len(lists)))}))
        missing -= {*itertools.combinations(enumerate(best), min(2, len(lists)))}
        yield best


def test_pairs_have_any_two_values_together() -> None:
    lists = "ab", (1, 2, 3), (True, False)
    found = [*pairs(*lists)]
    assert len(found) == 6
    assert {(one[first], one[second]) for one in found for first, second in ((0, 1), (0, 2), (1, 2))} == {
        *itertools.product(lists[0], lists[1]), *itertools.product(lists[0], lists[2]),
        *itertools.product(lists[1], lists[2]),
    }  # fmt: skip
    assert [*pairs("abc")] == [("a",), ("b",), ("c",)]


COMPARED = [op for op in OPS if op not in MEASURED and not op.endswith("_scaling")]


@pytest.mark.usefixtures("optimizers_loaded", "one_thread")
@pytest.mark.parametrize(
    ("name", "every"), [*(rare(op, True) for op in COMPARED), *((op, False) for op in COMPARED if op not in SLOWEST)]
)
def test_baselines_keep_the_contract(name: str, every: bool) -> None:
    """All cases are checked. Of each variant one case is timed, or every case: its calls are timed alike."""
    op = OPS[name]
    made = list(cases(op, "cpu"))
    assert made
    timed = set()
    for case in made:
        with Session(case, op, SmallCpu()) as session:
            if session.obstacle() is None:
                session.prepare()
                assert session.check() is None
                if every or case.variant not in timed:
                    timed.add(case.variant)
                    assert timed_calls(session) is None
        assert session.warnings == []


TORCH_DIFFERS = {
    "add_rms_norm": "its sum of squares overflows before it is divided",
    "add_rms_norm_quantize": "its sum of squares overflows before it is divided",
    "bias_dropout_residual": "it multiplies dropped elements by 0, which makes NaN of infinities",
    "bn_add_relu": "the same statistics that aren't finite make NaN of what should be 0",
    "dequantize_bias_gelu_quantize": "its GELU of infinity is NaN on a CPU",
    "dropout": "it multiplies dropped elements by 0, which makes NaN of infinities",
    "dropout_add": "it multiplies dropped elements by 0, which makes NaN of infinities",
    "dropout_grad": "it multiplies dropped elements by 0, which makes NaN of infinities",
    "embedding_grad": "its sums of halves are halves on a CPU, and overflow",
    "layer_norm": "its mean of the largest numbers is infinite",
    "linear_activation": "its GELU of a large negative number is NaN in halves on a CPU",
    "relu_training": "its gradient of NaN is dy, ours 0",
    "rms_norm": "its sum of squares overflows before it is divided",
    "swiglu_grad": "dy * up overflows before the slope of silu makes it smaller",
    "window_attention": "its scores, and their sum with bias and mask, are halves",
    "window_attention_packed": "its scores, and their sum with bias and mask, are halves",
}
"""Ops with extreme values for which torch isn't right on a CPU, each with the reason."""


FEW = ("bn_add_relu", "dropout_add", "layer_norm", "linear_activation", "softmax", "swiglu_grad")
"""Ops whose baselines `make test` tries with extreme values, for a third of which torch differs."""


@pytest.mark.usefixtures("optimizers_loaded", "one_thread")
@pytest.mark.parametrize("names", [FEW, rare([name for name in OPS if name not in FEW])], ids=["few", "others"])
def test_baselines_are_right_for_extreme_values_unless_torch_differs(names: Sequence[str]) -> None:
    for name in names:
        told = extremes_told(OPS[name])
        assert told <= ({"extremes"} if name in TORCH_DIFFERS else set()), name


def extremes_told(op: Op) -> set[str]:
    """The codes of warnings that the op's cases with its usual choices have."""
    chosen = tuple((name, usual(name, choice)) for name, choice in op.choices.items())
    told = set()
    for case in cases(op, "cpu") if op.inputs else ():
        if case.choices == chosen:
            with Session(case, op, SmallCpu()) as session:
                if session.obstacle() is None:
                    session.prepare()
                    assert session.extremes() is None
                told |= {warning.code for warning in session.warnings}
    return told


@one_test("op", OPS.values(), ids=list(OPS))
def test_an_op_that_makes_its_inputs_says_which_extreme_values_they_may_have(op: Op) -> None:
    floats = any("float" in tensor.dtype_of("float32") for tensor in op.inputs)
    assert op.extremes is not None or op.make is None or not floats


MOST_OF = {"window_attention_packed": 16}
"""Sizes that are enough: a window's side is squared, and its scores are squared again."""


@pytest.mark.gpu
@pytest.mark.parametrize("size", [8, 40])
@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_variants_are_right_for_extreme_values_on_a_gpu(op: Op, size: int) -> None:
    """A library's results may differ there. At 40 most inputs have rows enough for all kinds in one call."""
    found = {}
    for case in cases(op, "cuda") if op.inputs else ():
        if size != 8 and 8 not in case.symbols.values():
            continue  # its sizes are those of a list of tensors, which are the same again
        most = min(size, MOST_OF.get(op.name, size))
        sizes = tuple((name, most if extent == 8 else extent) for name, extent in case.symbols.items())
        with Session(replace(case, shape=sizes), op, devices.kinds()["cuda"]) as session:
            if session.obstacle() is None:
                session.prepare()
                found[session.case.id] = session.extremes()
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


def timed_calls(session: Session) -> str | None:
    """What is wrong with calls as they are timed, on a few sets of buffers."""
    if not session.op.inputs and session.op.recheck is None:
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.session._MOST_SETS", 4)
        rotation = session.rotation()
    session.warnings[:] = [warning for warning in session.warnings if warning.code != "few-sets"]
    batch = session.device.batch(rotation.calls, timer=session.timer, keep=len(rotation.calls), seconds=1e-3)
    return session.recheck(rotation, batch, 0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_variants_keep_the_contract_on_a_gpu(op: Op) -> None:
    """A library's results may be inexact there. Compiled variants take part in halves, where dtypes can differ."""
    chosen = tuple((name, usual(name, choice)) for name, choice in op.choices.items())
    shape = shape_of(op, "cuda")
    half = next(dtype for dtype in ("float16", *op.dtypes) if dtype in op.dtypes)
    names = (name for name in op.variants if name.startswith(COMPILED) and "autotune" not in name)
    compiled = [Case(op.name, name, half, shape, chosen, 1, "cuda") for name in names]
    found = {}
    for case in [*cases(op, "cuda"), *compiled]:
        with Session(case, op, devices.kinds()["cuda"]) as session:
            obstacle = session.obstacle()
            if obstacle is None:
                session.prepare()
                found[case.id] = session.check() or timed_calls(session)
            elif op.name in OF_RANKS:
                assert "world: 2 or more" in str(obstacle)
                found[case.id] = None
    assert found
    assert {case: wrong for case, wrong in found.items() if wrong} == {}
