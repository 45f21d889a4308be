"""The page of what harness.nn supports."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]


def script() -> Any:
    path = ROOT / "scripts" / "make_nn_support.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # what scripts share lies beside them
    spec.loader.exec_module(module)
    return module


SCRIPT = script()


def test_the_page_is_as_the_tests_have_it() -> None:
    made = SCRIPT.page(yaml.safe_load(SCRIPT.TABLE.read_text(encoding="utf-8")))
    assert SCRIPT.PAGE.read_text(encoding="utf-8") == made, "run scripts/make_nn_support.py"


def test_a_cell_says_who_computes_it_and_an_error_stands_below_the_table() -> None:
    rows = {"x": {"does": "a thing", "outcome": "kernel", "but": {"softmax": "error: ValueError: x is \\(\\).*"}}}
    made = "\n".join(SCRIPT.functions(rows))
    assert "| a thing | ours | ours | error | ours |" in made
    assert "- a thing, `softmax`: `ValueError: x is ()...`" in made
