"""NVRTC and the cache of compiled kernels; needs no GPU."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import paths
from harness.cuda.compile import compile_verbose, cubin
from harness.errors import CompileError
from tests.rare import rare

PRELU = paths.data("kernels") / "activation" / "prelu.cu"
MACROS = {"SCALAR": "__half"}
SMALL = 'extern "C" __global__ void k(int* p) { *p = 1; }'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that were compiled, by what stands in for the compiler and gives each the same code."""
    files: list[Path] = []
    code = b"\x7fELF" + bytes(range(256)) * 8

    def compile_verbose(file: Path, *_: object) -> tuple[bytes, str]:
        files.append(file)
        return code, ""

    monkeypatch.setattr("harness.cuda.compile.compile_verbose", compile_verbose)
    return files


def entries(cache: Path) -> list[Path]:
    return [file for file in cache.rglob("*") if file.is_file() and file.stat().st_size > 1000]


def test_machine_code_with_line_information():
    code, _ = compile_verbose(PRELU, MACROS, "sm_90")
    assert code.startswith(b"\x7fELF")
    assert b".debug_line" in code
    # DWARF keeps folder and name apart.
    assert str(PRELU.parent).encode() in code
    assert PRELU.name.encode() in code


@pytest.mark.slow  # test_a_changed_header_is_noticed has what comes from the disk
def test_the_second_time_comes_from_the_disk(cache, monkeypatch):
    first = cubin(PRELU, MACROS, "sm_90")
    monkeypatch.setattr("harness.cuda.compile.compile_verbose", None)
    assert cubin(PRELU, MACROS, "sm_90") == first


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda whole: b"",
        lambda whole: whole[:10],
        lambda whole: whole[:32],
        lambda whole: whole[:-1],
        lambda whole: whole[: len(whole) // 2] + b"\0" * (len(whole) - len(whole) // 2),
        lambda whole: whole + b"\0",
        lambda whole: whole[32:],
        lambda whole: hashlib.sha256(b"").digest(),
    ],
    ids=["empty", "shorter than a hash", "only a hash", "cut", "zeros", "longer", "of an older harness", "no code"],
)
def test_an_entry_that_is_not_whole_is_no_code(cache, tmp_path, compiled, spoiled):
    source = tmp_path / "k.cu"
    source.write_text(SMALL)
    first = cubin(source, {}, "sm_90")
    [entry] = entries(cache)
    whole = entry.read_bytes()
    entry.write_bytes(spoiled(whole))
    assert cubin(source, {}, "sm_90") == first
    assert len(compiled) == 2
    [entry] = entries(cache)
    assert entry.read_bytes() == whole


def test_kernels_of_strangers_are_not_loaded(cache, tmp_path, compiled):
    """An entry whose hash is right, in a folder that others can write, or in a file that others can write."""
    source = tmp_path / "k.cu"
    source.write_text(SMALL)
    code = cubin(source, {}, "sm_90")
    [entry] = entries(cache)
    planted = b"\x7fELF" + b"planted" * 1000
    for spoiled in (cache.parent, cache, entry):
        entry.write_bytes(hashlib.sha256(planted).digest() + planted)
        assert cubin(source, {}, "sm_90") == planted
        spoiled.chmod(0o777)
        assert cubin(source, {}, "sm_90") == code
        spoiled.chmod(0o700)
    assert len(compiled) == 4


@pytest.mark.parametrize("chosen", ["/proc/none", "/dev/null/below"])
def test_without_a_cache_folder_kernels_are_compiled(tmp_path, monkeypatch, chosen):
    monkeypatch.setenv("HARNESS_CACHE", chosen)
    source = tmp_path / "k.cu"
    source.write_text(SMALL)
    assert cubin(source, {}, "sm_90") == cubin(source, {}, "sm_90")


@pytest.mark.usefixtures("compiled")
def test_content_options_and_architecture_make_the_key(cache, tmp_path):
    source = tmp_path / "k.cu"
    source.write_text('extern "C" __global__ void k(int* p) { *p = VALUE; }')
    for text in (source.read_text(), source.read_text().replace("*p =", "*p +=")):
        source.write_text(text)
        for value in (1, 2):
            for arch in ("sm_80", "sm_90"):
                cubin(source, {"VALUE": value}, arch)
    assert len(entries(cache)) == 8


@pytest.mark.parametrize("name", ["include/own.cuh", rare("own.cuh"), rare("own.h")])
def test_a_changed_header_is_noticed(cache, tmp_path, name):
    header = tmp_path / name
    header.parent.mkdir(exist_ok=True)
    header.write_text("#define ADDED 1\n")
    source = tmp_path / "k.cu"
    source.write_text(f'#include "{header.name}"\nextern "C" __global__ void k(int* p) {{ *p += ADDED; }}')
    before = cubin(source, {}, "sm_90")
    header.write_text("#define ADDED 2\n")
    assert cubin(source, {}, "sm_90") != before


@pytest.mark.slow
def test_processes_may_share_the_cache(cache, tmp_path):
    script = tmp_path / "four.py"
    script.write_text(
        "import hashlib, sys\nfrom pathlib import Path\nfrom harness.cuda.compile import cubin\n"
        f"codes = [cubin(Path({str(PRELU)!r}), {MACROS}, 'sm_90') for _ in range(4)]\n"
        "print(*(hashlib.sha256(code).hexdigest() for code in codes))\n"
    )
    command = [sys.executable, str(script)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    codes = [process.communicate()[0].split() for process in started]
    assert [len(found) for found in codes] == [4, 4]
    assert len({code for found in codes for code in found}) == 1
    assert len(entries(cache)) == 1


def test_an_error_shows_the_compilers_log(tmp_path):
    source = tmp_path / "bad.cu"
    source.write_text('extern "C" __global__ void k(int* p) { *p = missing; }')
    with pytest.raises(CompileError, match=r'bad.cu\(1\): error: identifier "missing" is undefined'):
        compile_verbose(source, {}, "sm_90")


def test_a_kernel_with_local_memory_would_be_noticed(tmp_path: Path) -> None:
    source = tmp_path / "local.cu"
    source.write_text(
        'extern "C" __global__ void k(int* p, int n) {'
        " int a[64]; for (int i = 0; i < n; ++i) a[p[i] % 64] = i; p[0] = a[n % 64]; }"
    )
    _, log = compile_verbose(source, {}, "sm_90")
    assert not re.search(r"\b0 bytes stack frame", log)
