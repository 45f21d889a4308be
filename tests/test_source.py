"""Which code made a result: what changes the hash, and what git says."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

import harness
from harness import paths, source
from harness.collection.models import MODELS
from harness.model import Code
from harness.ops import Catalogue
from tests.one_test import one_test
from tests.rare import rare

ROOT = Path(harness.__file__).parents[1]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package with a kernel, in place of the real one."""
    root = tmp_path / "checkout"
    (root / "harness" / "ops").mkdir(parents=True)
    (root / "kernels" / "include").mkdir(parents=True)
    (root / "harness" / "__init__.py").write_text("")
    (root / "harness" / "ops" / "copy.py").write_text("OP = 1\n")
    (root / "kernels" / "include" / "pack.cuh").write_text("// pack\n")
    monkeypatch.setattr(source, "_PACKAGE", root / "harness")
    monkeypatch.setattr(paths, "data", lambda name: root / name)
    return root


def test_the_hash_is_that_of_the_contents_wherever_they_lie(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = source.digest()
    moved = package.rename(package.with_name("elsewhere"))
    monkeypatch.setattr(source, "_PACKAGE", moved / "harness")
    monkeypatch.setattr(paths, "data", lambda name: moved / name)
    assert source.digest() == before


@pytest.mark.parametrize("file", ["harness/ops/copy.py", "kernels/include/pack.cuh"])
def test_a_changed_file_changes_the_hash(package: Path, file: str) -> None:
    before = source.digest()
    (package / file).write_text("changed\n")
    assert source.digest() != before


def test_a_renamed_file_changes_the_hash(package: Path) -> None:
    before = source.digest()
    (package / "harness" / "ops" / "copy.py").rename(package / "harness" / "ops" / "copies.py")
    assert source.digest() != before


def test_what_python_leaves_behind_does_not_change_the_hash(package: Path) -> None:
    before = source.digest()
    (package / "harness" / "__pycache__").mkdir()
    (package / "harness" / "__pycache__" / "copy.cpython-311.pyc").write_bytes(b"\0")
    assert source.digest() == before


def test_kernels_of_the_package_count_and_those_that_it_bundles_count_once(package: Path) -> None:
    before = source.digest()
    (package / "harness" / "_data" / "kernels").mkdir(parents=True)
    (package / "harness" / "_data" / "kernels" / "copy.cu").write_text("// as a wheel has it\n")
    assert source.digest() == before
    (package / "harness" / "ops" / "stream.cu").write_text("// kernel\n")
    assert source.digest() != before


def test_the_lock_of_an_editor_does_not_change_the_hash(package: Path, tmp_path: Path) -> None:
    """It's a link to nothing."""
    plugin = tmp_path / "mine.py"
    plugin.write_text("OP = 2\n")
    before = source.digest([plugin])
    for place in (package / "harness" / "ops" / ".#copy.py", package / "kernels" / ".#copy.cu", tmp_path / ".#mine.cu"):
        place.symlink_to("me@host.123:456")
    assert source.digest([plugin]) == before


def test_a_page_beside_the_kernels_does_not_change_the_hash(package: Path) -> None:
    before = source.digest()
    (package / "kernels" / "README.md").write_text("# Kernels\n")
    assert source.digest() == before


@pytest.mark.usefixtures("package")
def test_a_plugin_counts_with_the_kernels_beside_it(tmp_path: Path) -> None:
    plugin = tmp_path / "mine" / "mine.py"
    plugin.parent.mkdir()
    plugin.write_text("OP = 2\n")
    without, alone = source.digest(), source.digest([plugin])
    plugin.with_suffix(".cu").write_text("// kernel\n")
    with_kernel = source.digest([plugin])
    plugin.with_suffix(".txt").write_text("a note\n")
    assert len({without, alone, with_kernel}) == 3
    assert source.digest([plugin]) == with_kernel


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_tells_revision_and_changes_of_the_code(package: Path) -> None:
    git(package, "init", "--quiet")
    assert source.revision() == ("", False)  # in a repository, but no part of it
    git(package, "add", ".")
    git(package, "commit", "--quiet", "--message", "first")
    commit = git(package, "rev-parse", "HEAD").strip()
    assert source.revision() == (commit, False)
    (package / "reports").mkdir()
    (package / "reports" / "a.md").write_text("a report isn't code\n")
    assert source.revision() == (commit, False)
    (package / "harness" / "ops" / "new.py").write_text("an op that isn't committed\n")
    assert source.revision() == (commit, True)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_file_at_a_commit_is_found_where_it_lay_then(package: Path) -> None:
    git(package, "init", "--quiet")
    git(package, "add", ".")
    git(package, "commit", "--quiet", "--message", "first")
    commit = git(package, "rev-parse", "HEAD").strip()
    file = package / "harness" / "ops" / "copy.py"
    file.write_text("OP = 2\n")
    assert source.at_revision(commit, file) == "OP = 1\n"
    assert source.at_revision(commit, package / "harness" / "collection" / "copy.py") == "OP = 1\n"
    assert source.at_revision(commit, package / "harness" / "ops" / "other.py") is None
    # Two files of a name: it isn't known which one it was.
    (package / "kernels" / "copy.py").write_text("")
    git(package, "add", ".")
    git(package, "commit", "--quiet", "--message", "second")
    commit = git(package, "rev-parse", "HEAD").strip()
    assert source.at_revision(commit, package / "harness" / "collection" / "copy.py") is None
    assert source.at_revision("no commit", file) is None


def test_without_git_there_is_no_revision(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(package))
    assert source.revision() == ("", False)


def ops_that_change(file: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Bundled ops whose code is another one after a change of the file, which lies in the checkout.

    An op for whose code the file wasn't read has the same code whatever the file holds.
    """
    changed, read = ROOT / file, Path.read_bytes
    before = {op: code for op, (code, files) in unchanged().items() if changed in files}
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"\nchanged = 1\n" if path == changed else b""))
    return {op for op, code in before.items() if source.code(op, OPS[op].file) != code}


@cache
def unchanged() -> dict[str, tuple[Code, set[Path]]]:
    """The code of each bundled op, as the checkout has it, and the files that were read for the code."""
    source._imported.cache_clear()
    source._included.cache_clear()
    found, real, files = {}, Path.read_bytes, set()

    def read(path: Path) -> bytes:
        files.add(path)
        return real(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", read)
        for op in OPS.values():
            files = set()
            found[op.name] = (source.code(op.name, op.file), files)
    return found


OPS = Catalogue()
EVERY = set(OPS)
ADDING = {"add_rms_norm", "add_rms_norm_quantize"}
SWIN, BERT = {"swin_train", "swin_scaling", "swin_infer"}, {"bert_train", "bert_scaling"}
RESNET, LLAMA = (
    {"resnet50_train", "resnet50_scaling", "image_pipeline"},
    {"llama_train", "llama_scaling", "llama_decode"},
)
STEPS = SWIN | BERT | RESNET | LLAMA
"""Ops of whole models, which run other ops by harness.nn."""


@pytest.mark.parametrize(
    ("file", "ops"),
    [
        ("kernels/activation/prelu.cu", {"prelu"}),
        ("harness/collection/ops/activation/prelu.py", {"prelu"}),
        ("harness/collection/ops/activation/relu_mask.py", {"relu_mask", "relu_grad", "relu_training"}),
        ("kernels/activation/relu_grad.cu", {"relu_grad", "relu_training"}),  # which calls the kernels of both
        rare(
            "kernels/rows/norm.cuh",
            {"layer_norm", "rms_norm", "layer_norm_window_partition", *ADDING, *SWIN, *BERT, *LLAMA},
        ),
        (
            "kernels/include/bias.cuh",
            {
                "bias_add",
                "bias_residual",
                "bias_dropout_residual",
                "two_biases",
                "linear_bias",
                "linear_activation",
                *BERT,
            },
        ),
        rare("harness/collection/models/swin.py", SWIN),
        rare("harness/collection/nn/_scaler.py", STEPS),
        ("harness/collection/nn/_patch.py", set()),  # it is for users' models
        rare("kernels/attention/window_attention.cu", {"window_attention", *SWIN}),
        rare("harness/collection/models/sizes.py", STEPS),
        ("harness/session.py", EVERY),
        rare("harness/ops/sheet.py", EVERY),
        rare("harness/devices/cuda.py", EVERY),
        ("harness/report/tree.py", set()),
        ("harness/metrics.py", set()),
        ("harness/gate/records.py", set()),
        ("kernels/README.md", set()),
    ],
)
def test_the_code_of_an_op_is_what_makes_its_numbers(file: str, ops: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ROOT / file).is_file()
    assert ops_that_change(file, monkeypatch) == ops


def needed(op: str) -> set[str]:
    return {path.name for path in source._needed(OPS[op].file)}


OF_A_LLAMA = re.compile(r"_?(cross_entropy|embedding_grad|swiglu|rope|add_rms_norm)\w*[.](py|cuh?)")


@one_test("op", sorted(STEPS - LLAMA))
def test_the_code_of_another_model_has_no_kernel_of_a_llama(op: str) -> None:
    assert not [name for name in needed(op) if OF_A_LLAMA.fullmatch(name)]


@one_test(
    ("op", "runs", "never"),
    [
        ("swin_train", "window_attention window_attention_grad window_partition softmax layer_norm_grad", "dropout"),
        ("swin_infer", "window_attention_packed layer_norm quantize residual_layer_norm", "dropout"),
        ("bert_train", "layer_norm softmax softmax_grad bias_dropout_residual dropout_grad", "window_attention"),
        ("resnet50_train", "bn_add_relu bn_add_relu_grad", "softmax layer_norm dropout window_attention"),
        ("llama_train", "cross_entropy cross_entropy_in_place swiglu swiglu_grad rope add_rms_norm embedding_grad", ""),
    ],
)
def test_the_code_of_a_model_has_the_kernels_that_its_steps_launch(op: str, runs: str, never: str) -> None:
    trains = {"adamw", "unscale", "vectors"} if op.endswith("train") else set()
    found = needed(op)
    assert found >= {f"{name}.cu" for name in trains.union(runs.split())}
    assert found.isdisjoint(f"{name}{suffix}" for name in never.split() for suffix in (".cu", ".py"))
    assert op.startswith("swin") or not [name for name in found if "window_attention" in name]


@one_test("op", sorted(STEPS))
def test_the_code_of_a_step_has_the_files_that_are_found_by_the_name_of_its_model(op: str) -> None:
    collection = ROOT / "harness" / "collection"
    modules = {MODELS[str(model)].module for model in OPS[op].choices["model"].values}
    wanted = {collection / "models" / f"{module}.py" for module in modules}
    if op != "llama_decode":  # it has no rungs
        wanted |= {collection / "steps" / "training" / f"_{module}.py" for module in modules}
    assert wanted <= set(source._needed(OPS[op].file))


@pytest.mark.parametrize("room", ["ops", "collection"])
def test_the_code_of_an_op_follows_modules_into_these_rooms(room: str, package: Path) -> None:
    folder = package / "harness" / room
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text("")
    (folder / "deep.py").write_text("N = 1\n")
    (folder / "used.py").write_text(f"from harness.{room}.deep import N\n")
    (folder / "unused.py").write_text("")
    op = package / "harness" / "ops" / "mine.py"
    op.write_text(f"def prepare(ctx):\n    from harness.{room} import used\n")
    found = set(source._needed(op))
    assert found == {op, folder / "__init__.py", folder / "used.py", folder / "deep.py"}


def test_the_code_of_an_op_has_the_kernels_of_ops_that_nn_runs_for_it(package: Path) -> None:
    """An op needs the kernels of another op only where it names them; nn calls the other op itself."""
    for name in (
        "harness/collection/nn/__init__.py",
        "harness/collection/ops/rows/norm.py",
        "kernels/rows/norm.cu",
        "harness/ops/other.py",
    ):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    (package / "harness" / "collection" / "nn" / "__init__.py").write_text(
        "from harness.collection.ops.rows import norm\n"
    )
    op, other = package / "harness" / "ops" / "mine.py", package / "harness" / "ops" / "other.py"
    op.write_text("def prepare(ctx):\n    from harness.collection import nn\n")
    other.write_text("from harness.collection.ops.rows import norm\n")
    kernel = package / "kernels" / "rows" / "norm.cu"
    assert kernel in source._needed(op)
    assert kernel not in source._needed(other)


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("harness/ops/sheet.py", True),
        ("harness/ops/baselines.py", True),
        ("kernels/access/copy.cu", True),
        ("harness/cuda/stream.cu", True),
        ("harness/cuda/launcher.c", True),
        ("harness/cuda/launcher.h", True),
        ("harness/collection/ops/activation/prelu.py", False),
        ("kernels/activation/prelu.cu", False),
    ],
)
def test_the_code_of_a_plugin_has_what_it_takes_of_the_harness(
    file: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text('from harness.ops import Op\nfrom harness.ops.baselines import compiled\nFILE = "copy.cu"\n')
    before = source.code("mine", plugin)
    changed, read = ROOT / file, Path.read_bytes
    assert changed.is_file()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"\nchanged = 1\n" if path == changed else b""))
    assert (source.code("mine", plugin) != before) == counts


def test_the_code_of_a_plugin_is_its_file_and_the_kernels_beside_it(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("OP = 1\n")
    alone = source.code("mine", plugin)
    (tmp_path / "mine.cu").write_text("// kernel\n")
    with_kernel = source.code("mine", plugin)
    (tmp_path / "notes.md").write_text("a page\n")
    assert alone != with_kernel == source.code("mine", plugin)
    plugin.write_text("OP = 2\n")
    assert source.code("mine", plugin) != with_kernel


def test_a_comment_does_not_change_the_code_of_an_op(tmp_path: Path) -> None:
    plugin, kernel = tmp_path / "mine.py", tmp_path / "mine.cu"
    plugin.write_text('"""Mine."""\nOP = 1\n')
    kernel.write_text("int x = 1;  // one\n")
    before = source.code("mine", plugin)
    plugin.write_text('"""Mine,\n\nsaid better."""\n\nOP = 1  # one\n')
    kernel.write_text("/* one */\nint x = 1;\n")
    assert source.code("mine", plugin) == before
    kernel.write_text("int x = 2;  // one\n")
    assert source.code("mine", plugin) != before
