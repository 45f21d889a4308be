"""The rows of the public texts: the page that lists them, and what the bundled ops and scenarios name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.ops import Catalogue
from harness.scenario import load
from harness.scenario.definition import Definition

SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"
LISTED = re.findall(r"^\| ([A-Z]\d+) \|", (SCENARIOS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
CATALOGUE = Catalogue()
EVERY = load(sorted(SCENARIOS.glob("*.yaml")), CATALOGUE)


def test_each_row_is_listed_once() -> None:
    texts = {"P": 2, "O": 22, "S": 17, "D": 5, "R": 4}
    every = [f"{text}{number}" for text, last in texts.items() for number in range(1, last + 1)]
    assert every == LISTED


def test_every_row_that_an_op_names_is_one_of_the_texts() -> None:
    named = {row for op in CATALOGUE.values() for variant in op.variants.values() for row in variant.rows}
    assert named - set(LISTED) == set()
    assert len(named) > 15


@pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)
def test_every_row_that_a_scenario_names_has_a_claim_line(scenario: Definition) -> None:
    assert set(scenario.rows) - set(LISTED) == set()
    assert {claim.row for claim in scenario.claims} == set(scenario.rows)
