"""The JSON Schema that editors use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from harness.ops import Catalogue
from harness.paths import data
from harness.scenario import json_schema
from harness.scenario.documents import read
from tests.one_test import one_test

jsonschema = pytest.importorskip("jsonschema")
FOLDER = data("scenarios")
FILES = sorted(FOLDER.glob("*.yaml"))


def test_the_file_is_current() -> None:
    assert Catalogue()  # floors and claims may be of metrics that ops declare
    written = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    assert written == json_schema(), "run scripts/make_schema.py"


@cache
def validator() -> Any:
    return jsonschema.Draft202012Validator(json_schema())


@one_test("file", FILES, ids=lambda file: file.stem)
def test_bundled_scenarios_name_the_schema_and_fit_it(file: Any) -> None:
    assert file.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=schema.json\n")
    for document in read(file):
        validator().validate(document.data)


@one_test(
    "change",
    [
        {"shapes": [{"N": 1.5}]},
        {"shapes": [{"N": -1}]},
        {"shapes": {"product": {"N": [1]}, "zip": {"N": [1]}}},
        {"cach": "hot"},
        {"expect": {"tuned": {"speed": 1}}},
        {"expect": {"tuned": [{"speedup": 1, "where": ""}]}},
        {"expect": {"tuned": []}},
        {"timing": {"precision": 0}},
        {"curve": {"over": "N"}},
        {"variants": []},
    ],
)
def test_editors_mark_what_the_harness_refuses(change: dict[str, Any]) -> None:
    floors = {"tuned": {"speedup": 1}, "eager": [{"of_ceiling": 0.9, "where": "*/N1"}, {"of_ceiling": 0.8}]}
    good = {"title": "t", "op": "copy", "shapes": {"product": {"N": [1, "2**4"]}}, "expect": floors}
    assert validator().is_valid(good)
    assert not validator().is_valid(good | change)


def test_every_key_is_described() -> None:
    def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        for model in (schema, *schema["$defs"].values()):
            yield from model["properties"].items()

    assert [name for name, key in properties(json_schema()) if not key.get("description")] == []
