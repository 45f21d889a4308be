"""What is told of an error: the whole of it in a record, one line on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.errors import UsageError, brief, described, nearest
from harness.judge import loading
from harness.ops import Catalogue

OP = """
import json
import statistics

def decodes(text):
    return json.loads(text)

def launch(text):
    decodes(text)
"""


@pytest.fixture
def mine(tmp_path: Path) -> ModuleType:
    """A user's file, whose errors are raised inside Python's own packages."""
    file = tmp_path / "mine.py"
    file.write_text(OP)
    spec = importlib.util.spec_from_file_location("mine", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raised(mine: ModuleType) -> ValueError:
    with pytest.raises(ValueError, match="Expecting") as caught:
        mine.launch("nonsense")
    return caught.value


def test_the_innermost_frame_of_the_user_is_marked_and_no_frame_is_lost(mine: ModuleType) -> None:
    text = described(raised(mine))
    first, marked, *frames = text.splitlines()
    assert first == "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert marked == f"> {mine.__file__}:6 in decodes: return json.loads(text)"
    assert "decoder.py" in frames[0]
    assert [frame.rpartition(" in ")[2].partition(":")[0] for frame in frames][-3:] == ["decodes", "launch", "raised"]


def test_a_line_says_what_happened_and_where(mine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    text = described(raised(mine))
    said = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert brief(text) == f"{said} ({mine.__file__}:6 in decodes: return json.loads(text))"
    monkeypatch.chdir(Path(mine.__file__).parent)
    assert brief(text) == f"{said} (mine.py:6 in decodes: return json.loads(text))"


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Modules that a test loads are no other test's."""
    yield
    for name in ("theirs", "harness_plugin_mine", loading.CANDIDATE, loading.REFERENCE):
        sys.modules.pop(name, None)


ALONE = (
    "relative import, but the file is loaded alone, in no package; write 'import x', and run PYTHONPATH=. harness ..."
)
BESIDE = (
    "ModuleNotFoundError: No module named 'theirs', but theirs.py lies beside the file: run PYTHONPATH=. harness ..."
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from . import theirs", ALONE),
        ("from .theirs import X", ALONE),
        ("import theirs", BESIDE),
        ("import nobodys", "ModuleNotFoundError: No module named 'nobodys'"),
        ("from json import theirs", "ImportError: cannot import name 'theirs' from 'json'"),
    ],
)
@pytest.mark.parametrize("name", [loading.CANDIDATE, loading.REFERENCE, ""])
@pytest.mark.usefixtures("forgotten")
def test_a_file_that_imports_one_beside_it_is_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str, name: str
) -> None:
    """name: under which the judge loads the file; a file of --ops without one. The judge finds files beside its own."""
    file = tmp_path / "mine.py"
    file.write_text(f"{text}\nfrom harness.ops import Op\nOP = Op('mine', '', {{'N': 'elements'}})\n")
    (tmp_path / "theirs.py").write_text("X = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if name and text == "import theirs":
        assert loading.load(str(file), name).theirs.X == 1
        return
    with pytest.raises(UsageError if not name else ImportError) as caught:
        loading.load(str(file), name) if name else Catalogue([file])
    error = caught.value.__cause__ if not name else caught.value
    assert isinstance(error, ImportError)
    said = brief(described(error))
    assert said.startswith(told)
    assert said.endswith(f"(mine.py:1 in <module>: {text})")


def test_an_error_of_the_harness_is_all_that_is_said() -> None:
    assert described(UsageError("no table", "make one")) == "no table\nmake one"
    assert brief("no table\nmake one") == "no table"
    assert brief("") == ""
    assert brief("x" * 500) == "x" * 159 + "…"


def test_the_frames_of_a_killed_process_name_the_place_too(tmp_path: Path) -> None:
    import json

    text = (
        "killed by signal SIGSEGV\nFatal Python error: Segmentation fault\n"
        f'  File "{json.__file__}", line 3 in loads\n  File "{tmp_path}/mine.py", line 9 in launch\n'
    )
    assert brief(text) == f"killed by signal SIGSEGV ({tmp_path}/mine.py:9 in launch)"


def test_only_a_spelling_that_is_near_is_suggested():
    assert nearest("tunned", ["tuned", "compile"]) == "did you mean 'tuned'?"
    assert nearest("nope", ["tuned", "compile"]) == "allowed: compile, tuned"


@pytest.mark.parametrize(("word", "meant"), [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16")])
def test_other_names_of_types_are_known(word: str, meant: str) -> None:
    assert nearest(word, ["float32", "float16", "bfloat16"]) == f"did you mean '{meant}'?"
    assert nearest(word, ["float32"]) == "allowed: float32"
