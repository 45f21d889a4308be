"""Candidates judged on a GPU, as users judge them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
REFERENCE = """
import torch

def generate_input(size: int, seed: int):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16, generator=generator) for _ in range(2))
    return a, b, torch.empty(size, size, device="cuda", dtype=torch.float16)

def ref_kernel(data):
    a, b, out = data
    out[...] = a + b
    return out
"""
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def add(a, b, out, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    tl.store(out + place, tl.load(a + place, mask=inside) + tl.load(b + place, mask=inside), mask=inside)

def custom_kernel(data):
    a, b, out = data
    add[(triton.cdiv(a.numel(), 1024),)](a, b, out, a.numel(), BLOCK=1024)
    return out
"""
STALE = """
import torch

kept = []

def custom_kernel(data):
    a, b, out = data
    if not kept:
        kept.append(a + b)
    out.copy_(kept[0])
    return out
"""
PRECISION = """
import torch

class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return (a.bfloat16() @ b.bfloat16()).float()

def get_inputs():
    return [torch.randn(512, 2048), torch.randn(2048, 512)]

def get_init_inputs():
    return []
"""
LATE = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * x.sigmoid()

class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, x):
        y = torch.empty_like(x)
        with torch.cuda.stream(self.stream):
            torch.mul(x, x.sigmoid(), out=y)
        return y

def get_inputs():
    return [torch.randn(8192, 8192)]

def get_init_inputs():
    return []
"""
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def judged(folder: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "harness", "judge", *map(str, arguments), "--device=cuda", "--max-time=0.2"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
    }
    done = subprocess.run(
        [*command, f"--output={folder / 'page.json'}"], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (folder / "page.json").is_file(), done.stdout + done.stderr
    return done.returncode, json.loads((folder / "page.json").read_text())


def test_kernels_alone(tmp_path: Path) -> None:
    sizes = ["--sizes=M=4096,N=1000", "--sizes=M=333,N=50257"]
    code, found = judged(tmp_path, EXAMPLES / "judged_softmax.json", "--op=softmax", "--isolated", *sizes)
    assert (code, found["verdict"]) == (0, "right"), found["line"]
    assert len(found["timed"]) == 6
    assert {*found["timed"][0]["baselines"]} == {"eager", "compile", "compile_autotune"}
    assert found["calls"] is None
    assert all(one["of_ceiling"] < 1.02 for one in found["timed"])


def test_a_model_with_a_kernel_in_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code, found = judged(tmp_path, EXAMPLES / "judged_model.py")
    assert (code, found["verdict"]) == (0, "right"), found["line"]
    assert found["calls"]["only_torch"] is False
    assert "The reference runs in float64." in found["notes"]
    assert found["timed"][0]["of_ceiling"] > 0.5
    assert found["timed"][0]["speedup"] > 0.7


def test_a_submission_with_a_kernel_in_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "submission.py").write_text(TRITON)
    code, found = judged(tmp_path, tmp_path / "submission.py", "--sizes=size=1024", "--sizes=size=3001")
    assert (code, found["verdict"]) == (0, "right"), found["line"]
    assert found["calls"] == {"torch": [], "others": [], "only_torch": False}
    assert {one["sizes"] for one in found["checked"]} == {"given", "unseen"}


def test_the_first_result_for_every_call(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "submission.py").write_text(STALE)
    code, found = judged(tmp_path, tmp_path / "submission.py", "--sizes=size=1024")
    assert (code, found["verdict"]) == (5, "wrong"), found["line"]
    assert "found in the timed calls" in found["line"]


def test_less_precise_products(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PRECISION)
    code, found = judged(tmp_path, tmp_path / "model.py")
    assert (code, found["verdict"]) == (5, "wrong"), found["line"]


def test_work_on_another_stream(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(LATE)
    code, found = judged(tmp_path, tmp_path / "model.py")
    assert (code, found["timed"][0]["time"] if found["timed"] else None) == (5, None), found["line"]
