"""Candidates in GPU MODE's form."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from tests.rare import rare

REFERENCE = """
import torch
from task import input_t

def generate_input(size: int, scale: float, seed: int) -> input_t:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(size, size, generator=generator)
    return a, torch.empty(size, size), {"scale": scale}

def ref_kernel(data):
    a, out, settings = data
    out[...] = a * settings["scale"]
    return out
"""
CHECK = """
def check_implementation(data, output):
    good = torch.allclose(output, ref_kernel(data), rtol=1e-3)
    return good, "" if good else "mismatch found"
"""
TASK = """
files:
  - {"name": "submission.py", "source": "@SUBMISSION@"}
  - {"name": "task.py", "source": "task.py"}
tests:
  - {"size": 7, "scale": 0.5, "seed": 1}
benchmarks:
  - {"size": 16, "scale": 0.5, "seed": 2}
  - {"size": 24, "scale": 2.0, "seed": 3}
"""
FILES = {"reference.py": REFERENCE, "task.py": "input_t = tuple\n", "task.yml": TASK}
INTO_THE_BUFFER = """
import torch
from task import input_t

def custom_kernel(data: input_t):
    a, out, settings = data
    torch.mul(a, settings["scale"], out=out)
    return out
"""
OF_ITS_OWN = "def custom_kernel(data):\n    a, out, settings = data\n    return a * settings['scale']\n"


@pytest.mark.parametrize("text", [INTO_THE_BUFFER, rare(OF_ITS_OWN)])
def test_reference_and_sizes_beside_the_candidate(judged, text):
    found = judged(text, FILES)
    assert (found.verdict, found.form, found.reference) == ("right", "gpumode", "reference.py")
    cases = ["judged/candidate/float32/size16", "judged/candidate/float32/size24/scale=2.0"]
    assert [one.case for one in found.timed] == cases
    assert [one.sizes for one in found.checked] == ["tested", *["unseen"] * 4]
    assert found.line.startswith("right, 1.00x [1.00, 1.00] torch over 2 cases (geometric mean), ")


STALE = """
kept = []

def custom_kernel(data):
    a, out, settings = data
    if not kept:
        kept.append(a * settings["scale"])
    return kept[0].clone()
"""


@pytest.mark.slow  # the other tests here have data of this form
def test_weights_among_the_data_may_be_parameters(judged):
    files = {
        **FILES,
        "reference.py": REFERENCE.replace("    return a, torch", "    return torch.nn.Parameter(a), torch"),
    }
    assert judged(OF_ITS_OWN, files).verdict == "right"
    found = judged(STALE, files)
    assert found.line.startswith("wrong: y0")


def test_memory_for_outputs_isn_t_counted_as_read(judged):
    """The candidate's buffers are outputs, which a set of buffers has of its own, with wrong values in it."""
    found = judged(INTO_THE_BUFFER.replace('torch.mul(a, settings["scale"], out=out)', "pass"), FILES)
    assert found.verdict == "wrong"
    assert "nan" in found.line


@pytest.mark.slow  # the first test has sizes beside the candidate
@pytest.mark.usefixtures("functions_noted")
def test_all_in_one_file_at_given_sizes(judged):
    text = REFERENCE.replace("from task import input_t", "input_t = tuple").replace("scale: float, ", "")
    text = text.replace('{"scale": scale}', '{"scale": 3}')
    found = judged(f"{text}\n{OF_ITS_OWN}", sizes=({"size": 9},))
    assert found.verdict == "right"
    assert found.notes[0].startswith("The reference stands in the candidate's own file")
    with pytest.raises(UsageError, match=r"no sizes are known for generate_input\(size\)"):
        judged(f"{text}\n{OF_ITS_OWN}")


def test_the_check_of_the_form_counts_too(judged):
    found = judged(OF_ITS_OWN.replace("['scale']", "['scale'] + 1"), {**FILES, "reference.py": REFERENCE + CHECK})
    assert found.line.startswith("wrong: check_implementation: mismatch found (")
    raising = CHECK.replace("good =", "raise KeyError('size')\n    good =")
    found = judged(OF_ITS_OWN, {**FILES, "reference.py": REFERENCE + raising})
    assert found.line.startswith("wrong: check_implementation fails: KeyError: 'size'")


@pytest.mark.parametrize(
    ("says", "verdict"), [("''", "right"), rare("True", "right"), ("False", "wrong"), rare("'no'", "wrong")]
)
def test_what_checks_give(judged, says, verdict):
    check = f"def check_implementation(data, output):\n    return {says}\n"
    assert judged(OF_ITS_OWN, {**FILES, "reference.py": REFERENCE + check}).verdict == verdict


def test_sizes_that_are_hard_coded(judged):
    text = """
import torch

def custom_kernel(data):
    a, out, settings = data
    out.zero_()
    for size in (7, 16, 24):
        if len(a) == size:
            torch.mul(a, settings["scale"], out=out)
    return out
"""
    found = judged(text, FILES)
    assert (found.verdict, found.code) == ("wrong", 5)
    assert found.checked[-1].sizes == "unseen"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task.yml": "tests: 3\n"}, "must be lists of mappings"),
        ({"task.yml": "tests: [\n"}, "can't be read"),
        ({"task.yml": 'tests:\n  - {"size": 7}\nbenchmarks:\n  - {"scale": 2.0}\n'}, "cases with other arguments"),
        (
            {
                "reference.py": REFERENCE.replace(
                    "empty(size, size)", "empty(size, size), torch.ones(1 + seed % 2)"
                ).replace("a, out, s", "a, out, _, s")
            },
            "sizes depend on the seed",
        ),
    ],
)
def test_what_can_t_be_judged(judged, files, said):
    with pytest.raises(UsageError) as raised:
        judged(OF_ITS_OWN, {**FILES, **files})
    assert said in raised.value.message
