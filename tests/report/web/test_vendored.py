"""Published files of others stand in the page unchanged, each with its licence."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from harness.report.web import parts

WEB = Path(parts.__file__).parent
VENDOR = WEB / "vendor"
PARTS = json.loads((VENDOR / "parts.json").read_text(encoding="utf-8"))
FILES = {name: file for part in PARTS for name, file in part["files"].items()}
AXE = Path(__file__).with_name("axe.min.js")


def test_each_file_is_as_it_was_published() -> None:
    found = {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in FILES}
    assert found == {name: file["sha256"] for name, file in FILES.items()}


def test_no_other_file_lies_beside_them() -> None:
    assert {file.name for file in VENDOR.iterdir()} == {*FILES, "parts.json"}


def test_each_part_has_the_text_of_its_licence_and_says_where_it_is_from() -> None:
    for part in PARTS:
        (licence,) = (name for name in part["files"] if name.endswith(".LICENSE.txt"))

        assert "Permission is hereby granted, free of charge" in (VENDOR / licence).read_text(encoding="utf-8")
        assert part["licence"] == "MIT"
        assert part["source"].startswith("https://registry.npmjs.org/")
        assert part["version"] in part["source"]


def test_the_page_takes_every_script_and_style_that_is_there() -> None:
    there = {file.relative_to(WEB).as_posix() for file in WEB.rglob("*") if file.suffix in (".js", ".css")}
    assert there == {*parts.SCRIPTS, *parts.STYLES}


def test_our_scripts_and_styles_are_short_and_make_no_markup_of_texts() -> None:
    for file in (WEB / "assets").iterdir():
        content = file.read_text(encoding="utf-8")
        assert len(content.splitlines()) <= 400, file
        # One place takes markup, which the report made and escaped.
        assert content.count("innerHTML") == (file.name == "drawer.js"), file
        assert not any(word in content for word in ("eval(", "document.write", "fetch(", "XMLHttpRequest")), file


def test_axe_is_as_it_was_published() -> None:
    published = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == published
    assert "Mozilla Public License" in AXE.with_name("axe.LICENSE.txt").read_text(encoding="utf-8")
