"""Candidates for an op that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.judge import Asked
from harness.judge.procedure import _settings
from harness.ops import find
from tests.rare import rare

RETURNS = "def double(x):\n    return x + x\n"
WRITES = "def double(x, y):\n    y.copy_(x + x)\n"


@pytest.mark.parametrize("text", [RETURNS, WRITES, rare("def double(anything):\n    return 2 * anything\n")])
def test_a_function_that_is_right(doubling, text):
    found = doubling(text, dtypes=("float32",))
    assert (found.verdict, found.code) == ("right", 0)
    [timed] = found.timed
    assert timed.case == "doubling/candidate/float32/M8-N24"
    assert timed.best == "eager"
    assert timed.speedup == pytest.approx(1.0)
    assert timed.of_ceiling is not None
    assert found.line.startswith("right, 1.00x [1.00, 1.00] torch, ")
    assert [one.sizes for one in found.checked] == ["given", *["unseen"] * 4]
    assert {one.status for one in found.checked} == {"ok"}


@pytest.mark.slow  # the test above has a function that is right
def test_a_function_gets_sizes_by_name(doubling):
    found = doubling("def double(x, M, N):\n    assert x.shape == (M, N)\n    return x * 2\n", dtypes=("float32",))
    assert found.verdict == "right"


def test_every_dtype_of_the_op_unless_told(doubling):
    assert [one.case.split("/")[2] for one in doubling(RETURNS).timed] == ["float32", "float16"]


@pytest.mark.slow
@pytest.mark.usefixtures("functions_noted")
def test_a_variant_that_a_file_adds(doubling):
    text = """
from harness.ops import find

@find("doubling").variant("mine", "adds", devices=("cpu",), returns=True)
def mine(ctx):
    return lambda t: (t.x + t.x,)
"""
    found = doubling(text, dtypes=("float32",))
    assert (found.verdict, found.calls.only_torch) == ("right", True)


def test_wrong_values(doubling):
    found = doubling("def double(x):\n    return x * 3\n")
    assert (found.verdict, found.code, found.timed) == ("wrong", 5, ())
    assert found.line.startswith("wrong: y: 192 of 192 elements are wrong by up to ")


def test_a_hard_coded_size_is_found(doubling):
    text = """
import torch

def double(x):
    y = torch.zeros_like(x)
    y[:8, :24] = 2 * x[:8, :24]
    return y
"""
    found = doubling(text, sizes=({"M": 8, "N": 24},), dtypes=("float32",), seed=2)
    assert (found.verdict, found.code) == ("wrong", 5)
    assert found.checked[0].status == "ok"
    assert found.checked[-1].sizes == "unseen"


def test_a_size_may_be_declined(doubling):
    text = """
def double(x):
    if x.shape != (8, 24):
        raise NotImplementedError("made for 8 rows of 24")
    return x + x
"""
    found = doubling(text, dtypes=("float32",))
    assert (found.verdict, found.code) == ("right", 0)
    assert found.line.endswith("it declines all sizes but the given ones")
    assert {one.status for one in found.checked[1:]} == {"declined"}


def test_the_sizes_of_its_own_must_not_be_declined(doubling):
    found = doubling("def double(x):\n    raise ValueError('no')\n")
    assert (found.verdict, found.code) == ("crashed", 5)
    assert found.line.startswith("crashed: ValueError: no (")


@pytest.mark.slow  # test_sizes.py has how sizes are drawn
def test_the_seed_draws_the_sizes(doubling):
    """The first of them is where this candidate is wrong, which ends its judgement; test_sizes.py has more sizes."""
    text = "def double(x):\n    return x * 2 if x.shape == (8, 24) else x\n"
    first, again, other = (doubling(text, seed=seed, dtypes=("float32",)).checked for seed in (5, 5, 6))
    assert [one.sizes for one in first] == ["given", "unseen"]
    assert first == again
    assert first[1].case != other[1].case


@pytest.mark.slow  # test_verdict.py has what a gate for speed says
def test_a_gate_for_speed_is_sure_before_it_fails(doubling):
    assert doubling(RETURNS, dtypes=("float32",), at_least=1.0).code == 0
    found = doubling(RETURNS, dtypes=("float32",), at_least=1.5)
    assert (found.verdict, found.code) == ("right", 1)
    assert found.line.endswith("slower than --at-least 1.5x")


def test_a_bundled_op_has_sizes_of_its_own():
    """A few of the sizes that its scenario has."""
    asked = Asked(Path("mine.py"), "cpu", 3, op="softmax")
    found = _settings(asked, find("softmax"))
    assert len(found) == 3 * 3
    assert {dtype for dtype, _ in found} == {"float32", "float16", "bfloat16"}
    assert found == _settings(asked, find("softmax"))
    # Scenarios of this op have other names.
    assert _settings(asked, find("strided_copy"))


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        (RETURNS, {"op": "dubling", "plugins": ()}, "no op is named 'dubling'"),
        (RETURNS, {"op": "zzz", "plugins": ()}, "an op of your own needs its file: --ops FILE; allowed: "),
        (RETURNS, {"sizes": ({"M": 8},)}, "'N' of op 'doubling' is missing"),
        (RETURNS, {"sizes": ({"Q": 8},)}, "op 'doubling' has no size 'Q'"),
        (RETURNS, {"sizes": ()}, "no bundled scenario has sizes for op 'doubling'"),
        (RETURNS, {"dtypes": ("float64",)}, "has no dtype 'float64'"),
        (RETURNS, {"function": "triple"}, "defines no function 'triple'"),
        ("from torch import relu\n", {"function": "relu"}, "wrap it: def f(...): return relu(...)"),
        ("from torch import relu\n", {}, "defines no public function"),
        (RETURNS, {"reference": "op.py"}, "the op has its reference"),
        (RETURNS + WRITES.replace("double", "other"), {}, "defines double, other as public functions"),
        ("def double(x, z):\n    return x\n", {}, "has a parameter 'z', which op 'doubling' doesn't have"),
        ("def double(x:\n", {}, "isn't valid Python"),
    ],
)
def test_a_request_that_can_t_be_carried_out(doubling, text, asked, said):
    with pytest.raises(UsageError) as raised:
        doubling(text, **asked)
    assert said in f"{raised.value.message} {raised.value.advice}"
