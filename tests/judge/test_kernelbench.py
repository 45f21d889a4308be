"""Candidates in KernelBench's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import intact
from harness.errors import UsageError
from tests.rare import rare

REFERENCE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 16)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(12, 8)]

def get_init_inputs():
    return [8]
"""
NEW = """
import torch
import torch.nn as nn

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 16)

    def forward(self, x):
        return (x @ self.linear.weight.t() + self.linear.bias).clamp(min=0)
"""
ADD = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return BODY

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return NEW

def get_inputs():
    return [torch.rand(6, 64)]

def get_init_inputs():
    return []
"""


def pair(body: str, new: str) -> str:
    return ADD.replace("return NEW", f"return {new}").replace("return BODY", f"return {body}")


@pytest.mark.slow
@pytest.mark.usefixtures("functions_noted")
def test_a_reference_of_its_own_and_weights_that_are_copied(judged):
    found = judged(NEW, {"ref.py": REFERENCE}, reference="ref.py")
    assert (found.verdict, found.form, found.reference) == ("right", "kernelbench", "ref.py")
    assert "The reference runs in float64." in found.notes
    assert [one.case for one in found.timed] == ["judged/candidate/float32/B12"]
    assert {one.sizes for one in found.checked} == {"given", "unseen"}
    assert {*found.timed[0].baselines} == {"eager", "compile"}
    assert found.calls.torch[-1] == "aten.clamp"
    assert found.calls.only_torch


def test_weights_of_other_names_have_the_same_seed(judged):
    text = NEW.replace("self.linear", "self.other")
    assert judged(text, {"ref.py": REFERENCE}, reference="ref.py").verdict == "right"


@pytest.mark.slow  # test_arithmetic_in_halves has halves
def test_halves(judged):
    found = judged(NEW, {"ref.py": REFERENCE}, reference="ref.py", dtypes=("float16",))
    assert found.verdict == "right"
    assert found.timed[0].case == "judged/candidate/float16/B12"


@pytest.mark.slow  # test_exploits.py has files that bend their reference
def test_one_file_could_bend_its_reference(judged):
    found = judged(pair("x * 2", "x + x"))
    assert found.verdict == "right"
    assert found.notes[0].startswith("The reference stands in the candidate's own file, which could bend it")
    assert "same for other inputs" not in found.line


def test_a_batch_that_is_hard_coded(judged):
    found = judged(pair("x.cumsum(0)", "torch.nn.functional.pad(x[:5], (0, 0, 0, len(x) - min(len(x), 5))).cumsum(0)"))
    assert (found.verdict, found.code) == ("wrong", 5)


def test_zeros_are_never_right(judged):
    """Each output is about 2e-5: the absolute error that is allowed for large ones would let zeros pass."""
    found = judged(pair("torch.softmax(x, 1) * 1e-3", "torch.zeros_like(x)"))
    assert (found.verdict, found.code) == ("wrong", 5)


def test_arithmetic_in_halves(judged):
    found = judged(pair("x * 2.34567", "(x.half() * 2.34567).float()"))
    assert found.verdict == "wrong"


def test_a_reference_that_takes_one_batch_only(judged):
    found = judged(pair("x.view(6, 64) + 1", "1 + x"))
    assert found.verdict == "right"
    assert "The reference takes no other sizes, so only values are new to the candidate." in found.notes
    assert [one.sizes for one in found.checked] == ["given"]
    assert "declines" not in found.line


@pytest.mark.slow  # test_reference_op.py has where float64 is taken
def test_a_reference_that_rounds_isn_t_run_in_float64(judged):
    found = judged(pair("(x * 1e6).round() % 2", "(1e6 * x).round() % 2"))
    assert found.verdict == "right"
    assert any(note.startswith("The reference runs in float32 with TF32 off: float64 isn't") for note in found.notes)


@pytest.mark.slow  # test_sizes.py has how sizes are chosen
def test_of_square_matrices_the_first_is_cut(judged):
    square = pair("a @ b", "(b.t() @ a.t()).t().contiguous()").replace("self, x", "self, a, b")
    found = judged(square.replace("torch.rand(6, 64)", "*torch.rand(2, 6, 6)"))
    assert found.verdict == "right"
    assert {one.sizes for one in found.checked} == {"given", "unseen"}


@pytest.mark.slow  # test_reference_op.py has outputs of any shape
def test_a_single_number_is_an_output(judged):
    assert judged(pair("x.square().mean()", "(x * x).mean()")).verdict == "right"
    assert judged(pair("x.square().mean()", "x.mean()")).verdict == "wrong"


def test_a_reference_with_integers_runs_as_it_is(judged):
    found = judged(pair("x.argmax(1)", "x.max(1).indices"))
    assert found.verdict == "right"
    assert any(note.startswith("The reference runs as it is, with TF32 off") for note in found.notes)
    assert judged(pair("x.argmax(1)", "x.argmin(1)")).verdict == "wrong"


def test_positional_and_named_arguments_apart(judged):
    apart = REFERENCE.replace("return [8]", "return [[], {'features': 8}]")
    assert judged(NEW, {"ref.py": apart}, reference="ref.py").verdict == "right"


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [
        (pair("torch.nn.functional.dropout(x)", "x"), {}, "the reference gives another result at each call"),
        (pair("x.no_such_thing()", "x"), {}, "the reference at B=6 fails: AttributeError"),
        (pair("1.0", "1.0"), {}, "returns no tensor"),
        (pair("x.to(torch.complex64)", "x"), {}, "has a tensor of complex64"),
        (pair("x", "x"), {"sizes": ({"B": 3},)}, "--sizes can't be given"),
        (pair("x", "x"), {"dtypes": ("int8",)}, "--dtype int8 can't be judged"),
        (NEW, {}, "has no form of a candidate that is known"),
        (
            pair("x", "x"),
            {"op": "softmax"},
            "has the form 'kernelbench', whose reference isn't an op leave out --op softmax",
        ),
    ],
)
def test_what_can_t_be_judged(judged, text, asked, said):
    with pytest.raises(UsageError) as raised:
        judged(text, **asked)
    assert said in f"{raised.value.message} {raised.value.advice}"


def test_a_file_that_can_t_be_loaded(judged):
    found = judged(f"{pair('x', 'x')}\nraise OSError('no compiler')\n")
    assert (found.verdict, found.code) == ("crashed", 5)
    assert "no compiler" in found.line
    with pytest.raises(UsageError, match="the reference can't be run: OSError: no compiler"):
        judged(NEW, {"ref.py": f"{REFERENCE}\nraise OSError('no compiler')\n"}, reference="ref.py")


def test_the_example(judged):
    text = (Path(__file__).parents[2] / "examples" / "judged_model.py").read_text()
    found = judged(text.replace("4096, 1024", "12, 40"))
    assert (found.verdict, found.calls.only_torch) == ("right", True)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("torch.ones(6, 64)", "are the same for every seed, so a result that was kept would be right"),
        ("torch.manual_seed(7) and torch.rand(6, 64)", "are the same for every seed"),
        ("torch.full((6, 64), float(next(COUNT)))", "differ from one time to the next for the same seed"),
    ],
)
def test_inputs_that_nothing_could_be_judged_by(judged, inputs, said):
    text = pair("x * 2", "x * 2").replace("torch.rand(6, 64)", inputs)
    with pytest.raises(UsageError, match=said):
        judged(f"import itertools\n\nCOUNT = itertools.count()\n{text}")


@pytest.mark.slow  # test_inputs_that_nothing_could_be_judged_by has how inputs are drawn
@pytest.mark.parametrize(
    "drawn", ["numpy.random.rand(6, 64)", rare("[[random.random() for _ in range(64)] for _ in range(6)]")]
)
def test_inputs_may_be_drawn_by_numpy_and_by_python(judged, drawn):
    text = pair("x * 2", "x + x").replace("torch.rand(6, 64)", f"torch.tensor({drawn})")
    assert judged(f"import random\n\nimport numpy\n{text}").verdict == "right"


def test_outputs_that_depend_on_no_input_are_told(judged):
    found = judged(pair("torch.softmax(x[:, :1], 1)", "torch.ones_like(x[:, :1])"))
    assert found.verdict == "right"
    assert found.line.endswith("; the reference gives the same for other inputs")
    assert "The reference gives the same outputs for other inputs, so a constant is right here." in found.notes


@pytest.mark.parametrize(
    ("body", "new", "told"),
    [
        ("x.t().contiguous()", "x.clone().t()", True),
        # test_reference_op.py has that nothing is noted of these.
        rare("x.clone().t()", "x.clone().t()", False),
        rare("x.clone().t()", "x.t().clone(memory_format=torch.contiguous_format)", False),
    ],
)
def test_outputs_in_another_order_in_memory_are_told(judged, body, new, told):
    said = "; its outputs lie in memory in another order than the reference's"
    found = judged(pair(body, new))
    assert (found.verdict, found.line.endswith(said)) == ("right", told)


@pytest.mark.slow  # test_the_example has the command's way, test_intact_settings.py settings
@pytest.mark.usefixtures("functions_noted")
@pytest.mark.parametrize("setting", ["fp32_precision = 'tf32'", rare("allow_tf32 = True")])
def test_a_candidate_may_allow_tf32_in_either_way(judged, setting):
    text = pair("x @ x.t()", "x @ x.t()").replace(
        "class ModelNew", f"torch.backends.cuda.matmul.{setting}\nclass ModelNew"
    )
    with intact.settings_kept():
        assert judged(text).verdict == "right"
