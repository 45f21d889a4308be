# ruff: noqa: E501 - names are as long as profilers write them
from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import families
from harness.errors import UsageError
from harness.families import FAMILIES, OTHER, family
from tests.one_test import one_test

NAMES = {
    "gemm": [
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kernel__51_cublas",
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn",
        "ampere_sgemm_128x64_tn",
        "volta_sgemm_128x32_sliced1x4_nn",
        "nvjet_hsh_256x128_64x3_2x1_v_bz_coopA_TNT",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false, cublasGemvParamsEx<int> >",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __half, __half>(cublasGemvParamsEx<int>)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half, true, true, false>(float const*)",
        "triton_tem_fused_mm_3",
        "triton_mm",
    ],
    "convolution": [
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_g1_kernel__5x_cudnn",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x64_kernel__5x_cudnn",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int, int, int, float const*)",
        "void cudnn::cnn::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>(int, int, int, float const*)",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)",
        "void cutlass_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_64x128_32x6>(Params)",
        "volta_scudnn_128x64_relu_interior_nn_v1",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(WinogradDataParams<float, float>)",
        "void convolve_common_engine_float_NHWC<__half, __half, 128, 5, 5, 3, 3, 3, true, false>(int, int, int)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, c10::Half, int>(at::GenericPackedTensorAccessor<c10::Half>)",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>>(Flash_fwd_params)",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>(Flash_bwd_params)",
        "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::half_t, cutlass::arch::Sm80>)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "triton_tem_fused_flex_attention_1",
        "_attn_fwd",
        "_attn_bwd_dkdv",
        "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<cutlass::half_t>>>(Params)",
    ],
    "normalisation": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*)",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<c10::Half, float>(c10::Half const*)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u, 1u, 32u, true>(long)",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long, float, float const*, float*, float*)",
        "void cuApplyLayerNorm<float, float, float>(float*, float*, float*, float const*, int, int, float)",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float, float, float, int>(at::Accessor)",
        "void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(float, float, float, float)",
        "void cudnn::batchnorm_fwtr_nhwc_semiPersist<__half, float>(float)",
        "triton_per_fused_native_layer_norm_15",
        "triton_red_fused__native_batch_norm_legit_functional_2",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<c10::Half, c10::Half, float, 8, false, false>(c10::Half*, int)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::SoftMaxForwardEpilogue>(float*)",
        "triton_per_fused__softmax_add_3",
    ],
    "elementwise_vectorised": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)>(int)",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4>(at::cuda::detail)",
        "triton_poi_fused_convolution_relu_0",
    ],
    "elementwise_unrolled": [
        "rotary_kernel",
        "_rope_embedding",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
        "_swiglu_forward_kernel",
        "void at::native::unrolled_elementwise_kernel<at::native::BinaryFunctor<float, float, float, at::native::MulFunctor>>(int)",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> > >(int)",
        "void at::native::elementwise_kernel_manual_unroll<128, 8, at::native::gpu_kernel_impl<at::native::CUDAFunctor_add>>(int)",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar const&)>(int)",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, normal>(int)",
    ],
    "reduction": [
        "void cub::CUB_200700_900_NS::DeviceRadixSortOnesweepKernel<Policy, false, long, long, int>(int*)",
        "void cub::CUB_200700_900_NS::DeviceScanKernel<Policy, int*>(int*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, sum_functor> > >(R)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float, float, float> > >(R)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*)",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*, long, long, long)",
        "triton_red_fused_sum_4",
    ],
    "copy": [
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at)>>(i)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 3, 64, 64>(OpaqueType)",
        "void at::native::roll_cuda_kernel<float>(float const*, float*, long, long, long, long, long, long)",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::Half, long, unsigned int, 2, 2, -2, true>(at::TensorInfo)",
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, 0>(cudnn::ops::nchw2nhwc_params_t<float>)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)",
    ],
    "optimiser": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>>(T)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float>>(T)",
    ],
    "unscale": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<1>, UnaryOpFunctor<float, 1, 1, 0>, at::native::_amp_foreach_non_finite_check_and_unscale_cuda_(c10::ArrayRef<at::Tensor>, at::Tensor&, at::Tensor const&)::{lambda()#1}::operator()() const::{lambda(float)#1}>(T)",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
        "void vllm::cross_device_reduce_1stage<__half, 2>(vllm::RankData*)",
    ],
    OTHER: [
        "void at::native::(anonymous namespace)::upsample_bilinear2d_out_frame<float, float>(int, float, float, bool)",
        "my_own_kernel",
        "spin_kernel(long)",
    ],
}  # fmt: skip
OPERATORS = {
    "gemm": ["aten::mm", "aten::addmm", "aten::bmm"],
    "convolution": ["aten::mkldnn_convolution", "aten::convolution_backward", "aten::thnn_conv2d"],
    "attention": ["aten::_scaled_dot_product_flash_attention_for_cpu"],
    "normalisation": ["aten::native_layer_norm", "aten::native_batch_norm_backward"],
    "softmax": ["aten::_softmax", "aten::_log_softmax_backward_data"],
    "elementwise_vectorised": ["aten::add_", "aten::gelu_backward", "aten::mul", "aten::normal_"],
    "reduction": ["aten::sum", "aten::nll_loss_forward", "aten::max_pool2d_with_indices"],
    "copy": ["aten::copy_", "aten::cat", "aten::index_select", "aten::_to_copy"],
    "optimiser": ["aten::_foreach_add_", "aten::_fused_adamw_"],
    "unscale": ["aten::_amp_foreach_non_finite_check_and_unscale_"],
    "communication": ["c10d::allreduce_", "gloo:all_reduce"],
    OTHER: ["aten::empty", "aten::view", "AddmmBackward0", "autograd::engine::evaluate_function: ConvolutionBackward0"],
}
CASES = [(name, wanted) for table in (NAMES, OPERATORS) for wanted, names in table.items() for name in names]


@one_test(("name", "wanted"), CASES, ids=[name[:50] for name, _ in CASES])
def test_the_family_of_a_name(name: str, wanted: str) -> None:
    assert family(name) == wanted


def test_every_family_has_names_here() -> None:
    assert set(NAMES) == set(FAMILIES)


@pytest.fixture
def own() -> Iterator[None]:
    """What is declared is gone after the test."""
    before = dict(families._DECLARED)
    yield
    families._DECLARED.clear()
    families._DECLARED.update(before)
    family.cache_clear()


def test_who_brings_kernels_declares_their_families(own: None) -> None:
    assert family("my_softmax_copy") == "softmax"
    families.declare("copy", r"^my_\w+_copy$")
    assert family("my_softmax_copy") == "copy"
    families.declare("reduction", r"^my_softmax_copy$")
    assert family("my_softmax_copy") == "copy", "what was declared first counts"
    families.declare("reduction", r"allreduce")
    assert family("allreduce") == "communication"


def test_a_family_that_isnt_known_and_a_broken_pattern_are_refused() -> None:
    with pytest.raises(UsageError, match=r"test_families\.py:\d+: .* of the family 'copies'") as caught:
        families.declare("copies", "^mine$")
    assert caught.value.advice == "did you mean 'copy'?"
    with pytest.raises(UsageError, match=r"test_families\.py:\d+: '\(' is no regular expression"):
        families.declare("copy", "(")


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test declares is forgotten after it."""
    monkeypatch.setattr(families, "_DECLARED", {})
    family.cache_clear()
    yield
    family.cache_clear()


@pytest.mark.usefixtures("declared")
def test_a_users_file_says_of_which_families_kernels_are(tmp_path: Path) -> None:
    assert family("mystery_fwd<float>") == OTHER
    file = tmp_path / "mine.txt"
    file.write_text("# ours\n\nattention ^mystery_(fwd|bwd)  # both\ngemm   strange product\n")
    families.read(file)
    assert family("mystery_fwd<float>") == "attention"
    assert family("a strange product of mine") == "gemm"


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gemm", "mine.txt:1: 'gemm' has no pattern"),
        ("\ngem x", "mine.txt:2: kernels like 'x' can't be of the family 'gem'"),
        ("gemm (", "mine.txt:1: '(' is no regular expression"),
    ],
)
def test_a_line_that_says_nothing_is_told_with_its_number(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "mine.txt").write_text(text)
    with pytest.raises(UsageError, match=re.escape(told)):
        families.read(tmp_path / "mine.txt")
    with pytest.raises(UsageError, match="can't be read"):
        families.read(tmp_path / "nowhere.txt")
