"""Write tests/collection/compiled.csv, and compiled.zip: what kernels compile to, so that tests needn't compile them.

compiled.csv has registers, spills and a hash of the machine code of each kernel, compiled.zip the texts that tests ask
for besides. Needs no GPU. For the former only kernels that changed are compiled: all of them take 2 minutes of a core.
The latter is what tests with the fixture `kept` or `launched` leave in an empty cache, which takes half a minute.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ASKING = ("collection", "scripts")
"""The folders of tests that ask for texts."""


class OnlyKept:
    """Runs the tests that keep what they compiled, and no others."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if {"kept", "launched"} & {*getattr(item, "fixturenames", ())}]


def main() -> None:
    """Compile what changed, and write the files. Exits with 1 if a test that asks for texts fails."""
    sys.path.insert(0, str(ROOT))
    from tests.collection import compilations, test_kernels, texts

    with tempfile.TemporaryDirectory() as folder:
        compilations.write(test_kernels.all_compilations(), Path(folder))
    compilations.committed.cache_clear()
    texts.COMMITTED.unlink(missing_ok=True)
    texts.committed.cache_clear()
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-m", "not gpu", "-o", f"cache_dir={folder}"]
        if pytest.main([*options, *(str(ROOT / "tests" / name) for name in ASKING)], plugins=[OnlyKept()]):
            sys.exit(1)
        texts.write(Path(folder) / "d" / "kernels")


if __name__ == "__main__":
    main()
