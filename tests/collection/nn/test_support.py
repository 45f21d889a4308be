"""The page of what harness.nn supports: each entry is what happens, with kernels that references play on a CPU."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Collection, Iterator

import pytest
import torch

from harness import nn
from harness.collection.nn import _dropout, _kernels
from tests.collection.nn.examples import EXAMPLES, VARIANTS, mask
from tests.collection.nn.features import FEATURES, Row, outcome, rows
from tests.rare import rare

pytestmark = pytest.mark.usefixtures("unmeasured_guards")
ROWS = {row.name: row for row in rows()}
OTHERWISE = {
    "batch_norm in evaluation": {"distributed"},
    "attention with masks": {"distributed"},
    "rms_norm without weight": {"float64"},
    "rms_norm with torch's epsilon": {"float64"},
    "rope of neighbours": {"distributed"},
    "linear_cross_entropy in chunks": {"double_backward"},
    "embedding with padding": {"empty"},
}
"""Masks, statistics and angles that aren't DTensor, which torch refuses; an epsilon that is another one in float64;
second derivatives of a loss without logits; a row that an empty weight hasn't."""
NO_STRATEGY = r"error: NotImplementedError: Operator aten\.[\w.]+ does not have a sharding strategy registered"
"""What torch says of a DTensor in its own operators: later versions know more of these, on a GPU fewer than here."""
TRACED = ("compile", "export")
"""Features that take longest. The operators that they trace are those of the functions' usual ways."""
TELLING = ("gradients", "double_backward", "func_vmap", "dual_numbers", "autocast", "strided", "halves")
"""What `make test` tries of other ways to call: gradients of gradients, transforms, dual numbers, types and strides.
The other features go through the same operators and their gradients."""
LIKE = {
    "batched_gradients": "vmap_of_grad",
    "forward_over_reverse": "dual_numbers",
    "offloaded": "checkpoint",
    "some_gradients": "gradients",
    "func_grad": "vmap_of_grad",
    "func_jvp": "dual_numbers",
    "fake": "meta",
    "function_mode": "dispatch_mode",
}
"""Features that functions take as they take another feature, by which the table says the same of both."""
WITHOUT_GRADIENTS = {"unscale_", "add_rms_norm_quantize"}
"""Functions that have no gradients, and have tests of their own."""


def misfits(row: Row, device: str, launched: Callable[[], int]) -> list[str]:
    """The functions of a row for which something else happens than its entry says."""
    found = []
    if row.name == "compile":
        torch.compiler.reset()
    for name, expected in row.outcomes.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = outcome(name, row.name, device, launched)
        if not re.match(expected, made) and not re.match(NO_STRATEGY, made):
            found.append(f"{name}: {made}, not {expected}")
    return found


@pytest.mark.parametrize(
    "feature",
    # test_operators.py has each operator in compiled code.
    [
        rare(name) if name in TRACED or name in LIKE else name
        for name, feature in FEATURES.items()
        if not feature.needs_gpu
    ],
)
def test_what_happens_is_what_the_page_says(feature, played):
    assert not misfits(ROWS[feature], "cpu", lambda: sum(played.values()))


def other_outcomes(
    name: str, device: str, launched: Callable[[], int], features: Collection[str] = FEATURES
) -> dict[str, str]:
    """What each feature gives of another way to call a function, where it must be right."""
    torch.compiler.reset()
    refused = {"integers", "complex", "no_dimension", "mixed_devices", "cuda_graph"} | OTHERWISE.get(name, set())
    return {feature: outcome(name, feature, device, launched) for feature in features if feature not in refused}


@pytest.mark.parametrize(
    "features",
    [TELLING, rare([one for one in FEATURES if one not in (*TELLING, *TRACED)]), rare(TRACED)],
    ids=["telling", "called", "traced"],
)
@pytest.mark.parametrize("name", VARIANTS)
def test_other_ways_to_call_a_function_are_right(name, features, played):
    made = other_outcomes(name, "cpu", lambda: sum(played.values()), features)
    assert {*made.values()} <= {"kernel", "torch"}, made


class _OneByOne:
    """Numbers of dropout as transforms and graphs draw them from torch's generator, one in a kernel."""

    def __init__(self, _device: int, seed: int, part: int, _stream: int) -> None:
        self._seed, self._first = seed, part * _dropout._TOGETHER

    def __getitem__(self, place: int) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(self._seed)
        generator.set_offset((self._first + place) * _dropout._OFFSET)
        return torch.empty(1, dtype=torch.int64, device="cuda").random_(_dropout._NUMBERS, generator=generator)


@pytest.fixture
def alike_in_transforms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A call has the same mask in a transform or a graph as without, so that one mask is right for all features.

    On a GPU calls have numbers that were drawn together otherwise; test_launches_on_the_gpu.py has them.
    """
    monkeypatch.setattr(_dropout, "_drawn_together", _OneByOne)
    mask.cache_clear()
    yield
    mask.cache_clear()


@pytest.mark.gpu
@pytest.mark.usefixtures("alike_in_transforms")
@pytest.mark.parametrize("name", VARIANTS)
def test_other_ways_to_call_a_function_are_right_on_a_gpu(name):
    made = other_outcomes(name, "cuda", lambda: sum(_kernels.LAUNCHED.values()))
    assert {*made.values()} - {"kernel", "torch"} <= {one for one in made.values() if re.match(NO_STRATEGY, one)}, made


@pytest.mark.gpu
@pytest.mark.usefixtures("alike_in_transforms")
@pytest.mark.parametrize("feature", FEATURES)
def test_what_happens_on_a_gpu_is_what_the_page_says(feature):
    assert not misfits(ROWS[feature], "cuda", lambda: sum(_kernels.LAUNCHED.values()))


def test_every_feature_and_every_function_is_in_the_table():
    assert [*ROWS] == [*FEATURES]
    public = {name for name in nn.__all__ if inspect.isfunction(getattr(nn, name))}
    takes_tensors = {name for name in public if "Tensor" in str(inspect.signature(getattr(nn, name)))}
    assert takes_tensors - WITHOUT_GRADIENTS == set(EXAMPLES)
