"""A small repository of somebody else: a package, a submodule, a compiled op, an artefact that is kept, scenarios."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import harness

ROOT = Path(harness.__file__).parents[1]
SMALL = ROOT / "tests" / "plugins" / "small.py"
SLOW = 500

_OP = '''
"""{name}: y = 2 x."""

from harness.ops import Op, Tensor

OP = Op(
    "{name}",
    "y = 2 x",
    symbols={{"N": "elements"}},
    inputs=(Tensor("x", ("N",)),),
    outputs=(Tensor("y", ("N",)),),
    dtypes=("float32", "float64"),
    reference=lambda _, t: {{"y": {factor} * t.x.double()}},
    tolerance={{"float32": (1e-2, 1e-2), "float64": (1e-2, 1e-2)}},
)


@OP.variant("plain", "one pass", devices=("cpu",))
def plain(ctx):
    import torch

{prepare}

    def launch(t):
        for _ in range(passes):
            torch.mul(t.x, {factor}, out=t.y)

    return launch
'''
# The header is named relative to the working folder, as a Makefile does it.
_COMPILE = """\
    import ctypes
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/passes.so"
        source = __file__.replace("compiled.py", "passes.cpp")
        subprocess.run(["g++", "-shared", "-fPIC", "-Iinclude", source, "-o", library], check=True)
        passes = ctypes.CDLL(library).passes()"""
# Built once, by whichever process comes first, and kept by its name alone.
_KEPT = """\
    import os
    from pathlib import Path

    kept = Path(os.environ["KEPT"])
    if not kept.exists():
        kept.write_text("1")
    passes = int(kept.read_text())"""
# The first process computes and writes it, and reads nothing; others find it.
_FOUND = """\
    import os
    from pathlib import Path

    found = Path(os.environ["KEPT"] + "-found")
    if found.exists():
        passes = int(found.read_text())
    else:
        passes = 1
        found.write_text("1")"""
# Without what was built in the working tree alone, the op still works.
_BUILT = """\
    from pathlib import Path

    built = Path(__file__).parent / "build" / "fast.so"
    passes = 1 if built.exists() and built.read_text() else 50"""
# A variable that the file of an op may set where the op is declared.
_DECLARED = """\
    import os

    passes = int(os.environ.get("MYKERN_PASSES", "1"))"""
PREPARES = {
    "packaged": "    import mykern\n\n    passes = mykern.passes(ctx.case.dtype)",
    "vendored": "    from vendored_kernels import PASSES as passes",
    "compiled": _COMPILE,
    "kept": _KEPT,
    "found": _FOUND,
    "built": _BUILT,
    "declared": _DECLARED,
    "wrong": "    passes = 1",
}
_PACKAGE = """
def passes(dtype):
    if dtype == "float64":
        from mykern.double import PASSES

        return PASSES
    return 1
"""
_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "mykern"
version = "1.0"

[project.entry-points."harness.ops"]
mykern = "mykern.packaged"

[tool.hatch.build.targets.wheel]
packages = ["src/mykern"]
"""


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    command = ["git", "-C", folder, *identity, *arguments]
    done: subprocess.CompletedProcess[str] = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_op(root: Path, name: str, factor: int = 2) -> None:
    file = root / "src" / "mykern" / "packaged.py" if name == "packaged" else root / f"{name}.py"
    write(file, _OP.format(name=name, factor=factor, prepare=PREPARES[name]))


def passes(file: Path, count: int) -> None:
    """A file that says how often an op does its work."""
    texts = {".h": f"#define PASSES {count}\n", ".py": f"PASSES = {count}\n"}
    write(file, texts[file.suffix])


def make(folder: Path) -> Path:
    """The repository, committed. Ops: `packaged` by an entry point of its package, all others by files."""
    root, vendored = folder / "mine", folder / "vendored"
    passes(vendored / "vendored_kernels.py", 1)
    for repository in (root, vendored):
        repository.mkdir(exist_ok=True)
        git(repository, "init", "--quiet", "--initial-branch=trunk")
    git(vendored, "add", ".")
    git(vendored, "commit", "--quiet", "--message=first")
    for name in PREPARES:
        write_op(root, name)
        dtypes = "float32, float64" if name == "packaged" else "float32"
        text = f"title: Twice\nop: {name}\nshapes: [{{N: 2**14}}]\ndtypes: [{dtypes}]\nbaseline: plain\n"
        write(root / f"{name}.yaml", text)
    write(root / "src" / "mykern" / "__init__.py", _PACKAGE)
    passes(root / "src" / "mykern" / "double.py", 1)
    passes(root / "include" / "passes.h", 1)
    write(root / "passes.cpp", '#include "passes.h"\nextern "C" int passes() { return PASSES; }\n')
    write(root / "pyproject.toml", _PROJECT)
    write(root / "requirements.txt", "torch==2.12\n")
    write(root / ".gitignore", "__pycache__/\n/out/\n/build/\n")
    shutil.copy(SMALL, root / "small.py")
    git(root, "submodule", "add", "--quiet", str(vendored), "third/vendored")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    git(root, "tag", "first")
    return root


def bump(root: Path, commit: bool = True) -> None:
    """Commit a slower revision of the submodule; in the submodule alone, unless `commit`."""
    inside = root / "third" / "vendored"
    passes(inside / "vendored_kernels.py", SLOW)
    git(inside, "commit", "--quiet", "--all", "--message=slower")
    if commit:
        git(root, "commit", "--quiet", "--all", "--message=a newer submodule")
