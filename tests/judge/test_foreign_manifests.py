"""Manifests and tasks of others: whatever they hold, they are read or refused, and nothing else."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.judge import isolated
from harness.judge.forms.gpumode import _task
from tests.properties import bounded

KERNEL = {"entry": "k", "grid": ["cdiv(N, 256)"], "block": 256, "arguments": ["x", "y", {"int64": "N"}]}
WHOLE = {
    "source": "k.cu",
    "macros": {"T": {"float32": "float"}, "PACK": 4},
    "scratch": {"sums": {"shape": ["N"], "dtype": "float32"}},
    "kernels": [KERNEL],
}
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["x", "N", "1"])
)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values in a value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(way for key, part in parts for way in places(part, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The same value with another one at a place."""
    if not path:
        return other
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = put(value[path[0]], path[1:], other)
    return made


@pytest.mark.slow  # test_isolated.py has manifests that are refused
@bounded
@given(st.sampled_from(places(WHOLE)), ANY)
def test_a_manifest_is_read_or_refused(path: tuple[Any, ...], other: Any) -> None:
    with suppress(UsageError):
        assert isolated.parsed(json.dumps(put(WHOLE, path, other)), "k.json")["kernels"]


@bounded
@given(st.binary(max_size=64) | st.text(max_size=64).map(lambda text: text.encode(errors="replace")))
def test_a_task_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "task.yml"
    file.write_bytes(content)
    with suppress(UsageError):
        assert _task(file).keys() <= {"tests", "benchmarks", "files"}


def test_a_task_of_others_loads_no_python(tmp_path: Path) -> None:
    (tmp_path / "task.yml").write_text("tests: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(UsageError, match="can't be read"):
        _task(tmp_path / "task.yml")
