"""Every bundled baseline keeps the contract of its op, in every dtype and with every choice, as the check sees it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from harness.devices.cpu import Cpu
from harness.model import Case, Value
from harness.ops import Catalogue, Choice, Op
from harness.session import Session

OPS = Catalogue()
SIZES = {"T": 32, "V": 4, "U": 1}
"""Sizes that have a meaning of their own; all others are 8."""


class SmallCpu(Cpu):
    """A processor with next to no cache, so that few sets of buffers are enough."""

    cache_bytes = 2**10


def values(choice: Choice) -> list[Value]:
    return list(choice.values or {choice.usual, choice.low, choice.high})


def cases(op: Op) -> Iterator[Case]:
    """A small case for each variant that isn't compiled, which takes seconds, each dtype and each choice."""
    shape = tuple((symbol, SIZES.get(symbol, 8)) for symbol in op.symbols)
    for variant in op.variants.values():
        if "cpu" in variant.devices and variant.name != "compile":
            for dtype, chosen in itertools.product(op.dtypes, itertools.product(*map(values, op.choices.values()))):
                yield Case(op.name, variant.name, dtype, shape, tuple(zip(op.choices, chosen, strict=True)), 1, "cpu")


@pytest.mark.parametrize("op", OPS.values(), ids=list(OPS))
def test_baselines_keep_the_contract(op: Op) -> None:
    made = list(cases(op))
    assert made
    for case in made:
        with Session(case, op, SmallCpu()) as session:
            session.prepare()
            assert session.check() is None
            assert session.check_inputs() is None
        assert session.warnings == []
