"""Prints what cases of the scenario `ci` launch, with the harness that PYTHONPATH names: no GPU, just the compiler.

    PYTHONPATH=TREE python launched.py FOLDER GLOB...

FOLDER keeps what was compiled (tests/collection/test_kernels.py). Prints a JSON object: for each case its launches,
each a list of the file's name, the entry, macros, grid, block, other options, and a hash of the entry's machine code.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import scenario
from harness.model import Case
from harness.ops import Catalogue, Context, Op


def kernel_tests() -> ModuleType:
    """tests/collection/test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location(
        "kernels", Path(__file__).parents[1] / "collection" / "test_kernels.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    return module


def launches(kernels: ModuleType, folder: Path, op: Op, case: Case) -> list[list[Any]]:
    """What the case launches on aligned tensors, in order."""
    found: list[list[Any]] = []

    def load(file: Path, entry: str, macros: dict[str, str | int]) -> Any:
        def launched(grid: int | tuple[int, ...], block: int, *_: object, **options: int) -> None:
            asked = kernels.Compilation(file, tuple(macros.items()), kernels.MEASURED)
            code = asked.result(folder, may_warn=True)[entry].code
            found.append([file.name, entry, macros, grid, block, options, code])

        return kernels.FakeKernel(launched)

    variant = op.variants[case.variant]
    with pytest.MonkeyPatch.context() as patch:
        kernels.pretend_gpu(patch, load)
        launch = variant.prepare(Context(case, None, None, kernels.GENERATOR, op))
        inputs, outputs = op.tensors(variant)
        launch(next(kernels.alignments(inputs + outputs, case.values, case.dtype)))
    return found


def main(folder: Path, globs: list[str]) -> None:
    """Print what the cases that match launch."""
    kernels, catalogue = kernel_tests(), Catalogue()
    selection = scenario.Selection("cuda", only=tuple(globs))
    jobs = scenario.plan(scenario.load(scenario.find(["ci"]), catalogue), catalogue, selection).jobs
    print(json.dumps({job.case.id: launches(kernels, folder, catalogue[job.case.op], job.case) for job in jobs}))


if __name__ == "__main__":
    gc.disable()  # some cases import torch, all of which stays
    main(Path(sys.argv[1]), sys.argv[2:])
    gc.freeze()
