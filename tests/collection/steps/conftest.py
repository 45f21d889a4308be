"""Steps have sections of reports of their own; their tests begin with the runs that all tests of reports have."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from harness.ops import Catalogue


def _fixtures_of_reports() -> ModuleType:
    """Pytest gives fixtures to tests in and below the folder of their conftest.py, and these lie in another one."""
    file = Path(__file__).parents[2] / "report" / "conftest.py"
    spec = spec_from_file_location("fixtures_of_reports", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Catalogue()  # whose steps add metrics
_found = _fixtures_of_reports()
gpu, limits, measured, make_run, run, apart = (
    getattr(_found, name) for name in ("gpu", "limits", "measured", "make_run", "run", "apart")
)
