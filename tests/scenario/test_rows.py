"""The rows of the public texts that bundled ops and scenarios name. tests/scripts/test_make_rows.py has the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.ops import Catalogue
from harness.scenario import load
from tests.one_test import one_test

SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"
LISTED = re.findall(r"^\| ([A-Z]\d+) \|", (SCENARIOS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue()


def test_every_row_that_an_op_names_is_one_of_the_texts(catalogue: Catalogue) -> None:
    named = {row for op in catalogue.values() for variant in op.variants.values() for row in variant.rows}
    assert named - set(LISTED) == set()
    assert len(named) > 15


@one_test("file", sorted(SCENARIOS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_row_that_a_scenario_names_has_a_claim_line(file: Path, catalogue: Catalogue) -> None:
    for scenario in load([file], catalogue):
        assert set(scenario.rows) - set(LISTED) == set(), scenario.name
        assert {claim.row for claim in scenario.claims} == set(scenario.rows), scenario.name
