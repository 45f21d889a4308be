"""Two ranks of a real program on two GPUs: NCCL's kernels are matched, and the rank with more work is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.profile import torch as tool

pytestmark = [
    pytest.mark.gpu, pytest.mark.alone, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]  # fmt: skip
PROGRAM = """
import os, torch, harness
import torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x, y = torch.randn(4096, 4096, device="cuda"), torch.randn(2**22, device="cuda")
for _ in range(24):
    for _ in range(4):
        for _ in range(2 if dist.get_rank() == 1 else 1):
            x @ x
        dist.all_reduce(y)
        y /= 2
    harness.step()
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_the_rank_with_more_work_holds_the_other_one_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["torchrun", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    found = tool.of_script(words, tmp_path / "out", tool.WINDOW._replace(wait=10, active=10))
    assert found.exit_code == 0
    told = tool.of_ranks(found.traces)
    assert told.skew.unknown == ""
    assert told.skew.collectives == 40
    assert [len(rank.steps) for rank in told.skew.ranks] == [10, 10]
    assert all(line.on_gpu for line in told.timelines)
    assert abs(told.skew.ranks[1].clock.ahead) < 1e-3, "both ranks have the host's clock"
    (late,) = told.verdict.stragglers
    assert late.rank == 1
    first, second = told.skew.ranks
    assert late.cost == pytest.approx(second.computing - first.computing, rel=0.3)
    assert "launches a step where others have" in late.why
