"""Ops are found by file name; what is wrong with one is said with its file."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.ops import Catalogue
from tests.one_test import one_test

SHEET = "from harness.ops import Op\nOP = Op('{name}', '', {{'N': 'elements'}})\n"


def plugin(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


def test_bundled_ops_are_found():
    catalogue = Catalogue()
    assert {"copy", "prelu"} <= set(catalogue)
    assert list(catalogue["prelu"].variants) == [
        *("eager", "compile", "compile_autotune"),
        *("naive", "naive64", "packed", "packed64", "tuned"),
    ]
    assert catalogue["prelu"].file.name == "prelu.py"


def test_every_bundled_op_has_the_name_of_its_file_and_a_twin_in_its_family():
    """Collectives, whole steps, and pipelines that feed them, have no kernels of their own."""
    for op in Catalogue().values():
        twin = op.find(f"{op.name}.cu")
        assert op.file.stem == op.name
        if op.file.parent.name in ("collectives", "pipeline", "training", "decoding"):
            assert not twin.exists()
            continue
        assert twin.is_file()
        assert twin.parent.name == op.file.parent.name


@one_test("op", Catalogue().values(), ids=lambda op: op.name)
def test_the_role_of_every_bundled_variant_fits_what_it_is(op):
    """Each op has something to be compared with; torch's code is the library's, and a text's kernels name its rows."""
    roles = {variant.name: variant.role for variant in op.variants.values()}
    assert {"baseline", "control"} & set(roles.values())
    for variant in op.variants.values():
        # The threads and queues of a pipeline are ours on every device.
        if variant.runs_on("cpu") and op.file.parent.name != "pipeline":
            assert variant.is_library, variant.name
        if variant.role == "published":
            assert variant.rows, variant.name
    assert roles.get("tuned", "ours") == "ours"


def test_only_the_library_s_copies_are_controls():
    controls = [(op.name, v.name) for op in Catalogue().values() for v in op.variants.values() if v.role == "control"]
    assert controls == [("copy", "eager"), ("copy", "memcpy")]


def test_a_plugin_is_found_with_its_own_kernels(tmp_path):
    (tmp_path / "mine.cu").write_text("")
    op = Catalogue([plugin(tmp_path, "mine", SHEET.format(name="mine"))])["mine"]
    assert op.find("mine.cu") == tmp_path / "mine.cu"
    assert op.find("prelu.cu").parent.name == "activation"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SHEET.format(name="prelu"),
            r"bad.py:2: there is an op named 'prelu' already \(.*ops/activation/prelu.py:\d+\)$",
        ),
        ("x = 1\n", "bad.py: defines no op"),
        ("\n1 / 0\n", r"bad.py: ZeroDivisionError: division by zero \(.*bad\.py:2 in <module>: 1 / 0\)"),
        ("def f(:\n", r"bad.py:1: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "bad.py: SystemExit: 0"),
        ("raise GeneratorExit\n", "bad.py: GeneratorExit"),
        (
            SHEET.format(name="a") + "OP.variant('v', '')(print)\nOP.variant('v', '')(print)\n",
            r"bad.py:4: op 'a' has a variant named 'v' already \(.*bad.py:3\)$",
        ),
    ],
)
def test_a_bad_plugin_is_one_clear_error(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        Catalogue([plugin(tmp_path, "bad", text)])


def test_a_mistake_that_the_harness_finds_in_a_plugin_keeps_its_advice(tmp_path):
    text = SHEET.format(name="a") + "OP.variant('v', '', role='baselin')(print)\n"
    with pytest.raises(UsageError, match=r"bad\.py:3: variant 'v' has the role 'baselin'$") as caught:
        Catalogue([plugin(tmp_path, "bad", text)])
    assert caught.value.advice == "did you mean 'baseline'?"


@pytest.mark.parametrize("text", ["import sys\nsys.exit(0)\n", "1 / 0\n"])
def test_a_bad_entry_point_is_named(tmp_path, monkeypatch, text):
    plugin(tmp_path, "leaving", text)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("theirs", "leaving", "harness.ops")
    monkeypatch.setattr("harness.discover.installed_entry_points", lambda group: [entry])
    with pytest.raises(UsageError, match=r"entry point 'theirs' \(leaving\): (SystemExit|ZeroDivisionError)"):
        Catalogue()


def test_ctrl_c_while_a_plugin_is_loaded_is_no_error_of_the_plugin(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Catalogue([plugin(tmp_path, "slow", "raise KeyboardInterrupt\n")])


def test_a_missing_plugin(tmp_path):
    with pytest.raises(UsageError, match="not a Python file"):
        Catalogue([tmp_path / "none.py"])


def test_the_nearest_name_is_offered():
    with pytest.raises(KeyError, match="did you mean 'prelu'"):
        Catalogue()["prelou"]


@pytest.mark.slow  # test_layers.py has it of `harness list`
def test_listing_ops_imports_neither_torch_nor_the_compiler():
    code = "import sys, harness.ops; harness.ops.Catalogue(); print('torch' in sys.modules, 'cuda.core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
