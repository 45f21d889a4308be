"""Whatever stands in a field of a declaration: it is taken, or refused with the file and the line; nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import families, metrics, units
from harness.errors import UsageError
from harness.expressions import ExpressionError
from harness.metrics import METRICS, Metric
from harness.model import Case, Measurement
from harness.ops import Choice, Op, Tensor, Traffic, Work
from harness.processes.messages import Measured, decode_reply, encode
from tests.one_test import one_test
from tests.properties import bounded

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(lambda: 10**5000),  # more digits than Python writes
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=3),
    st.sampled_from(["N", "\udc80", "float32", object(), Op, lambda: 1, lambda a: a, lambda a, b: a]),
    st.binary(max_size=2),
)
KEYS = st.one_of(st.text(max_size=2), st.sampled_from(["N", "float32"]), st.integers())
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.tuples(inner),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=2),
        st.frozensets(st.integers(), max_size=2),
    ),
    max_leaves=4,
)
OP: dict[str, Any] = {
    "name": "mine",
    "summary": "s",
    "symbols": {"N": "elements"},
    "inputs": (Tensor("x", ("N",)),),
    "outputs": (Tensor("y", ("N",)),),
    "defaults": {},
    "choices": {"k": Choice("m", ("a", "b"))},
    "dtypes": ("float32",),
    "reference": lambda ctx, t: {},
    "make": None,
    "check": None,
    "tolerance": {},
    "work": None,
    "flops": {},
    "items": "N",
    "item": "",
    "timer": "graph",
    "unchecked": "",
    "pages": "",
}
VARIANT = {
    "name": "v",
    "summary": "s",
    "role": "ours",
    "rows": (),
    "devices": ("cpu",),
    "inputs": None,
    "outputs": None,
    "encode": None,
    "decode": None,
    "traffic": None,
    "arithmetic": "",
    "unsupported": None,
    "timer": "",
    "returns": False,
    "place": "mine.py:1",
}
COUNTED = OP | {"flops": {"case": "N"}}
TENSOR = {"name": "x", "shape": ("N",), "dtype": "case", "inplace": False, "kept": False}
CHOICE = {"meaning": "m", "values": ("a",), "low": 0.0, "high": 1.0, "default": None}
WORK = {"read": 1, "written": 2, "flops": (("float32", 3),), "sent": 0, "items": 1, "item": "i", "again": 0}
METRIC = {"name": "mine", "title": "t", "unit": units.PLAIN, "value": lambda s: None, "better": "", "keep": 0}
METRIC |= {"relative": "", "of_limits": False, "shown": lambda s: True, "attached": None, "head": "", "sweep": 0}


def use(op: Op, **variant: Any) -> None:
    """Ask an op for all that a plan, a listing and a measurement ask for; what is measured is stored."""
    fields = VARIANT | variant
    op.variant(fields.pop("name"), fields.pop("summary"), **fields)(lambda ctx: lambda t: None)
    op.refuse_unchecked()
    sizes = {**dict.fromkeys(op.symbols, 8), **{name: choice.usual for name, choice in op.choices.items()}, "world": 1}
    for name, made in op.variants.items():
        for dtype in op.dtypes:
            work, traffic = op.work_of(sizes, dtype), op.traffic_of(made, sizes, dtype)
            op.kept_by(made, sizes, dtype)
            done = op.work_done_by(made, sizes, dtype)
            case = Case(op.name, name, dtype, tuple((symbol, 8) for symbol in op.symbols))
            # A plan refuses tensors of a negative size, and of more bytes than 64 bits hold.
            if all(0 <= count < 2**63 for count in (work.read, work.written, traffic.read, traffic.written)):
                reply = Measured(Measurement(case, "ok", work=work, arithmetic=done.flops, traffic=traffic))
                assert decode_reply(encode(reply)) == reply


def op_with(**fields: Any) -> None:
    use(Op(**(OP | fields)))


FACT = {"name": "mine", "title": "t", "unit": units.PLAIN, "hint": ""}
FAMILY = {"family_name": "gemm", "pattern": "x"}
Declaration = tuple[Mapping[str, Any], Callable[..., object]]
DECLARED: dict[str, list[Declaration]] = {
    "ops": [(OP | {"variants": {}}, op_with)],
    "variants": [(VARIANT, lambda **fields: use(Op(**OP), **fields))],
    "parts of ops": [
        (TENSOR, lambda **fields: op_with(inputs=(Tensor(**(TENSOR | fields)),))),
        (CHOICE, lambda **fields: op_with(choices={"k": Choice(**(CHOICE | fields))})),
        (CHOICE, lambda **fields: op_with(choices={"k": Choice(**(CHOICE | {"values": ()} | fields))})),
    ],
    "metrics and families": [
        (METRIC, lambda **fields: metrics.add(Metric(**(METRIC | fields)))),
        ({"after": ""}, lambda after: metrics.add(Metric(**METRIC), after=after)),
        ({"metric": None}, metrics.add),
        (FACT, lambda **fields: metrics.fact(**(FACT | fields))),
        (FAMILY, lambda **fields: families.declare(**(FAMILY | fields))),
    ],
    "what functions give": [
        (WORK, lambda **fields: op_with(work=lambda s, itemsize: Work(**(WORK | fields)))),
        ({"found": None}, lambda found: op_with(work=lambda s, itemsize: found)),
        ({"read": 1}, lambda read: use(Op(**OP), traffic=lambda s, itemsize: Traffic(read, 2))),
        ({"found": 1}, lambda found: use(Op(**OP), traffic=lambda s, itemsize: found)),
        ({"found": (("float32", 8),)}, lambda found: use(Op(**COUNTED), arithmetic=lambda s, itemsize: found)),
        ({"found": (8,)}, lambda found: op_with(outputs=(Tensor("y", lambda s: found),))),
    ],
}


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is declared meanwhile is gone afterwards."""
    monkeypatch.setattr(families, "_DECLARED", {})
    before = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(before)
    families.family.cache_clear()


@pytest.mark.slow  # test_declarations.py and test_sheet.py have wrong fields
@pytest.mark.parametrize("what", DECLARED)
def test_a_field_is_taken_or_refused_with_its_line(what: str) -> None:
    @bounded
    @given(st.sampled_from(DECLARED[what]), st.data())
    def holds(declaration: Declaration, data: st.DataObject) -> None:
        usual, declare = declaration
        METRICS.pop("mine", None)
        said = None
        try:
            declare(**{data.draw(st.sampled_from(sorted(usual))): data.draw(ANYTHING)})
        except UsageError as error:
            said = error
        except ExpressionError:
            pass  # said of the case that has such sizes
        assert said is None or re.match(r"\S*test_any_declaration\.py:\d+: ", said.message), said
        assert said is None or len(f"{said.message}{said.advice}".encode()) < 2000

    holds()


@one_test(
    ("declare", "found", "advice"),
    [
        (lambda: Tensor("x", ("N",), inplace="no"), "inplace of tensor 'x' is 'no'", "True, False"),
        (lambda: Choice("p", low="0", high="1"), "the range of a choice has '0'", "a number is allowed"),
        (lambda: op_with(tolerance={"float32": (1e-3,)}), "tolerance of op 'mine' has (0.001,)", "a relative and"),
        (lambda: op_with(tolerance={"float32": (-1, 0)}), "tolerance of op 'mine' has -1", "from 0 on"),
        (lambda: op_with(summary="\udc80"), "summary of op 'mine' is '\\udc80'", "write it whole"),
        (lambda: op_with(work=lambda s, i: Work(1, 2, items=1.5)), "gives Work(read=1, written=2", "whole numbers"),
        (lambda: op_with(work=lambda s, i: (1, 2)), "gives (1, 2)", "it is to give a Work"),
        (lambda: op_with(outputs=(Tensor("y", lambda s: (s["N"] / 2,)),)), "gives (4.0,) as the shape", "integers"),
        (lambda: metrics.add(Metric(**(METRIC | {"keep": "3"}))), "keep of metric 'mine' is '3'", "declared as int"),
        (lambda: families.declare("gemm", 3), "the pattern 3 isn't text", "a regular expression"),
    ],
)
def test_what_is_wrong_and_what_is_allowed(declare: Callable[[], object], found: str, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        declare()
    assert found in caught.value.message
    assert advice in caught.value.advice
