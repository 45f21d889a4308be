"""Limits of the machine that the tests run on: plausible, and the same when they are asked for again."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness import limits
from harness.devices.cpu import Cpu
from harness.limits import Needs
from harness.model import COMPUTE_KINDS


@pytest.fixture(autouse=True)
def _nothing_is_kept(cache_folder):
    for file in cache_folder.glob("limits-*"):
        file.unlink()


@pytest.mark.slow  # cli/test_runs.py has a run whose limits are measured
def test_the_real_processor():
    """One small size of every stream and product that the CPU offers, from a cache that is taken for a small one."""

    class Small(Cpu):
        cache_bytes = 2**16
        stream_sizes = (2**20,)
        product_sizes = (128,)
        load_seconds = 0.0

    found = limits.measure(Small(), Needs(kinds=COMPUTE_KINDS, worlds=(2,)))
    assert {p.read_share for p in found.best} == {0, 0.5, 0.67, 0.75, 1}
    assert all(1e7 < p.bandwidth < 1e13 for p in found.points)
    assert {p.kind for p in found.compute} == {"float32", "bfloat16"}
    assert all(1e7 < p.rate < 1e14 for p in found.compute)
    assert found.links == ()


@pytest.mark.gpu
@pytest.mark.alone
def test_the_streams_of_the_real_gpu():
    from harness.devices.cuda import Cuda

    device = Cuda()
    device.stream_sizes = (2**24, 2**28)
    found = limits.measure(device, Needs())
    assert {p.read_share for p in found.best} == {0, 0.5, 0.67, 0.75, 1}
    assert all(1e10 < p.bandwidth < 2e13 for p in found.points)
    assert abs(limits.again(device, found).drift) < 0.05


@pytest.mark.gpu
@pytest.mark.alone
def test_a_second_run_on_the_real_gpu_starts_at_once():
    from harness.devices.cuda import Cuda

    device = Cuda()
    device.stream_sizes = (2**28, 2**30, 2**32)  # the probe takes the one in the middle, as of a real run about 1 GB

    def starts_at_once() -> bool:
        told: list[str] = []
        first = limits.ready(device, Needs(), fresh=True)
        second = limits.ready(device, Needs(), progress=lambda text, _: told.append(text))
        assert (second == first) == (told == ["checking whether the machine is as it was"])
        return second == first

    # A GPU that was busy until now may change its clock between the two, which a probe must notice.
    assert any(starts_at_once() for _ in range(3))


@pytest.mark.gpu
@pytest.mark.alone
def test_the_peaks_of_the_real_gpu():
    """Tensor cores multiply several times as fast as CUDA cores, and faster the narrower the type."""
    from harness.devices.cuda import Cuda

    found = limits.measure(Cuda(), Needs(streams=False, kinds=COMPUTE_KINDS))
    rates = {kind: found.rate(kind) for kind in COMPUTE_KINDS if found.rate(kind)}
    assert rates
    assert all(1e12 < rate < 1e16 for rate in rates.values())
    assert all(0.3 < found.rate(kind, "settled") / rate < 1.1 for kind, rate in rates.items())
    order = [rates[kind] for kind in ("float32", "tf32", "float16", "float8") if kind in rates]
    assert all(wider * 1.5 < narrower for wider, narrower in pairwise(order))
    if "bfloat16" in rates:
        assert rates["bfloat16"] == pytest.approx(rates["float16"], rel=0.3)


@pytest.mark.gpu
@pytest.mark.alone
def test_the_links_of_real_gpus():
    from harness.devices.cuda import Cuda

    if Cuda().count < 2:
        pytest.skip("needs 2 GPUs")
    found = limits.measure(Cuda(), Needs(streams=False, worlds=(2,)))
    assert 1e9 < found.link(2) < 2e12
