"""Which files of a folder a process uses. Each test has a forked process: an audit hook can't be taken back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from harness.processes import used
from tests.gate import foreign
from tests.rare import rare

ROOT = Path(used.__file__).resolve().parents[2]
PROGRAM = """
import json, os, sys
from pathlib import Path
from harness.processes.used import UsedFiles
for line in sys.stdin:
    folder, code, digits, variables = json.loads(line)
    if os.fork():
        if os.wait()[1]:
            print("null", flush=True)
        continue
    os.environ.update(variables)
    top = Path(folder)
    os.chdir(top)
    sys.path[:0] = [str(top), str(top / "src")]
    import early
    watch = UsedFiles([top])
    exec(code)
    print(json.dumps([path for path, digest in watch.so_far() if len(digest) == digits]), flush=True)
    os._exit(0)
"""
STARTER = """
import subprocess
def start(name="true"):
    try:
        subprocess.run([name, "--version"], capture_output=True)
    except OSError:
        pass
"""
Asking = Callable[..., list[str]]
NAMED_IN = {
    "pyproject.toml": "[project]\nname = 'MyKern.CUDA'\n[[tool.uv.dependency-metadata]]\nname = 'theirs'\n",
    "setup.cfg": "[metadata]\nname = mykern-cuda\n[options.extras]\nname = theirs\n",
    "setup.py": "import setuptools\nsetuptools.setup(name='mykern_cuda', ext_modules=[Extension(name='theirs')])\n",
}


@pytest.fixture(scope="module")
def ask() -> Iterator[Asking]:
    """ask(top, code, digits): files that the code uses, after `early` was imported, whose digests have so many digits.

    They are relative to the top where they lie below.
    """
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        asked, answers = process.stdin, process.stdout

        def ask(top: Path, code: str, digits: int, **variables: str) -> list[str]:
            asked.write(json.dumps([str(top), code, digits, variables]) + "\n")
            asked.flush()
            found = json.loads(answers.readline())
            assert found is not None, "the code has raised"
            return [str(Path(file).relative_to(top)) if file.startswith(str(top)) else file for file in found]

        yield ask
        asked.close()
    assert process.returncode == 0


@pytest.fixture
def used_by(ask: Asking) -> Asking:
    """used_by(top, code): files that the code uses, with their digests."""
    return partial(ask, digits=64)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with a package, modules, data, and a Python of its own."""
    for name in ("src/mykern/__init__.py", "src/mykern/inner.py", "early.py", "late.py", "kernel.cu", "lib.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("", []),
        ("import late, json.tool, harness.ops", ["late.py"]),
        ("import mykern.inner", ["src/mykern/__init__.py", "src/mykern/inner.py"]),
        ("open('kernel.cu').read()", ["kernel.cu"]),
        (
            "Path('kernel.cu').resolve().read_bytes(); os.close(os.open('late.py', os.O_RDONLY))",
            ["kernel.cu", "late.py"],
        ),
        ("open('log.txt', 'w').write('what it writes is no code of it')", []),
        ("open(os.dup(0)).close()", []),
        (
            "open(b'kernel.cu').read(); open('lib.so', 'r+').read(); open('early.txt', 'w+').read()",
            ["kernel.cu", "lib.so"],
        ),
        (
            "import ctypes\ntry:\n    ctypes.CDLL('./lib.so')\nexcept OSError:\n    pass",
            ["lib.so"],
        ),
    ],
)
def test_modules_and_files_of_the_folder_are_told(used_by: Asking, top: Path, code: str, more: list[str]) -> None:
    assert used_by(top, code) == sorted(["early.py", *more])


def test_a_python_in_the_folder_and_the_cache_do_not_count(used_by: Asking, top: Path) -> None:
    code = (
        "import sysconfig; from harness import paths\n"
        "(top / 'venv').mkdir(); (top / 'venv' / 'dep.py').touch(); (top / 'cache').mkdir(); "
        "(top / 'cache' / 'k.cubin').touch()\n"
        "sys.prefix = str(top / 'venv'); os.environ['HARNESS_CACHE'] = str(top / 'cache')\n"
        "open('venv/dep.py').close(); open('cache/k.cubin').close()"
    )
    assert used_by(top, code) == ["early.py"]


def test_a_repository_below_the_folder_of_a_python_counts(used_by: Asking, top: Path) -> None:
    """As in a container where Python lies in /usr and the repository in /usr/src/app."""
    assert used_by(top, "sys.prefix = sys.base_prefix = str(top.parent); import late") == ["early.py", "late.py"]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("by name", "mykern"),
        rare("by name", "late"),
        rare("by name", "company.kernels"),
        rare("by pip", "mykern_cuda"),
        ("pyproject.toml", "mykern_cuda"),
        rare("setup.cfg", "mykern_cuda"),
        rare("setup.py", "mykern_cuda"),
        ("by place", "deep.fast"),
        rare("by place", "vendored.fast"),
    ],
)
def test_a_module_that_was_installed_from_the_folder_is_told(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, how: str, name: str
) -> None:
    """It lies among the packages of this Python, beside other packages, of which none counts."""
    site = tmp_path_factory.mktemp("site") / "site-packages"
    (site / "company").mkdir(parents=True)
    (top / "src" / "company" / "kernels").mkdir(parents=True)
    (top / "src" / "company" / "kernels" / "__init__.py").touch()
    (top / "bench").mkdir()
    (top / "bench" / "theirs.py").touch()  # an op's file has the name of a package, which is not installed from it
    (site / "theirs").mkdir()
    (site / "theirs" / "__init__.py").touch()
    for module in (name, "company.others"):
        foreign.write(site / f"{module.replace('.', '/')}.py", "")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{module.replace('.', '/')}.py,,\n")
    if how == "by pip":
        (site / f"{name}-1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": top.as_uri()}))
    if how in NAMED_IN:  # a wheel from anywhere: the distribution has the name of a project
        foreign.write(top / "native" / how, NAMED_IN[how])
        foreign.git(top, "init", "--quiet")
        foreign.git(top, "add", "native")
    if how == "by place":  # a package without an __init__.py, and one of a submodule
        for part in (inner := top / "libs" / "sub", top):
            package = part / "python" / "src" / ("vendored" if part == inner else "deep")
            package.mkdir(parents=True)
            (package / "fast.py").touch()
            foreign.git(part, "init", "--quiet")
            foreign.git(part, "add", ".")
            foreign.git(part, "commit", "--quiet", "--message=first")
    code = f"sys.path[:0] = [{str(site)!r}]; sys.path.remove(str(top / 'src')); import {name}, theirs, company.others"
    found = [str(site / f"{name.replace('.', '/')}.py"), "early.py"]
    assert used_by(top, code) == sorted(found, key=lambda f: str(top / f))


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("open({outside!r}).read()", ["{outside}"]),
        ("subprocess.run(['cat', {outside!r}], stdout=subprocess.DEVNULL)", ["{outside}"]),
        ("subprocess.run('cat ' + {outside!r}, shell=True, stdout=subprocess.DEVNULL)", ["{outside}"]),
        ("subprocess.run(['cat', 'kernel.cu'], stdout=subprocess.DEVNULL)", ["kernel.cu"]),
        ("open('/etc/hosts').read()", []),
        ("open(os.fsencode({outside!r}), 'r+b').read()", ["{outside}"]),
        ("open({outside!r}, 'a+').write('')", []),
        ("import sqlite3; sqlite3.connect({outside!r}).close()", ["{outside}"]),
    ],
)
def test_files_outside_and_what_commands_name_are_told(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, code: str, more: list[str]
) -> None:
    """As an artefact that is kept by its name, and a source that a compiler gets."""
    outside = tmp_path_factory.mktemp("kept") / "fast.so"
    outside.write_text("")
    found = used_by(top, f"import subprocess; {code.format(outside=str(outside))}")
    assert found == sorted(["early.py", *(file.format(outside=outside) for file in more)], key=lambda f: str(top / f))


def test_what_a_gpu_brings_along_is_no_code_that_both_sides_share(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Software that is installed for all, and what was compiled by its content. What is kept by its name counts."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    alike = [
        "cuda-13/lib64/libnvrtc.so.13",  # CUDA_HOME is a link to it
        "cuda-13/include/cuda_fp16.h",
        "home/.triton/cache/AB12/softmax.cubin",
        "home/.nv/ComputeCache/0/1/index",
        "home/.cupy/kernel_cache/ab12.cubin",
        "tmp/torchinductor_me/ab/cab.py",
        "inductor/fxgraph/ab/f.py",
        "triton/CD34/softmax.json",
        "driver/ComputeCache/2",
    ]
    by_name = ["home/.cache/mine/fast.cubin", "home/.nvtuned/fast.cubin", "tmp/fast.ptx", "cuda-12/lib64/mine.so"]
    for name in (*alike, *by_name):
        file = elsewhere / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (elsewhere / "cuda").symlink_to("cuda-13")
    folders = {
        "CUDA_HOME": "cuda", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton",
        "CUDA_CACHE_PATH": "driver",
    }  # fmt: skip
    code = "\n".join(f"open({str(elsewhere / name)!r}).read()" for name in (*alike, *by_name))
    dlopen = (
        f"\nimport ctypes\ntry:\n    ctypes.CDLL({str(elsewhere / 'cuda' / alike[0][8:])!r})\nexcept OSError:\n    pass"
    )
    found = used_by(top, code + dlopen, **{name: str(elsewhere / folder) for name, folder in folders.items()})
    assert found == sorted(["early.py", *(str(elsewhere / name) for name in by_name)], key=lambda f: str(top / f))


def test_a_variable_that_names_everything_leaves_nothing_out(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("kept") / "fast.so"
    outside.write_text("")
    assert str(outside) in used_by(top, f"open({str(outside)!r}).read()", CUDA_HOME="/", CUDA_PATH="")


def test_a_library_that_another_library_needs_is_told(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nobody but the loader of libraries opens it. What is loaded before the code that is measured doesn't count."""
    outside = tmp_path_factory.mktemp("libraries")
    (outside / "first.so").write_text("x")
    (outside / "second.so").write_text("x")
    map_it = (
        "import ctypes, mmap\n"
        "libc = ctypes.CDLL(None)\n"
        "def map_it(name):\n"
        "    file = libc.open(name.encode(), os.O_RDONLY)\n"
        "    return mmap.mmap(file, 0, prot=mmap.PROT_READ)\n"
    )
    code = (
        f"{map_it}first = map_it({str(outside / 'first.so')!r}); watch.libraries_loaded()\n"
        f"second = map_it({str(outside / 'second.so')!r})"
    )
    assert str(outside / "second.so") in (found := used_by(top, code))
    assert str(outside / "first.so") not in found


def test_what_the_code_asks_about_is_told_without_a_digest(
    ask: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A file that decides by its presence, or by its mode. The functions of `os` can do what they could."""
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    code = (
        f"(top / 'use_slow').exists(); os.access('kernel.cu', os.X_OK); os.path.isfile({elsewhere!r}); import shutil\n"
        f"os.path.exists({elsewhere + '/kept'!r}); os.path.exists('/usr/x')\n"
        "os.stat(0); os.stat('early.py', dir_fd=os.open('.', 0))\n"
        "shutil.copy2('lib.so', 'copy.so', follow_symlinks=False)"
    )
    asked = {*ask(top, code, 0)}
    assert {"use_slow", "kernel.cu", f"{elsewhere}/kept"} <= asked
    assert not asked & {"/usr/x", "src/__init__.py", "src/company/__init__.py"}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import late, importlib.metadata as m; [*m.distributions()]; from harness import discover", set()),
        ("from harness import source; source.digest([top / 'late.py'])", set()),
        ("os.listdir(b'src'); os.listdir(os.dup(os.open('.', 0)))", {"*", "src/*"}),
        ("[*Path('src').glob('*/*.py')]", {"src/*", "src/mykern/*"}),
        ("next(os.walk(top)); os.scandir(Path('src'))", {"*", "src/*"}),
        ("import importlib.util as u; u.find_spec('late'); u.find_spec('none')", {"late.py"}),
    ],
)
def test_a_list_of_names_and_a_search_for_a_module_are_told(ask: Asking, top: Path, code: str, told: set[str]) -> None:
    """A file may decide by its name alone. What Python and the harness list to find modules says nothing of a side."""
    asked = {*ask(top, code, 0)}
    assert {name for name in asked if name.endswith("*") or name == "late.py"} == told


def test_a_link_and_a_folder_that_is_open_are_told(ask: Asking, top: Path) -> None:
    """What a link says decides like a file, and what is looked up below it. A folder may be given by its number."""
    for name, target in (("mode", "500"), ("conf", "src"), ("src/inner", "mykern")):
        (top / name).symlink_to(target)
    asked = {*ask(top, "os.readlink('mode'); os.path.exists('conf/inner/slow')", 0)}
    assert {"mode", "conf", "src/inner", "src/mykern/slow"} <= asked
    code = (
        "number = os.open('src', os.O_DIRECTORY | os.O_RDONLY); os.scandir(number); os.access('flag', 0, dir_fd=number)"
    )
    assert {"src/*", "src/flag"} <= {*ask(top, code, 0)}
    assert "flag" not in {*ask(top, "os.close(9)if 0 else None\ntry: os.stat('flag', dir_fd=99)\nexcept OSError: 0", 0)}


def test_a_link_to_a_file_that_does_not_count_is_told(ask: Asking, top: Path) -> None:
    """As to a file of the system, or of git-annex. Another target of the link is another file."""
    for name, target in (
        ("plan", "/etc/hosts"),
        ("annexed", ".git/annex"),
        ("broken", "gone"),
        ("unopened", "late.py"),
    ):
        (top / name).symlink_to(target)
    (top / ".git").mkdir()
    (top / ".git" / "annex").touch()
    asked = {*ask(top, "open('plan').close(); open('annexed').close()\ntry: open('broken')\nexcept OSError: pass", 0)}
    assert {"plan", "annexed", "broken"} <= asked
    assert "unopened" not in asked


def test_a_file_that_could_not_be_opened_was_asked_about(
    ask: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = str(tmp_path_factory.mktemp("elsewhere") / "plan.json")
    code = f"for name in ('gone.json', {elsewhere!r}, '/usr/x'):\n    try: open(name)\n    except OSError: pass"
    asked = {*ask(top, code + "\nopen('late.py').close(); open('made.py', 'w').close()", 0)}
    assert {"gone.json", elsewhere} <= asked
    assert not asked & {"/usr/x", "late.py", "made.py"}


def test_what_lies_beside_a_folder_of_code_was_asked_about_though_it_lies_in_the_cache(ask: Asking, top: Path) -> None:
    """The base's worktree lies there. What else the cache has says nothing of a side."""
    cache = top.parents[2]
    code = (
        f"os.environ['HARNESS_CACHE'] = {str(cache)!r}\n"
        "for name in ('../plan.json', '../weights/a.bin', '../../../kernel.cubin'):\n"
        "    try: open(top / name)\n"
        "    except OSError: pass"
    )
    asked = {*ask(top, code, 0)}
    assert {str(top.parent / "plan.json"), str(top.parent / "weights" / "a.bin")} <= asked
    assert not [name for name in asked if name.endswith("kernel.cubin")]


@pytest.mark.parametrize(
    ("code", "starts"),
    [
        ("subprocess.run(['true'])", False),  # as the harness asks git
        ("import starter; starter.start()", True),
        rare("import starter; starter.start('sh')", True),
        ("import starter; starter.start('/usr/bin/x86_64-linux-gnu-g++-12')", False),  # it opens what it uses
        rare("import starter; starter.start('nvcc')", False),
        rare("import starter; starter.start('make')", True),
        ("import starter, threading as t; a = t.Thread(target=starter.start); a.start(); a.join()", True),
    ],
)
def test_a_process_that_the_code_of_a_side_starts_may_ask_about_anything(
    ask: Asking, top: Path, code: str, starts: bool
) -> None:
    (top / "starter.py").write_text(STARTER)
    assert ("**" in ask(top, f"import subprocess; {code}", 0)) == starts


@pytest.mark.parametrize("folder", ["/dev/shm", "/run/user"])
def test_what_a_program_keeps_in_the_memory_counts(folder: str) -> None:
    """By its name, as in any folder. The rest of the system's folders doesn't count."""
    assert not used._is_of_system(f"{folder}/kept.bin")
    assert used._is_of_system(f"{folder}2/kept.bin")


def test_a_file_that_is_kept_in_the_memory_is_told(used_by: Asking, top: Path) -> None:
    with NamedTemporaryFile(dir="/dev/shm") as kept:
        assert kept.name in used_by(top, f"open({kept.name!r}).read()")


def test_the_next_answer_has_no_path_that_only_this_class_asked_about(ask: Asking, top: Path) -> None:
    asked = {*ask(top, "watch.so_far()", 0)}
    assert not asked & {"src/__init__.py", "src/company/__init__.py"}
