"""Listings that fit a terminal, one thing in detail, and what a shell may complete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

from harness import cli, discover
from harness.cli import app, completion, gate, listing
from harness.cli.columns import aligned, flowing
from harness.cli.group import LISTED
from harness.devices import kinds
from harness.ops import Catalogue, Op, catalogue
from harness.report import every_format
from harness.scenario import overview
from tests.one_test import one_test
from tests.rare import rare


def listed(*arguments: str, columns: str | None = None) -> str:
    result = CliRunner().invoke(app, ["list", *arguments], env={"COLUMNS": columns})
    assert result.exit_code == 0, result.output
    return result.stdout


@one_test("arguments", [["ops"], ["op", "softmax"], ["op", "bn_add_relu"], ["scenario", "ci"]], ids=" ".join)
def test_a_listing_fits_80_columns_and_loses_nothing(arguments: list[str]) -> None:
    narrow, endless = listed(*arguments, columns="80"), listed(*arguments)
    # A path has no place to be broken at.
    assert max(len(line) for line in narrow.splitlines() if "/" not in line) <= 80
    assert narrow.split() == endless.split()
    assert len(narrow.splitlines()) >= len(endless.splitlines())


def test_the_last_column_goes_below_where_there_is_no_room_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a" * 20, "b", "one two three four five six seven eight"), ("c", "d", "")]
    first, *more, last = aligned(rows)
    assert first.split() == ["a" * 20, "b"]
    assert " ".join(line.strip() for line in more) == rows[0][-1]
    assert last.split() == ["c", "d"]
    assert aligned([]) == []


def test_lines_are_wrapped_where_the_terminal_ends_and_paths_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/a/{'b' * 40}"
    text = f"one\n  two  three four five six seven eight nine ten\n\n  cache  {path}"
    assert flowing(text) == text  # in a pipe
    monkeypatch.setenv("COLUMNS", "40")
    first, second, third, empty, name, whole = flowing(text).splitlines()
    assert (first, empty) == ("one", "")
    assert second.startswith("  two  three four ")
    assert third.startswith("    ")
    assert max(len(second), len(third)) <= 40
    assert (name, whole) == ("  cache", f"    {path}")


def test_the_whole_listing_is_short_and_has_every_name() -> None:
    text = listed()
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) <= 80
    words = {word.strip("(),") for word in text.split()}
    assert {*Catalogue(), *(entry.name for entry in overview()), *every_format(), *kinds()} <= words
    # It goes by the names of files, which must be the names of what is in them.
    assert f"{len(Catalogue())} ops" in text
    assert completion.installed_ops() == list(Catalogue())
    assert completion.bundled_scenarios() == [entry.name for entry in overview()]
    assert "harness list op NAME" in text


def test_ops_of_another_package_are_loaded_to_know_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine_of_a_package")
    module.__file__ = __file__
    module.OP = Op("brought_along", "y = x", symbols={}, unchecked="it has no result")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    other = EntryPoint("mine", module.__name__, "harness.ops")
    installed = discover.entry_points("harness.ops")
    for place in (discover, catalogue):
        monkeypatch.setattr(place, "entry_points", lambda _group: [*installed, other])
    assert completion.installed_ops() == [*Catalogue()]
    assert "brought_along" in listed()


@pytest.mark.slow  # test_layers.py has what each command loads
def test_only_the_file_of_a_command_is_imported() -> None:
    program = (
        "import sys\nfrom harness.cli import app\napp(['list', 'formats'], standalone_mode=False)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('harness.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stderr.split())
    assert "harness.cli.listing" in loaded
    assert {"harness.cli.run", "harness.cli.gate", "harness.cli.profile"} & loaded == set()


def test_every_command_has_a_file_with_its_name_and_help() -> None:
    group = typer.main.get_command(app)
    context = group.make_context("harness", ["list"])
    files = [file.stem for file in Path(cli.__file__).parent.glob("*.py") if "\napp = " in file.read_text()]
    of_gate = [f"gate_{name}" for name in gate.COMMANDS]
    assert sorted([*cli.AllCommands.FILES.values(), *of_gate]) == sorted({*files} - {"__init__"})
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        assert command.name == name
        assert command.get_short_help_str()


def test_a_misspelt_command_is_told_the_nearest() -> None:
    result = CliRunner().invoke(app, ["lst"])
    assert result.exit_code == 2
    assert "No such command 'lst'. Did you mean 'list'?" in result.output


def test_what_is_listed_is_told_to_who_takes_it_for_a_command() -> None:
    named = {command.name or command.callback.__name__ for command in listing.app.registered_commands}
    assert {*LISTED} == named - {"everything"}
    result = CliRunner().invoke(app, ["op", "softmax"])
    assert result.exit_code == 2
    assert "No such command 'op'. Did you mean 'list op'?" in result.output


def test_ops_are_listed_with_what_they_compute() -> None:
    (line,) = [line for line in listed("ops").splitlines() if line.split()[0] == "softmax"]
    softmax = Catalogue()["softmax"]
    assert line.endswith(f"{softmax.summary} ({len(softmax.variants)} variants, plans to tune)")


def test_one_op_in_detail() -> None:
    lines = listed("op", "softmax").splitlines()
    assert lines[0].startswith("softmax: ")
    for title in ("sizes", "inputs", "outputs", "dtypes", "variants", "scenarios", "file"):
        assert title in lines
    assert any(line.split()[:3] == ["eager", "baseline", "any"] for line in lines)
    assert "  ci, models, rows_in_halves, softmax, softmax_few_rows" in lines
    assert (
        "  of fused: 'harness tune int8_linear' searches the fastest on a GPU"
        in listed("op", "int8_linear").splitlines()
    )
    assert "plans" not in listed("op", "copy").splitlines()
    assert any(line.split()[0] == "p" for line in listed("op", "dropout").splitlines())


EXAMPLE = Path(__file__).parents[2] / "examples" / "own_variant.py"


def test_ops_of_a_plug_in_are_listed_with_it_alone() -> None:
    line = "maximum, exp and sum in float32"
    assert line in listed("op", "softmax", "--ops", str(EXAMPLE))
    assert line not in listed("op", "softmax")
    count = len(Catalogue()["softmax"].variants)
    assert f"({count + 1} variants, plans to tune)" in listed("ops", "--ops", str(EXAMPLE))


def test_scenarios_of_an_op_are_all_found_in_the_files_that_name_it() -> None:
    every = overview()
    for op in ("softmax", "prelu", "rms_norm"):
        read = overview(f"op: {op}")
        assert [entry.name for entry in read if entry.op == op] == [entry.name for entry in every if entry.op == op]
        assert len(read) < len(every) / 4


def test_one_scenario_in_detail() -> None:
    words = {line.split()[0]: line for line in listed("scenario", "quick").splitlines()}
    assert words["shapes"].endswith("N=8, C=64, H=56, W=56")
    assert words["variants"].split(maxsplit=1)[1] == ", ".join(Catalogue()["prelu"].variants)
    assert words["timing"].endswith("at most 0.5 s a case")
    assert "floors" not in words


def test_what_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quicker.yaml").touch()
    (tmp_path / "quince.txt").touch()
    (tmp_path / "quiet").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(completion.scenarios("qui")) == ["quick", "quicker.yaml", "quiet/"]
    assert list(completion.ops("softm")) == ["softmax", "softmax_grad"]
    assert "eager,tuned" in list(completion.variants("eager,tun"))
    assert list(completion.devices("")) == ["cuda", "cpu", "gpu"]


@pytest.mark.slow  # test_what_is_completed has the names
@pytest.mark.parametrize(
    ("words", "completed"), [("harness run qui", "quick"), rare("harness list op softmax_", "softmax_grad")]
)
def test_a_shell_completes_names_without_torch(
    words: str, completed: str, tmp_path: Path, environment: Callable[..., dict[str, str]]
) -> None:
    program = "import sys; sys.modules['torch'] = None; from harness.cli import main; main()"
    asked = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment(**asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == [completed], done.stderr


def test_a_whole_listing_has_the_ops_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        'from harness.ops import Op\nOP = Op("of_mine", "y = x", symbols={}, unchecked="it has no result")\n'
    )
    assert "of_mine" in listed("--ops", str(file))
    assert "of_mine" in listed(f"--ops={file}")
