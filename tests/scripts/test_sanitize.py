"""compute-sanitizer runs the tests of our kernels: their folder has moved once, and nothing told the script."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_folders_that_are_checked_have_the_tests_of_all_kernels_on_a_gpu() -> None:
    text = (ROOT / "scripts" / "sanitize.sh").read_text(encoding="utf-8")
    folders = [ROOT / found for found in re.findall(r"tests/[\w/]+", text)]
    assert folders
    named = "\n".join(file.read_text(encoding="utf-8") for folder in folders for file in folder.rglob("test_*.py"))
    assert named.count("pytest.mark.gpu") > 100
    families = {path.name for path in (ROOT / "kernels").iterdir() if path.is_dir() and any(path.glob("*.cu"))}
    assert families - {"include"} <= {path.name for folder in folders for path in folder.iterdir()}
