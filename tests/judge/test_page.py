"""A judgement as a page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from harness.judge import Calls, Checked, Judgement, Timed, page

NUMBER = {"type": ["number", "null"]}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}


def strict(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


SCHEMA = strict(
    schema={"const": 1},
    verdict={
        "enum": ["right", "wrong", "implausible", "crashed", "timeout", "out_of_memory", "unsupported"],
    },
    line=TEXT,
    code={"enum": [0, 1, 5]},
    candidate=TEXT,
    sha256=TEXT,
    form=TEXT,
    reference=TEXT,
    machine=TEXT,
    seed={"type": "integer"},
    command=TEXT,
    checked={
        "type": "array",
        "items": strict(case=TEXT, status=TEXT, why=TEXT, sizes={"enum": ["given", "tested", "unseen"]}),
    },
    timed={
        "type": "array",
        "items": strict(
            case=TEXT, status=TEXT, why=TEXT, time=NUMBER, low=NUMBER, high=NUMBER, of_ceiling=NUMBER,
            baselines={"type": "object", "additionalProperties": {"type": "number"}},
            missing={"type": "object", "additionalProperties": TEXT},
            best=TEXT, speedup=NUMBER, speedup_low=NUMBER, speedup_high=NUMBER, reason=TEXT, warnings=TEXTS,
        ),
    },
    speedup=NUMBER,
    calls={"anyOf": [{"type": "null"}, strict(torch=TEXTS, others=TEXTS, only_torch={"type": "boolean"})]},
    notes=TEXTS,
    unpromised=TEXTS,
)  # fmt: skip


def test_json_has_a_schema(doubling) -> None:
    right = doubling("def double(x):\n    return x + x\n", dtypes=("float32",))
    wrong = doubling("def double(x):\n    return x\n", dtypes=("float32",))
    for one in (right, wrong):
        jsonschema.validate(json.loads(page.as_json(one)), SCHEMA)


@pytest.fixture
def judgement() -> Judgement:
    timed = Timed(
        "softmax/candidate/float32/M1-N2", "ok", time=2e-6, low=1.9e-6, high=2.1e-6, of_ceiling=0.912,
        baselines={"eager": 4e-6, "compile": 3e-6}, missing={"compile_autotune": "crashed: no"}, best="compile",
        speedup=1.5, speedup_low=1.4, speedup_high=1.6, reason="Too few bytes in flight.", warnings=("noisy: wide",),
    )  # fmt: skip
    return Judgement(
        "right", "right, 1.50x [1.40, 1.60] torch.compile, 91% of the ceiling", 0, "mine.py", "f00d" * 16, "ops",
        "op softmax", "A machine", 7, "harness judge mine.py", (Checked("softmax/candidate/float32/M3-N5", "ok"),),
        (timed,), 1.5, Calls(("aten.mm",)), ("The reference runs in float64.",), ("Nothing is promised.",),
    )  # fmt: skip


def test_the_verdict_comes_first(judgement) -> None:
    lines = page.text(judgement).splitlines()
    assert lines[0] == judgement.line
    assert lines[3:5] == ["  candidate: mine.py, SHA-256 f00df00df00d", "  form: ops; reference: op softmax"]
    assert "  time: 2.000 us [1.900 us, 2.100 us]" in lines
    assert "  of the ceiling: 91.2% (inputs and outputs, each moved once, on this machine)" in lines
    assert "  torch, compile: 3.000 us, 1.50x (the fastest)" in lines
    assert "  torch, compile_autotune: no time, crashed: no" in lines
    assert "  why not faster: Too few bytes in flight." in lines
    assert "  Besides its own kernels it calls torch: aten.mm." in lines
    assert lines[-2:] == ["Not promised", "  Nothing is promised."]


def test_what_was_checked_and_where_stands_on_the_page(judgement) -> None:
    case = "softmax/candidate/float32/M3-N5"
    checked = (Checked(case, "out_of_memory", "too large", "given"), Checked(case, "ok", "nothing", "tested"))
    lines = page.text(replace(judgement, checked=(*checked, Checked(case, "declined", "no")))).splitlines()
    assert lines[5:8] == [
        "  machine: A machine", "  seed: 7 (--seed 7 draws the same sizes)", "  The reference runs in float64.",
    ]  # fmt: skip
    assert lines[9:13] == [
        "Checked",
        f"  out of memory  {case} (given sizes): too large",
        f"  ok  {case} (tested sizes)",
        f"  declined  {case} (unseen sizes): no",
    ]
    assert "  warning: noisy: wide" in lines
    without = page.text(replace(judgement, checked=(), machine="", form="")).splitlines()
    assert "Checked" not in without
    assert not any(line.startswith(("  machine", "  form")) for line in without)


def test_a_case_without_a_time_says_why(judgement) -> None:
    timed = Timed("softmax/candidate/float32/M1-N2", "out_of_memory", "too large", baselines={"eager": 4e-6})
    lines = page.text(replace(judgement, timed=(timed,))).splitlines()
    at = lines.index(timed.case)
    assert lines[at + 1 : at + 3] == ["  out of memory: too large", "  torch, eager: 4.000 us"]


def test_quotes_stay_as_they_are_in_markdown(judgement) -> None:
    assert page.markdown(replace(judgement, line='isn\'t "y"')).startswith('# isn\'t "y"\n')


def test_markdown_obeys_nothing_that_a_candidate_said(judgement) -> None:
    written = page.markdown(replace(judgement, line="wrong: <img src=x> [a](b)\n# head\x1b[31m `code`"))
    assert written.splitlines()[0] == "# wrong: &lt;img src=x&gt; \\[a\\](b) \\# head\ufffd\\[31m \\`code\\`"


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            Calls(("aten.mm",), (), True),
            "It has no kernel of its own: all that it computes are calls of torch (aten.mm).",
        ),
        (Calls((), ("mine::op",)), "It calls operators of other libraries (mine::op)."),
        (Calls(), "It computes nothing by calls of torch: its kernels are its own, or compiled."),
    ],
)
def test_what_it_calls(judgement, calls, said) -> None:
    assert f"  {said}" in page.text(replace(judgement, calls=calls)).splitlines()
