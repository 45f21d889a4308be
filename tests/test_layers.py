"""The rooms of the package: which room may import which, and what the parent process never loads."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import harness
from harness import metrics
from harness.ops import Catalogue
from tests.one_test import one_test

PACKAGE = Path(harness.__file__).parent
ROWS = [
    {"paths"},
    {"comments", "errors", "kept", "units", "expressions", "intervals", "ranges", "ranks", "stats"},
    {"steadiness", "trial"},
    {"discover", "families", "foreign", "intact", "model"},
    {"subject"},
    {"rates"},
    {"metrics", "store", "source"},
    {"cuda"},
    {"plans"},
    {"ops"},
    {"scenario"},
    {"devices"},
    {"check", "clocks", "limits"},
    {"contract", "extremes", "rotation"},
    {"recheck"},
    {"session"},
    {"measure"},
    {"interleaved"},
    {"processes"},
    {"runner"},
    {"profile"},
    {"differences"},
    {"gate"},
    {"explain"},
    {"report"},
    {"judge", "tune"},
    {"ladder"},
    {"api"},
    {"environment"},
    {"cli"},
    {"__main__", "pytest_plugin"},
]
COLLECTION_ROWS = [
    {"collection/models", "collection/ops"},
    {"collection/peers"},
    {"collection/nn"},
    {"collection/steps"},
    {"nn"},
]
"""The collection may import all that stands above it, and of the instrument what plug-ins use, too."""
ROW_OF = {room: row for rows in (ROWS, COLLECTION_ROWS) for row, rooms in enumerate(rows) for room in rooms}
IN_COLLECTION = {room for rooms in COLLECTION_ROWS for room in rooms}
# Rooms that run in the worker, and may load torch inside their functions. Classes of `models` and `nn` need it earlier.
WORKER = {"ops", "devices", "limits", "check", "contract", "extremes", "rotation", "recheck", "session", "measure"}
WORKER |= {"interleaved", "api", "processes", "ranks", "cuda", "profile", "judge", *IN_COLLECTION}


def room(file: Path) -> str:
    return room_of(file.relative_to(PACKAGE).with_suffix("").parts)


def room_of(parts: Sequence[str]) -> str:
    """The room of a module: its first name, of a collection's module its first two."""
    return "/".join(parts[:2]) if parts[0] == "collection" else parts[0]


FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if room(file) not in ("__init__", "collection/__init__") and "_data" not in file.parts
]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(file)))


@cache
def modules(file: Path) -> tuple[str, ...]:
    """Full names of everything that a file imports, at its top or inside functions."""
    return tuple(names_of(nodes_of(file), file))


def named(files: Iterable[Path]) -> list[str]:
    return [file.relative_to(PACKAGE).as_posix() for file in files]


def names_of(nodes: Iterable[ast.AST], file: Path) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    assert {room(file) for file in FILES} == set(ROW_OF)


def test_a_name_of_a_class_means_one_thing() -> None:
    places = defaultdict(list)
    for file in FILES:
        for node in tree_of(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@one_test("folder", ["harness", "kernels", "scripts", "tests"])
def test_a_file_is_one_thing(folder: str) -> None:
    files = [file for file in (PACKAGE.parent / folder).rglob("*") if file.suffix in (".py", ".cu", ".cuh")]
    long = {file.name: lines for file in files if (lines := len(file.read_text(encoding="utf-8").splitlines())) > 400}
    assert long == {}


def test_a_docstring_begins_with_its_subject() -> None:
    found = []
    for file in FILES:
        for node in nodes_of(file):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if documented and (text := ast.get_docstring(node, clean=False)):
                first = text.split(maxsplit=1)[0]
                if first in ("Of", "As") or first[0].islower():
                    found.append(f"{file.relative_to(PACKAGE)}: {text.splitlines()[0]}")
    assert found == []


def rooms(file: Path) -> set[str]:
    """The other rooms that a file imports."""
    named = [name.split(".")[1:] for name in modules(file) if name.startswith("harness.")]
    # `harness.__version__` belongs to the package, not to a room.
    return {room_of(parts) for parts in named if parts != ["__version__"]} - {room(file), "collection"}


def test_a_room_imports_only_rooms_above_it() -> None:
    found = {}
    for file in FILES:
        own = room(file)
        same_wing = {other for other in rooms(file) if (other in IN_COLLECTION) == (own in IN_COLLECTION)}
        if below := {other for other in same_wing if ROW_OF[other] >= ROW_OF[own]}:
            found[file] = below
    assert found == {}


def test_the_instrument_imports_nothing_of_the_collection() -> None:
    instrument = [file for file in FILES if room(file) not in IN_COLLECTION]
    assert {file: rooms(file) & IN_COLLECTION for file in instrument if rooms(file) & IN_COLLECTION} == {}


PUBLIC = {"cuda", "errors", "expressions", "families", "intervals", "metrics", "model", "ops", "paths", "units"}
PUBLIC |= {"ranges"}
"""Rooms of the instrument that an op may use, a plug-in's as well as one of the collection."""
PUBLIC_FOR_PAGES = {"report"}
"""Rooms for what an op says of its reports, which `Op.pages` names."""
PUBLIC_FOR_TOOLS = {"devices", "profile", "ranks", "session", "store"}
"""Rooms for a tool of `harness profile`, which the entry point `harness.tools` names."""


def test_the_collection_uses_only_what_plugins_may_use() -> None:
    found = {}
    for file in (file for file in FILES if room(file).startswith("collection/")):
        place = file.relative_to(PACKAGE / "collection")
        allowed = set(PUBLIC)
        if {"report", "_report.py"} & set(place.parts):
            allowed |= PUBLIC_FOR_PAGES
        if "profile" in place.parts:
            allowed |= PUBLIC_FOR_TOOLS
        if other := rooms(file) - IN_COLLECTION - allowed:
            found[place] = other
    assert found == {}


def test_the_collection_uses_no_module_of_the_instrument_that_is_private() -> None:
    found = {}
    for file in (file for file in FILES if room(file).startswith("collection/")):
        named = (name.split(".") for name in modules(file) if name.startswith("harness."))
        if hidden := {".".join(n) for n in named if n[1] != "collection" and any(part.startswith("_") for part in n)}:
            found[file] = hidden
    assert found == {}


COMMON_WORDS = {"all_gather", "all_reduce", "broadcast", "copy", "softmax", "unscale"}
"""Names of ops that are words of other things as well: families of kernels, and what ranks do."""


def test_the_instrument_knows_no_op_variant_or_metric_of_the_collection_by_name() -> None:
    """Examples in the texts of help are fine: they stand in longer texts."""
    names = {*Catalogue(), "ddp", "no_sync", "fused_optimizer", "half_norm"} - COMMON_WORDS
    names |= {name for name in metrics.METRICS.keys() - metrics.COMMON - metrics.COUNTED if "_" in name}
    assert {"prelu", "swin_train", "unscale_share", "decode_rate", "peak_memory"} <= names
    files = [file for file in FILES if room(file) not in IN_COLLECTION]
    constants = [(file, node) for file in files for node in nodes_of(file) if isinstance(node, ast.Constant)]
    assert [f"{file}:{node.lineno}: {node.value!r}" for file, node in constants if node.value in names] == []


def test_the_parent_process_has_no_way_to_torch() -> None:
    parents = [file for file in FILES if room(file) not in WORKER]
    assert named(f for f in parents if {name.split(".")[0] for name in modules(f)} & {"torch", "triton"}) == []


def test_models_that_load_torch_are_imported_inside_functions() -> None:
    loads_torch = {
        "harness.collection.nn",
        *(f"harness.collection.models.{name}" for name in ("bert", "images", "resnet", "swin")),
    }

    def at_its_top(file: Path) -> set[str]:
        return {".".join(name.split(".")[:length]) for name in names_of(tree_of(file).body, file) for length in (2, 3)}

    assert (
        named(
            file
            for file in FILES
            if room(file) not in ("collection/models", "collection/nn", "nn") and at_its_top(file) & loads_torch
        )
        == []
    )


def test_only_the_cuda_room_and_its_device_use_cuda_core() -> None:
    users = {room(file) for file in FILES if any(name.startswith("cuda.core") for name in modules(file))}
    assert users == {"cuda"}


NOT_FOR_HELP = ("torch", "pandas", "matplotlib", "numpy", "pydantic", "jinja2", "yaml")
REFUSED = {
    "--help": NOT_FOR_HELP,
    "judge --help": NOT_FOR_HELP,
    "gate --help": NOT_FOR_HELP,
    "gate calibrate --help": NOT_FOR_HELP,
    "list": ("torch", "cuda.core", "pandas", "matplotlib", "numpy", "pydantic", "jinja2"),
    "run quick --device cpu --dry-run": ("torch", "pandas", "matplotlib", "harness.processes.messages"),
}
"""What commands don't load. One process runs all of them, so a later one may load what an earlier one may."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The modules that are loaded when each command has ended."""
    program = (
        "import json, sys\n"
        "from harness.cli import app\n"
        "found = {}\n"
        "for command in sys.argv[1:]:\n"
        "    code = app(command.split(), standalone_mode=False)\n"
        "    assert not code, command\n"
        "    found[command] = [*sys.modules]\n"
        "print(json.dumps(found), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *REFUSED], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stderr.splitlines()[-1]))


@one_test("command", REFUSED)
def test_what_a_command_loads(loaded: dict[str, list[str]], command: str) -> None:
    assert set(loaded[command]) & set(REFUSED[command]) == set()
