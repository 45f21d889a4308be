"""A plug-in adds variants to any op: bundled ones, and ops of other plug-ins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.ops import Catalogue, find
from harness.ops.codes import codes

BY_NAME = """from harness.ops import find

@find("softmax").variant("{name}", "mine", devices=("cpu",), returns=True)
def {name}(ctx):
    return lambda t: (t.x.softmax(1),)
"""
BY_IMPORT = BY_NAME.replace(
    "from harness.ops import find", "from harness.collection.ops.rows.softmax import OP"
).replace('find("softmax")', "OP")


def plugin(folder: Path, name: str, text: str) -> Path:
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.mark.parametrize("text", [BY_NAME, BY_IMPORT], ids=["by name", "by import"])
def test_a_variant_of_a_bundled_op_stands_beside_the_op_s_own(tmp_path: Path, text: str) -> None:
    bundled = list(Catalogue()["softmax"].variants)
    file = plugin(tmp_path, "theirs", text.format(name="theirs"))
    op = Catalogue([file])["softmax"]
    assert list(op.variants) == [*bundled, "theirs"]
    assert op.variants["theirs"].file == file
    assert op.file is not None
    assert op.file.name == "softmax.py"


def test_who_does_not_load_the_plugin_does_not_get_its_variant(tmp_path: Path) -> None:
    loaded = Catalogue([plugin(tmp_path, "theirs", BY_NAME.format(name="theirs"))])
    assert "theirs" not in Catalogue()["softmax"].variants
    assert "theirs" in loaded["softmax"].variants


def test_a_file_that_is_loaded_again_after_a_change_has_what_it_says_now(tmp_path: Path) -> None:
    Catalogue([plugin(tmp_path, "theirs", BY_NAME.format(name="before"))])
    variants = Catalogue([plugin(tmp_path, "theirs", BY_NAME.format(name="after"))])["softmax"].variants
    assert "after" in variants
    assert "before" not in variants


def test_an_op_of_another_plugin_gets_a_variant_whichever_name_its_file_has(tmp_path: Path) -> None:
    text = "from harness.ops import Op\nOP = Op('mine', '', {'N': ''}, reference=lambda c, t: {})\n"
    own = plugin(tmp_path, "z_own", text)
    more = plugin(tmp_path, "a_more", BY_NAME.replace("softmax", "mine").format(name="more"))
    assert list(Catalogue([own, more])["mine"].variants) == ["more"]
    with pytest.raises(UsageError, match=r"a_more\.py:3: no op is named 'mine'"):
        Catalogue([more])


def test_two_plugins_with_one_name_for_a_variant_are_both_named(tmp_path: Path) -> None:
    files = [plugin(tmp_path, name, BY_NAME.format(name="same")) for name in ("one", "two")]
    with pytest.raises(UsageError, match=r"op 'softmax' has two variants named 'same': .*one\.py:3 and .*two\.py:3"):
        Catalogue(files)


def test_a_name_that_the_op_has_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"two variants named 'tuned': .*softmax\.py:\d+ and .*theirs\.py:3"):
        Catalogue([plugin(tmp_path, "theirs", BY_NAME.format(name="tuned"))])


def test_an_op_with_a_taken_name_is_told_that_it_could_be_a_variant(tmp_path: Path) -> None:
    text = "from harness.ops import Op\nOP = Op('softmax', '', {'N': ''}, reference=lambda c, t: {})\n"
    with pytest.raises(UsageError, match="there is an op named 'softmax' already") as caught:
        Catalogue([plugin(tmp_path, "theirs", text)])
    assert "@find('softmax').variant" in caught.value.advice


def test_a_misspelt_op_is_said_with_the_line_and_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"theirs\.py:3: no op is named 'sofmax'") as caught:
        Catalogue([plugin(tmp_path, "theirs", BY_NAME.replace("softmax", "sofmax").format(name="x"))])
    assert caught.value.advice == "did you mean 'softmax'?"


def test_the_code_of_an_added_variant_covers_its_plugin_and_the_op_s_own_does_not(tmp_path: Path) -> None:
    def of(text: str) -> tuple[str, str]:
        found = codes([Catalogue([plugin(tmp_path, "theirs", text)])["softmax"]])
        return found["softmax", "theirs"].digest, found["softmax", "tuned"].digest

    before = of(BY_NAME.format(name="theirs"))
    after = of(BY_NAME.format(name="theirs").replace("softmax(1)", "softmax(-1)"))
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_the_kernel_beside_the_plugin_is_found_before_the_bundled_ones(tmp_path: Path) -> None:
    op = Catalogue([file := plugin(tmp_path, "theirs", BY_NAME.format(name="theirs"))])["softmax"]
    (tmp_path / "softmax.cu").write_text("")
    assert op.find("softmax.cu", file) == tmp_path / "softmax.cu"
    assert op.find("softmax.cu").parent.name == "rows"


def test_find_outside_of_a_plugin_gives_the_bundled_op() -> None:
    assert find("softmax").name == "softmax"
    with pytest.raises(UsageError, match=re.escape("no op is named 'sofmax'")):
        find("sofmax")
