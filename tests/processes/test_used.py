"""Which files of a folder a process uses. Each test has a forked process: an audit hook can't be taken back."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from harness.processes import used
from tests.gate import foreign
from tests.processes.conftest import Asking, install
from tests.rare import rare

STARTER = """
import subprocess
import ctypes
def load(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
def start(name="true"):
    try:
        subprocess.run([name, "--version"], capture_output=True)
    except OSError:
        pass
"""
NAMED_IN = {
    "pyproject.toml": "[project]\nname = 'MyKern.CUDA'\n[[tool.uv.dependency-metadata]]\nname = 'theirs'\n",
    "setup.cfg": "[metadata]\nname = mykern-cuda\n[options.extras]\nname = theirs\n",
    "setup.py": "import setuptools\nsetuptools.setup(name='mykern_cuda', ext_modules=[Extension(name='theirs')])\n",
}


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


@pytest.mark.parametrize("folder", ["site-packages", "target"])
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
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, how: str, name: str, folder: str
) -> None:
    """It lies among the packages of this Python, or where pip --target put it, beside others, of which none counts."""
    site = tmp_path_factory.mktemp("site") / folder
    (top / "src" / "company" / "kernels").mkdir(parents=True)
    (top / "src" / "company" / "kernels" / "__init__.py").touch()
    (top / "bench").mkdir()
    (top / "bench" / "theirs.py").touch()  # an op's file has the name of a package, which is not installed from it
    file, others = f"{name.replace('.', '/')}.py", {"company/others.py": "", "theirs/__init__.py": ""}
    url = {"direct_url.json": json.dumps({"url": top.as_uri()})} if how == "by pip" else {}
    install(site, name, {file: ""}, **url)
    install(site, "others", others)
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
    path = f"sys.path[:0] = [{str(site)!r}]; sys.path.remove(str(top / 'src')); watch = UsedFiles([top])"
    found = [str(site / file), "early.py"]
    assert used_by(top, f"{path}; import {name}, theirs, company.others") == sorted(found, key=lambda f: str(top / f))


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
        # Native code asks the system without Python.
        ("import ctypes; ctypes.CDLL(None)", False),  # as the harness does
        ("import starter; starter.load(None)", True),
        rare("import starter; starter.load('libm.so.6')", True),
        ("import starter; starter.load('/usr/lib/libnone.so')", False),  # of the system
        ("import starter; starter.load(str(top / 'lib.so'))", True),
        ("open('lib.so').close()", True),
        rare("open('early.py').close()", False),
    ],
)
def test_a_process_that_the_code_of_a_side_starts_and_its_native_code_may_ask_about_anything(
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
