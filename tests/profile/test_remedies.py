"""What to try in a program, by the kernels of its timeline. Names of kernels are as H200s and A100s have told them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.families import family
from harness.profile._remedies import Remedy, remedies
from harness.profile._timeline import FamilyTime, Gaps, KernelTime, Timeline

WINDOW = 1e-3


@pytest.fixture
def recorded() -> Callable[..., tuple[Remedy, ...]]:
    """recorded({name: share}, ...): what to try where these kernels take these shares of a GPU's window."""

    def make(
        kernels: dict[str, float], *, host: float = 0.0, on_gpu: bool = True, devices: int = 1
    ) -> tuple[Remedy, ...]:
        times = tuple(KernelTime(name, family(name), 1, share * WINDOW, share) for name, share in kernels.items())
        busy, gaps = sum(kernels.values()) * WINDOW * devices, Gaps(0, 0.0)
        waited = host * WINDOW * devices
        families = tuple(FamilyTime(one.family, 1, one.seconds, one.share) for one in times)
        return remedies(Timeline(on_gpu, devices, WINDOW, busy, waited, 0.0, gaps, gaps, times, families))

    return make


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "element-wise"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma", "float32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nt_align1>", "float32"),
        ("void precomputed_convolve_sgemm<float, 1024, 5, 5, 4, 3, 3, 1, false>", "float32"),
        ("void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 6, false, false>", "softmax"),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>", "NHWC"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>", "optimizer"),
    ],
)
def test_each_kind_of_kernel_has_its_remedy(recorded, name: str, what: str) -> None:
    (told,) = recorded({name: 0.4, "ncclDevKernel": 0.6})
    assert what in told.what
    assert told.seconds == pytest.approx(0.4 * WINDOW)
    assert recorded({name: 0.029, "ncclDevKernel": 0.971}) == ()


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_add_gelu_3",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1",
        "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>",
        "nvjet_sm90_hsh_192x192_64x4_2x1_v_bz_coopB_TNN",
        "void precomputed_convolve_sgemm<__half, 1024, 5, 5, 4, 3, 3, 1, false>",
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, "
            "FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW>>"
        ),
        "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<32, 128, 128, 4>>",
    ],
)
def test_what_is_in_its_best_form_has_none(recorded, name: str) -> None:
    assert recorded({name: 1.0}) == ()


def test_softmax_beside_fused_attention_is_none_of_attention(recorded) -> None:
    names = {"softmax_warp_forward": 0.5, "flash_fwd_kernel": 0.5}
    assert recorded(names) == ()


def test_gaps_are_of_the_host_or_of_what_it_waits_for(recorded) -> None:
    launching, elsewhere = recorded({"ncclDevKernel": 0.4}, host=0.5, devices=2)
    assert launching.what == "the GPU waits while the host launches"
    assert launching.seconds == pytest.approx(2 * 0.5 * WINDOW)
    assert elsewhere.what == "the GPU waits while the host is outside of torch"
    assert elsewhere.seconds == pytest.approx(2 * 0.1 * WINDOW)


def test_operators_of_a_cpu_have_no_remedy(recorded) -> None:
    assert recorded({"aten::softmax": 1.0}, on_gpu=False) == ()
