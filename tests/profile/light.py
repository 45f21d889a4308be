"""Programs of the standard library alone, which Python itself runs.

sys.executable stands for Python in tests, and each process would start two more.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = (sys._base_executable, "-S")  # type: ignore[attr-defined]
TARGET = (*PYTHON, str(HERE / "light_target.py"))
"""Stands in for the process that runs cases under a tool."""
NCU = (*PYTHON, str(HERE / "fake_ncu.py"))
"""Stands in for Nsight Compute."""
