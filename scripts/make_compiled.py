"""Write tests/collection/compiled.csv: registers, spills and a hash of the machine code of each kernel.

Needs no GPU. Only kernels that changed are compiled: all of them take 2 minutes of a core.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Compile what changed, and write the file."""
    sys.path.insert(0, str(ROOT))
    from tests.collection import compilations, test_kernels

    with tempfile.TemporaryDirectory() as folder:
        compilations.write(test_kernels.all_compilations(), Path(folder))


if __name__ == "__main__":
    main()
