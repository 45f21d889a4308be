"""A declaration that can't be meant is an error with its file, its line and what is allowed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UsageError
from harness.model import Case
from harness.ops import Catalogue, find
from harness.ops.declarations import check_callable
from tests.one_test import one_test

HEAD = "from harness.ops import *\nfrom harness.ops import Op, Tensor, Choice, Work, Traffic\n"
"""Two lines, so that a declaration below begins at line 3."""

OP = "OP = Op('mine', 'y = x', {{'N': 'elements'}}, reference=lambda c, t: {{}}{fields})\n"
VARIANT = "@OP.variant('one', 'one line'{fields})\ndef one(ctx):\n    return lambda t: None\n"


def declared(folder: Path, text: str) -> Catalogue:
    file = folder / "mine.py"
    file.write_text(HEAD + text)
    return Catalogue([file])


OPS = [
    ("timer='hots'", "op 'mine' has the timer 'hots'", "did you mean 'host'"),
    ("dtypes=('float31',)", "op 'mine' has the dtype 'float31'", "did you mean 'float32'"),
    ("dtypes='float32'", "dtypes of op 'mine' is 'float32'", "a tuple is allowed"),
    ("inputs=(Tensor('x', ('N',)))", "inputs of op 'mine' is Tensor", "mind the comma"),
    ("inputs=(Tensor('x', ('M',)),)", "op 'mine' has no symbol 'M'", "allowed: N, world"),
    ("inputs=(Tensor('x', ['N']),)", "shape of tensor 'x' is ['N']", ""),
    ("choices={'layout': 'nhwc'}", "choices of op 'mine' has 'layout': 'nhwc'", "for example"),
    ("choices=['layout']", "choices of op 'mine' is ['layout']", "for example"),
    ("tolerance={'float32': 1e-3}", "tolerance of op 'mine' has 'float32': 0.001", "for example"),
    ("tolerance={'float23': (1, 1)}", "op 'mine' has the dtype 'float23'", "did you mean 'float32'"),
    ("flops={'tf': 'N'}", "flops of op 'mine' has the type 'tf'", "did you mean 'tf32'"),
    ("defaults={'M': '1'}", "the defaults of op 'mine' has the symbol 'M'", "N"),
    ("items='N +'", "the expression 'N +' of op 'mine' isn't an expression (integers,", ""),
    ("items='N / 2'", "the expression 'N / 2' of op 'mine' divides with '/'", ""),
    ("item=3", "item of op 'mine' is 3, which isn't text", ""),
    ("work=lambda s: Work(1, 2)", "work of op 'mine' doesn't take 2 arguments", "see harness.ops"),
    ("check=3", "check of op 'mine' is 3, which isn't a function", ""),
    ("pages=3", "pages of op 'mine' is 3, which isn't a function", ""),
]


@pytest.mark.parametrize(("fields", "found", "advice"), OPS, ids=[fields for fields, _, _ in OPS])
def test_a_field_of_an_op_that_cannot_be_meant(tmp_path: Path, fields: str, found: str, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, OP.format(fields=f", {fields}"))
    assert "mine.py:3: " in caught.value.message
    assert found in caught.value.message
    assert advice in caught.value.advice


@one_test(
    ("takes", "function"),
    [
        (False, lambda _s: 1),
        (True, lambda _s, _i: 1),
        (False, lambda _s, _i, _j: 1),
        (True, lambda _s, _i, _j=1: 1),
        (True, lambda _s=1, _i=1: 1),
        (True, lambda *_both: 1),
        (False, lambda _s, _i, *, _j: 1),
        (True, lambda _s, _i, *, _j=1: 1),
        (False, lambda _s, *, _i: 1),
        (True, functools.partial(lambda _a, _s, _i: 1, 0)),
        (True, functools.wraps(lambda _s, _i: 1)(lambda *_a, **_b: 1)),
        (False, functools.wraps(lambda _s: 1)(lambda *_a, **_b: 1)),
        (True, max),
    ],
)
def test_what_takes_two_arguments(takes: bool, function: Callable[..., Any]) -> None:
    with nullcontext() if takes else pytest.raises(UsageError, match="doesn't take 2 arguments"):
        check_callable("op 'mine'", 2, work=function)


VARIANTS = [
    ("timer='hots'", "variant 'one' has the timer 'hots'", "did you mean 'host'"),
    ("devices=('cdua',)", "variant 'one' has the device 'cdua'", "did you mean 'cuda'"),
    ("devices='cuda'", "devices of variant 'one' is 'cuda'", "a tuple is allowed"),
    ("role='baselin'", "variant 'one' has the role 'baselin'", "did you mean 'baseline'"),
    ("retruns=True", "variant 'one' of op 'mine' has the field 'retruns'", "did you mean 'returns'"),
    ("rows='a row'", "rows of variant 'one' is 'a row'", "a tuple is allowed"),
    ("unsupported=lambda: None", "unsupported of variant 'one' doesn't take 1 argument", ""),
    ("traffic=lambda s: Traffic(1, 2)", "traffic of variant 'one' doesn't take 2 arguments", ""),
    ("inputs=(Tensor('x', ('M',)),)", "op 'mine' has no symbol 'M'", "allowed: N, world"),
    ("arithmetic='tf23'", "variant 'one' has the arithmetic 'tf23'", "did you mean 'tf32'"),
    ("arithmetic=lambda s: ()", "arithmetic of variant 'one' doesn't take 2 arguments", ""),
]


@pytest.mark.parametrize(("fields", "found", "advice"), VARIANTS, ids=[fields for fields, _, _ in VARIANTS])
def test_a_field_of_a_variant_that_cannot_be_meant(tmp_path: Path, fields: str, found: str, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, OP.format(fields="") + VARIANT.format(fields=f", {fields}"))
    # The line of the decorator, or of the function below it: Python versions differ.
    assert "mine.py:4: " in caught.value.message or "mine.py:5: " in caught.value.message
    assert found in caught.value.message
    assert advice in caught.value.advice


NAMES = [
    ("Op(3, '', {'N': ''})", "the name of an op is 3, which isn't text"),
    ("Op('a/b', '', {'N': ''})", "the name of an op is 'a/b'"),
    ("Op('a', 3, {'N': ''})", "summary of op 'a' is 3, which isn't text"),
    ("Op('a', '', {'N': '', 'k': ''}, choices={'k': Choice('', ('x',))})", "op 'a' has a symbol and a choice named k"),
    ("Op('a', '', {'world': ''})", "op 'a' has a symbol or a choice named world"),
    ("Tensor(None, ('N',))", "the name of a tensor is None, which isn't text"),
    ("Tensor('x', ('N',), dtype='flot32')", "tensor 'x' has the dtype 'flot32'"),
    ("Choice('layout', ())", "the choice (layout) has neither values nor a range of numbers"),
]


@pytest.mark.parametrize(("text", "found"), NAMES, ids=[text for text, _ in NAMES])
def test_a_name_or_part_that_cannot_be_meant(tmp_path: Path, text: str, found: str) -> None:
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, f"OP = {text}\n")
    assert "mine.py:3: " in caught.value.message
    assert found in caught.value.message


def test_an_op_that_nothing_checks_is_refused(tmp_path: Path) -> None:
    text = OP.format(fields="").replace("reference=lambda c, t: {}", "timer='host'") + VARIANT.format(fields="")
    with pytest.raises(UsageError) as caught:
        declared(tmp_path, text)
    assert "mine.py:3: op 'mine' has neither reference nor check" in caught.value.message
    assert "unchecked=" in caught.value.advice
    said = text.replace("timer='host'", "unchecked='its outputs are random numbers'")
    assert declared(tmp_path, said)["mine"].unchecked


@pytest.mark.parametrize("gives", ["Work(1.5, 2)", "Work(1, -2)", "Work(1, 2, flops=(('float32', 0.5),))"])
def test_work_that_is_not_whole_names_the_function(tmp_path: Path, gives: str) -> None:
    op = declared(tmp_path, OP.format(fields=f", work=lambda s, itemsize: {gives}"))["mine"]
    with pytest.raises(UsageError, match=r"mine\.py:3: gives Work\(.*") as caught:
        op.work_of({"N": 3}, "float32")
    assert "use // in place of /" in caught.value.advice


def test_traffic_that_is_not_whole_names_the_function(tmp_path: Path) -> None:
    text = OP.format(fields="") + VARIANT.format(fields=", traffic=lambda s, itemsize: Traffic(s['N'] / 2, 0)")
    op = declared(tmp_path, text)["mine"]
    with pytest.raises(UsageError, match=r"mine\.py:4: gives Traffic\(read=1\.5"):
        op.traffic_of(op.variants["one"], {"N": 3}, "float32")


def case(**fields: object) -> Case:
    op = find("int8_linear")
    known = {"op": op.name, "variant": next(iter(op.variants)), "dtype": op.dtypes[0]}
    sizes = tuple((name, 16) for name in op.symbols)
    choices = tuple((name, choice.values[0]) for name, choice in op.choices.items())
    return Case(**{**known, "shape": sizes, "choices": choices, **fields})


@one_test(
    ("fields", "found", "advice"),
    [
        ({"variant": "tunde"}, "has the variant 'tunde'", "did you mean 'tuned'?"),
        ({"dtype": "float31"}, "has the dtype 'float31'", ""),
        ({"shape": (("M", 1),)}, "has the sizes M", "op 'int8_linear' has M, "),
        ({"choices": (("scales", "chanel"), ("data", "normal"))}, "'chanel' isn't a value of 'scales'", "allowed: "),
        ({"choices": (("scale", "tensor"),)}, "has the choices scale", "op 'int8_linear' has scales"),
    ],
)
def test_a_case_of_python_that_is_none_of_the_op(fields: dict[str, object], found: str, advice: str) -> None:
    op = find("int8_linear")
    op.refuse(case())
    with pytest.raises(UsageError) as caught:
        op.refuse(case(**fields))
    assert found in caught.value.message
    assert advice in caught.value.advice
