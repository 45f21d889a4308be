"""Who else computes on a GPU, and by which name commands hold it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness import devices

BUSY = """
import sys, torch
x = torch.ones(1, device="cuda")
print("computes", flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
@pytest.mark.alone
def test_another_process_on_the_gpu_is_seen_as_long_as_it_is_there() -> None:
    import torch

    torch.ones(1, device="cuda")  # this process is on it, too
    cuda = devices.kinds()["cuda"]
    before = cuda.conditions().others
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "computes\n"
        seen = cuda.conditions().others
        other.communicate("")
    assert (before, seen, cuda.conditions().others) == (0, 1, 0)


@pytest.mark.gpu
def test_a_gpu_has_the_same_name_however_it_is_numbered() -> None:
    names = devices.kinds()["cuda"].hardware
    assert len({*names}) == len(names) == devices.kinds()["cuda"].count
    uuid = f"GPU-{names[-1].removeprefix('GPU ')}"
    program = "from harness import devices; print(*devices.kinds()['cuda'].hardware, sep='\\n')"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [names[-1]]
