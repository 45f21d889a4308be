"""Finding files, and what is said of YAML that can't be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.ops import Catalogue, Op, Tensor
from harness.scenario import Overview, find, load, overview
from tests.one_test import one_test

Write = Callable[..., Path]
Refused = Callable[[str], list[tuple[str, str]]]


def test_finds_bundled_names_files_and_folders_each_once(write: Write) -> None:
    write("", "b.yaml")
    write("", "a.yaml")
    write("", "notes.txt")
    [quick] = find(["quick"])
    assert quick.name == "quick.yaml"
    assert quick.is_absolute()
    assert find(["b.yaml", ".", "quick", "b.yaml"]) == [Path("b.yaml"), Path("a.yaml"), quick]


def test_names_that_are_nowhere_are_told_together(write: Write) -> None:
    write("", "mine.yaml")
    Path("empty").mkdir()
    with pytest.raises(InputError) as caught:
        find(["qick", "empty", "mime.yaml", "x" * 300])
    *missing, overlong = caught.value.problems
    assert overlong.message == "can't be read: File name too long"
    assert [(p.where, p.advice) for p in missing] == [
        ("qick", "did you mean 'quick'?"),
        ("empty", "scenarios are files named *.yaml"),
        ("mime.yaml", "did you mean 'mine.yaml'?"),
    ]


@one_test(
    ("text", "place", "message"),
    [
        ("", "s.yaml", "is empty; 'harness list scenario quick' names the file of an example"),
        ("# only a comment\n", "s.yaml", "is empty; 'harness list scenario quick' names the file of an example"),
        ("\n- a\n- b\n", "2", "holds a list; a scenario is a mapping of keys"),
        ("some words\n", "1", "holds a single value; a scenario is a mapping of keys"),
        ("title: a: b\n", "1", "quote text that holds ': '"),
        ("title: t\nshapes:\n\t- {M: 1}\n", "3", "indent with spaces"),
        ("title: t\nshapes: [{M: 1}\nop: add\n", "3", "a bracket is left open"),
        ("title: t\nop\nshapes: 1\n", "3", "a key without ': ' after it"),
        ("title: t\n---\n- a\n", "3", "holds a list; a scenario is a mapping of keys"),
        ("title: t\n---\n", "3", "nothing stands between one '---' and the next; remove one of them"),
        ("title: t\n---\ntitle: u: v\n", "3", "quote text that holds ': '"),
        ("title: *bold*\n", "1", "quote the text"),
        ("title: \0\n", "s.yaml", "holds control characters"),
        ("[" * 100_000, "s.yaml", "is nested more than 20 levels deep"),
        ("- " * 100_000, "s.yaml", "is nested more than 20 levels deep"),
    ],
)
def test_broken_yaml_is_one_plain_message_with_its_line(refused: Refused, text: str, place: str, message: str) -> None:
    [(where, said)] = refused(text)
    assert where == place
    assert message in said


def test_what_is_no_text_or_no_file_is_named(tmp_path: Path, catalogue: dict[str, Op]) -> None:
    garbage, folder, gone = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    garbage.write_bytes(bytes(range(256)))
    folder.mkdir()
    with pytest.raises(InputError) as caught:
        load([garbage, folder, gone], catalogue)
    assert [(p.where, p.message) for p in caught.value.problems] == [
        (str(garbage), "isn't UTF-8 text"),
        (str(folder), "can't be read: Is a directory"),
        (str(gone), "can't be read: No such file or directory"),
    ]


def test_a_key_written_twice_names_both_lines_and_hides_nothing(refused: Refused) -> None:
    assert refused("title: t\nop: add\ntitle: u\nshapes:\n  - M: 1\n    N: 2\n    M: 3\ncash: hot\n") == [
        ("3: title", "is written twice, first in line 1"),
        ("7: shapes[0].M", "is written twice, first in line 5"),
        ("8: cash", "unknown key 'cash'; did you mean 'cache'?"),
    ]


def test_values_that_yaml_can_not_make_are_told_beside_the_rest(refused: Refused) -> None:
    assert refused("title: 2024-13-45\nop: add\nshows: !loud x\nshapes: [{M: 0, N: 1}]\n? [a, b]\n: c\n") == [
        ("1: title", "'2024-13-45' can't be read as timestamp; quote it if it is text"),
        ("3: shows", "'x' can't be read as !loud; quote it if it is text"),
        ("4: shapes[0].M", "a size must be 1 or more; found 0"),
        ("5", "a key must be a word, found a list"),
    ]


def test_an_anchor_that_holds_itself_comes_to_an_end(refused: Refused) -> None:
    assert refused("title: t\nop: add\nshapes: &a [*a]\n") == [("3: shapes[0]", "must be a mapping, found a list")]


def test_anchors_and_a_byte_order_mark_are_fine(write: Write, catalogue: dict[str, Op]) -> None:
    text = "\ufefftitle: t\nop: add\ndtypes: &d [float16]\ntags: *d\nshapes: [{M: 1, N: 2}]\n"
    [definition] = load([write(text)], catalogue)
    assert definition.dtypes == definition.tags == ("float16",)


def test_an_anchor_holds_within_its_document(refused: Refused) -> None:
    [(where, said)] = refused("title: t\ntags: &d [a]\n---\ntitle: u\ntags: *d\n")
    assert where == "5"
    assert "an anchor, which stands above, after the last '---'; or quote the text" in said


def test_a_key_without_a_space_after_its_colon(refused: Refused) -> None:
    assert refused("title: t\nop: add\nshapes: [{M:4, N: 1}]\n") == [
        ("3: shapes[0]", "no size for M; op 'add' has M, N"),
        ("3: shapes[0].M:4", "has no value; write a space after ':'"),
    ]


def test_a_link_to_nothing_is_told_with_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").symlink_to("yours.yaml")
    with pytest.raises(InputError) as caught:
        find(["mine.yaml"])
    assert [problem.told for problem in caught.value.problems] == [
        "mine.yaml: is a link to nothing (yours.yaml isn't there)"
    ]


def test_overview_names_the_bundled_scenarios() -> None:
    found = {scenario.name: scenario for scenario in overview()}
    assert {"copy", "prelu", "quick"} <= found.keys()
    assert found["quick"] == Overview("quick", "Two small PReLU layers", "prelu", ("quick", "ci"), ("prelu",))


@pytest.mark.slow  # test_layers.py has it of `harness list`
def test_overview_and_plan_leave_pydantic_alone() -> None:
    code = "import sys; from harness import scenario; scenario.overview(); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_file_that_is_not_there_is_no_reason_to_list_all_that_are(tmp_path: Path) -> None:
    (tmp_path / ".hidden.yaml").write_text("")
    with pytest.raises(InputError) as caught:
        find([str(tmp_path / "nofile.yaml")])
    assert caught.value.problems[0].advice == "'harness list scenarios' shows the bundled ones"
    with pytest.raises(InputError, match="no scenario file") as near:
        find(["sofmax"])
    assert near.value.problems[0].advice == "did you mean 'softmax'?"


def test_a_file_of_python_is_no_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("OP = 3\n")
    with pytest.raises(InputError, match="is a file of Python, no scenario") as found:
        find([str(tmp_path / "mine.py")])
    assert found.value.problems[0].advice == f"ops of yours are named by --ops {tmp_path / 'mine.py'}"


def test_where_a_scenario_is_wanted_the_name_of_an_op_gets_one(tmp_path: Path) -> None:
    square = Op(
        "square_sum",
        "y",
        symbols={"M": "rows", "N": "columns"},
        defaults={"N": "M"},
        inputs=(Tensor("x", ("M", "N")),),
        outputs=(Tensor("y", ("M",)),),
        reference=lambda _, t: {"y": t.x},
    )
    square.variant("mine", "mine")(lambda _: lambda _: None)
    with pytest.raises(InputError, match="is an op, no scenario") as found:
        find(["square_sum"], {"square_sum": square})
    advice = found.value.problems[0].advice
    assert advice == "write them in a file mine.yaml: {title: square_sum, op: square_sum, shapes: [{M: 1024}]}"
    (tmp_path / "mine.yaml").write_text(advice.partition("mine.yaml: ")[2])
    [definition] = load([tmp_path / "mine.yaml"], {"square_sum": square})
    assert [setting.values for setting in definition.settings] == [{"M": 1024, "N": 1024, "world": 1}]


def test_the_name_of_a_bundled_op_leads_to_the_scenarios_with_it(write: Write) -> None:
    strided = {"strided_copy": Catalogue()["strided_copy"]}
    with pytest.raises(InputError) as found:
        find(["strided_copy"], strided)
    assert found.value.problems[0].advice == "scenarios with it: strided_read, strided_write"
    write("", "strided_copy.yaml")
    with pytest.raises(InputError) as found:
        find(["strided_copy"], strided)
    assert found.value.problems[0].advice == "did you mean 'strided_copy.yaml'?"
