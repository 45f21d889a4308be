"""Names of kernels as tables have room for them."""

from __future__ import annotations

from harness.report.kernel_names import kernel_name
from tests.one_test import one_test


@one_test(
    ("name", "wanted"),
    [
        ("bias_add_tuned", "bias_add_tuned"),
        ("void (anonymous namespace)::foo(int)", "foo"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float)",
            "vectorized_layer_norm_kernel",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, std::array<char*, 3> >(int, std::array<char*, 3>)",
            "vectorized_elementwise_kernel",
        ),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float>(cublasGemvParams<int>)",
            "internal::gemvx::kernel",
        ),
        ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_t…"),
        ("<>", "<>"),
    ],
)
def test_names(name: str, wanted: str) -> None:
    assert kernel_name(name, 40) == wanted
