"""Which files outside of the folder of the code a process uses. Each test has a forked process."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from harness.processes import used
from tests.processes.conftest import Asking, install


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


BUILDERS = {
    "launcher": "from harness.cuda import native\nfrom harness.errors import MachineError\n"
    "try:\n    native.built()\nexcept MachineError as error:\n    assert 'failed' in str(error), error\n",
    "triton": "from triton.runtime import build\nbuild.compile(os.environ['CC'])\n",
    "extension": "import subprocess\nsubprocess.run([os.environ['CC'], 'late.py'])\n",
    "named alike": "import triton.runtime.build as own\nown.compile(os.environ['CC'])\n",
}


@pytest.mark.parametrize(
    ("builder", "counts"), [("launcher", False), ("triton", False), ("extension", True), ("named alike", True)]
)
def test_a_compiler_counts_unless_what_it_builds_is_kept_for_both_sides_by_its_content(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, builder: str, counts: bool
) -> None:
    """The side that comes second finds the launcher in C, so it doesn't use a compiler.

    The code of a side sets CC, so it's no variable of the job.
    """
    outside = tmp_path_factory.mktemp("tools")
    compiler = outside / "gcc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o700)
    (outside / "cache").mkdir(0o700)
    place = top if builder == "named alike" else outside / "site-packages"
    install(place, "triton", {
        "triton/__init__.py": "", "triton/runtime/__init__.py": "",
        "triton/runtime/build.py": "import subprocess\ndef compile(cc): subprocess.run([cc, 'late.py'])\n",
    })  # fmt: skip
    (top / "build.py").write_text("import os\n" + BUILDERS[builder])
    begun = f"sys.path.append({str(outside / 'site-packages')!r}); watch = UsedFiles([top])"
    code = f"{begun}; os.environ['CC'] = {str(compiler)!r}; import build"
    found = used_by(top, code, HARNESS_CACHE=str(outside / "cache"))
    assert (str(compiler) in found) == counts
    assert ("late.py" in found) == (builder != "launcher"), "a source counts, whoever has it compiled"


@pytest.mark.parametrize(
    ("variable", "named", "counts"),
    [
        ("CXX", "x86_64-linux-gnu-g++-13", False),
        ("CC", "clang", False),
        ("CXX", "link/g++", False),
        ("CXX", "fast.so", True),
        ("LD_PATH", "g++", True),
    ],
)
def test_a_compiler_that_the_job_names_by_its_full_path_is_software(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, variable: str, named: str, counts: bool
) -> None:
    """As one that is found by PATH. Inductor compiles for the CPU by what CXX says."""
    outside = tmp_path_factory.mktemp("tools")
    (outside / "there").mkdir()
    (outside / "link").symlink_to("there")
    compiler = outside / named
    compiler.write_text("#!/bin/sh\nexit 0\n")
    compiler.chmod(0o700)
    code = f"import subprocess; subprocess.run([{str(compiler)!r}, 'late.py'])"
    found = used_by(top, code, **{variable: str(compiler)})
    assert (str(compiler.resolve()) in found) == counts
    assert "late.py" in found


def test_what_a_gpu_brings_along_is_no_code_that_both_sides_share(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Software that is installed for all, and what was compiled by its content. What is kept by its name counts.

    DeepSpeed keeps plans by their names in the folder of Triton.
    """
    elsewhere, content = tmp_path_factory.mktemp("elsewhere"), hashlib.md5(b"").hexdigest()
    alike = [
        "cuda-13/lib64/libnvrtc.so.13",  # CUDA_HOME is a link to it
        "cuda-13/include/cuda_fp16.h",
        f"home/.triton/cache/{content.upper()}/softmax.cubin",
        f"home/.nv/ComputeCache/0/1/{content}",
        "home/.nv/ComputeCache/index",
        f"home/.cupy/kernel_cache/{content}.cubin",
        f"tmp/torchinductor_me/ab/c{content}.py",
        f"inductor/fxgraph/ab/f{content}/g.py",
        f"triton/{content}/softmax.json",
        f"driver/ComputeCache/2/{content}",
        "driver/index",
    ]
    by_name = [
        "home/.cache/mine/fast.cubin", "home/.nvtuned/fast.cubin", "tmp/fast.ptx", "cuda-12/lib64/mine.so",
        "home/.triton/autotune/plan.pickle", "inductor/plans/aVeryLongNameOfAKernelThatIsNoHash.json", "triton/plan",
        f"{content}/.cupy/plan", f"tmp/torchinductor_me/{content[:31]}",
    ]  # fmt: skip
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


@pytest.mark.parametrize(
    "code",
    [
        "open({0!r}, 'w').close()",
        "open({0!r}, 'a').close()",
        "open({0!r} + '~', 'w').close(); os.replace({0!r} + '~', {0!r})",
        "os.symlink('early.py', 'a'); os.link('early.py', Path({0!r}))",
    ],
)
def test_what_is_only_written_outside_of_the_folder_is_told_as_such(
    ask: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory, code: str
) -> None:
    outside, read = (str(tmp_path_factory.mktemp("kept") / "plan") for _ in range(2))
    writing = f"open('log', 'w').close(); open({read!r}, 'w').close(); open({read!r}).close(); {code.format(outside)}"
    assert ask(top, writing, len(used.WRITTEN)) == [outside]


def test_a_folder_outside_counts_where_the_code_itself_lists_its_names(
    ask: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a tuner lists its plans. What a library lists, such as its own cache, is no question of a side."""
    plans, library = (str(tmp_path_factory.mktemp(name)) for name in ("plans", "library"))
    for folder in (str(top), library):
        Path(folder, f"of_{Path(folder).name}.py").write_text(
            "import os\nnames = os.listdir\n\ndef listed(f): names(f)\n"
        )
    for folder, told in ((str(top), True), (library, False)):
        code = f"sys.path.append({folder!r}); import of_{Path(folder).name} as m; m.listed({plans!r}); m.listed('/usr')"
        asked = ask(top, code, 0)
        assert (f"{plans}/*" in asked, "/usr/*" in asked) == (told, False)


def test_a_variable_that_names_everything_leaves_nothing_out(
    used_by: Asking, top: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("kept") / "fast.so"
    outside.write_text("")
    assert str(outside) in used_by(top, f"open({str(outside)!r}).read()", CUDA_HOME="/", CUDA_PATH="")
