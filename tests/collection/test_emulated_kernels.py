"""Kernels of language models and windows on a CPU: ways of `tuned`, fallbacks, first steps, in several orders."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.llm import embedding_grad
from harness.collection.ops.rows import _add_norm_grad, _norm_grad
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, complaint

# (op, dtype, sizes and choices, the kernel that `tuned` launches, elements by which tensors begin past 16 bytes):
# blocks, lanes of a warp, clusters and rows of odd lengths. Each compilation takes a second, so `make slow-test` has
# them. test_emulated_plans.py has RoPE.
WINDOWS = {"W": 6, "H": 2, "mask": "shift"}
CASES = [
    ("add_rms_norm", "bfloat16", {"M": 5, "N": 2048}, "tuned", {}),
    ("add_rms_norm", "float32", {"M": 3, "N": 256}, "tuned", {}),
    ("add_rms_norm", "float16", {"M": 2, "N": 65_536}, "tuned", {}),
    ("add_rms_norm", "bfloat16", {"M": 3, "N": 77}, "two_pass", {}),
    ("add_rms_norm", "bfloat16", {"M": 3, "N": 2048}, "two_pass", {"sum": 1}),
    ("add_rms_norm_quantize", "bfloat16", {"M": 5, "N": 2048}, "tuned", {}),
    ("add_rms_norm_quantize", "float32", {"M": 3, "N": 2304, "to": "int8", "scales": "tensor"}, "tuned", {}),
    ("add_rms_norm_quantize", "float16", {"M": 3, "N": 77}, "two_pass", {}),
    ("add_rms_norm_grad", "bfloat16", {"M": 20, "N": 2048}, "tuned", {}),
    ("add_rms_norm_grad", "float32", {"M": 7, "N": 14_336}, "tuned", {}),
    ("add_rms_norm_grad", "bfloat16", {"M": 8, "N": 14_336}, "tuned", {}),
    ("add_rms_norm_grad", "float16", {"M": 50, "N": 77}, "dx", {}),
    ("add_rms_norm_grad", "bfloat16", {"M": 133, "N": 136}, "spread", {}),
    ("add_rms_norm_grad", "float16", {"M": 261, "N": 8}, "spread", {}),
    ("add_rms_norm_grad", "float32", {"M": 128, "N": 36}, "spread", {}),
    ("add_rms_norm_grad", "bfloat16", {"M": 1, "N": 5000}, "spread", {}),
    ("add_rms_norm_grad", "bfloat16", {"M": 9, "N": 72}, "dx", {"dsum": 1}),
    # Few rows, a block each, which load gamma and beta with the row: whole packs, and packs that threads lack; and rows
    # of single elements, which don't.
    ("layer_norm", "bfloat16", {"M": 2, "N": 2048}, "tuned", {}),
    ("layer_norm", "float16", {"M": 3, "N": 1031}, "tuned", {}),
    ("rms_norm", "float32", {"M": 3, "N": 1540}, "tuned", {}),
    # Few rows, of which each block has a part: with threads behind the end of a row, and of a head.
    ("dequantize_bias", "float16", {"M": 3, "C": 300, "scales": "channel"}, "tuned", {}),
    ("dequantize_bias_gelu_quantize", "bfloat16", {"M": 2, "C": 1100, "scales": "channel"}, "tuned", {}),
    ("quantize", "bfloat16", {"M": 5, "C": 300, "scales": "channel"}, "tuned", {}),
    ("quantize", "float32", {"M": 9, "C": 30}, "tuned", {}),
    ("bias_residual", "bfloat16", {"R": 2, "C": 142}, "words", {}),
    ("bias_residual", "float16", {"R": 2, "C": 142}, "any", {"y": 1}),
    ("permute", "float16", {"B": 2, "S": 50, "H": 3, "D": 24}, "heads", {}),
    ("permute", "float32", {"B": 3, "S": 33, "H": 2, "D": 10}, "heads", {}),
    ("two_biases", "float16", {"R": 131, "C": 49}, "any", {}),
    ("two_biases", "float16", {"R": 136, "C": 49}, "any", {}),  # what lies behind the last row's bias can't be read
    ("two_biases", "bfloat16", {"R": 9, "C": 1023}, "any", {}),
    ("two_biases", "float16", {"R": 131, "C": 9}, "any", {"rows": 1}),
    ("two_biases", "float16", {"R": 65, "C": 16}, "any", {"columns": 3}),
    ("two_biases", "bfloat16", {"R": 131, "C": 7}, "any", {}),
    ("swiglu", "bfloat16", {"M": 13, "H": 264}, "tuned", {}),
    ("rms_norm", "bfloat16", {"M": 21, "N": 80}, "tuned", {}),
    ("rms_norm", "float16", {"M": 21, "N": 96}, "tuned", {}),
    ("rms_norm", "bfloat16", {"M": 21, "N": 320}, "tuned", {}),
    ("rms_norm", "bfloat16", {"M": 21, "N": 72}, "tuned", {}),
    ("layer_norm", "bfloat16", {"M": 21, "N": 320}, "tuned", {}),
    ("layer_norm", "float16", {"M": 21, "N": 640}, "tuned", {}),
    ("layer_norm", "bfloat16", {"M": 21, "N": 896}, "tuned", {}),
    ("rms_norm", "float16", {"M": 21, "N": 448}, "tuned", {}),
    ("layer_norm", "bfloat16", {"M": 9, "N": 11_008}, "tuned", {}),
    # Tiles.
    ("layer_norm", "float16", {"M": 45, "N": 197}, "tuned", {}),
    ("layer_norm", "bfloat16", {"M": 300, "N": 3}, "tuned", {"x": 1}),
    ("rms_norm", "float32", {"M": 45, "N": 253}, "tuned", {}),
    ("softmax_grad", "float16", {"M": 45, "N": 77}, "tuned", {}),
    # Two rows at once that begin alike, by lanes and by a block; with rows that have no other one.
    ("layer_norm", "bfloat16", {"M": 37, "N": 515}, "tuned", {}),
    ("layer_norm", "float16", {"M": 45, "N": 1022}, "tuned", {}),
    ("layer_norm", "float32", {"M": 29, "N": 1026}, "tuned", {}),
    ("layer_norm", "bfloat16", {"M": 22, "N": 2047}, "tuned", {}),
    ("softmax", "bfloat16", {"M": 21, "N": 77}, "tuned", {}),
    ("softmax_grad", "float32", {"M": 2, "N": 135_204}, "shared", {}),  # a block's last packs are missing
    ("softmax_grad", "bfloat16", {"M": 1, "N": 262_152}, "shared", {}),
    ("softmax_grad", "float32", {"M": 1, "N": 131_080}, "two_pass", {"dx": 1}),
    ("softmax_grad", "float32", {"M": 1, "N": 131_080}, "two_pass", {"dy": 1}),
    ("softmax_grad", "float32", {"M": 1, "N": 131_080}, "two_pass", {"y": 1}),
    ("softmax", "bfloat16", {"M": 21, "N": 4096}, "tuned", {}),
    ("rms_norm_grad", "bfloat16", {"M": 21, "N": 1032}, "beside", {}),
    ("rms_norm_grad", "float32", {"M": 3, "N": 5000}, "beside", {}),
    ("rms_norm_grad", "float16", {"M": 1, "N": 8}, "beside", {}),
    ("layer_norm_grad", "bfloat16", {"M": 1, "N": 20_000}, "beside", {}),
    ("layer_norm_grad", "bfloat16", {"M": 133, "N": 264}, "beside", {}),
    ("layer_norm_grad", "float16", {"M": 5, "N": 20_000}, "beside", {}),
    ("layer_norm_grad", "float32", {"M": 70, "N": 100}, "beside", {}),
    # Tiles of single elements, several for each block, whose gradients lie in shared memory for a while.
    ("layer_norm_grad", "float16", {"M": 5001, "N": 49}, "tuned", {}),
    ("rms_norm_grad", "bfloat16", {"M": 1003, "N": 197}, "tuned", {}),
    ("layer_norm_grad", "float32", {"M": 9001, "N": 3}, "tuned", {}),
    ("rms_norm_grad", "float16", {"M": 301, "N": 509}, "tuned", {}),
    ("layer_norm_grad", "bfloat16", {"M": 3, "N": 2}, "tuned", {}),
    ("rms_norm_grad", "float16", {"M": 400, "N": 1001}, "tuned", {}),  # a block a row, and no such tile
    # Clusters of 16: one row of single elements at a time, and two rows of packs.
    ("layer_norm_grad", "float16", {"M": 6, "N": 100_003}, "tuned", {}),
    ("rms_norm_grad", "float32", {"M": 17, "N": 65_540}, "tuned", {}),
    ("swiglu", "float32", {"M": 13, "H": 77, "layout": "separate"}, "fused", {}),
    ("swiglu_grad", "bfloat16", {"M": 13, "H": 264}, "tuned", {}),
    ("swiglu_grad", "float16", {"M": 13, "H": 264, "layout": "separate"}, "tuned", {}),
    ("swiglu_grad", "bfloat16", {"M": 13, "H": 77}, "fused", {}),
    ("rope", "bfloat16", {"T": 7, "Q": 8, "K": 2, "D": 128, "P": 20, "way": "backward"}, "tuned", {}),
    ("rope", "float32", {"T": 7, "Q": 3, "K": 2, "D": 24, "P": 5, "pairs": "interleaved"}, "tuned", {}),
    ("rope", "float16", {"T": 7, "Q": 3, "K": 1, "D": 6, "P": 5}, "fused", {}),
    ("cross_entropy", "bfloat16", {"M": 9, "V": 1024}, "tuned", {}),
    ("cross_entropy", "float16", {"M": 9, "V": 5}, "tuned", {}),
    ("cross_entropy", "bfloat16", {"M": 2, "V": 128_256}, "tuned", {}),
    ("cross_entropy", "float16", {"M": 9, "V": 1001}, "online", {"logits": 1}),
    ("cross_entropy_grad", "bfloat16", {"M": 2, "V": 50_257}, "tuned", {}),
    ("cross_entropy_grad", "bfloat16", {"M": 9, "V": 5}, "tuned", {}),
    ("cross_entropy_grad", "bfloat16", {"M": 9, "V": 1001}, "fused", {"logits": 1}),
    ("cross_entropy_in_place", "bfloat16", {"M": 2, "V": 128_256}, "tuned", {}),
    ("cross_entropy_in_place", "float32", {"M": 3, "V": 50_257}, "tuned", {}),
    ("cross_entropy_in_place", "float16", {"M": 9, "V": 1001}, "two_pass", {"logits": 1}),
    ("embedding_grad", "bfloat16", {"T": 1500, "V": 40, "H": 72}, "sums", {}),
    ("embedding_grad", "float32", {"T": 1100, "V": 300, "H": 77, "padding": "first"}, "sums", {}),
    ("linear_few_rows", "bfloat16", {"M": 3, "K": 200, "N": 37, "form": "gates"}, "tuned", {}),
    ("linear_few_rows", "float16", {"M": 20, "K": 1032, "N": 30, "form": "norm"}, "tuned", {}),
    ("linear_few_rows", "bfloat16", {"M": 1, "K": 2048, "N": 100, "form": "add"}, "tuned", {}),
    ("linear_few_rows", "bfloat16", {"M": 3, "K": 77, "N": 37, "form": "gates"}, "fused", {}),
    ("linear_few_rows", "bfloat16", {"M": 3, "K": 80, "N": 37, "form": "add"}, "fused", {"weight": 1}),
    ("qkv_few_rows", "bfloat16", {"M": 9, "E": 96, "H": 4, "G": 2, "D": 24}, "tuned", {}),
    ("qkv_few_rows", "float16", {"M": 3, "E": 33, "H": 3, "G": 1, "D": 10}, "fused", {}),
    ("decode_attention", "bfloat16", {"B": 1, "H": 4, "G": 2, "T": 1601, "D": 64}, "tuned", {}),
    ("decode_attention", "bfloat16", {"B": 2, "H": 4, "G": 2, "T": 801, "D": 64}, "tuned", {}),
    ("decode_attention", "float16", {"B": 1, "H": 10, "G": 1, "T": 300, "D": 104}, "tuned", {}),
    ("decode_attention", "bfloat16", {"B": 2, "H": 6, "G": 3, "T": 33, "D": 77}, "fused", {}),
    ("window_attention", "float16", WINDOWS | {"T": 49, "D": 32, "G": 3}, "tiles", {}),
    ("window_attention", "bfloat16", WINDOWS | {"T": 64, "D": 30, "G": 2}, "tiles", {}),
    ("window_attention", "float16", WINDOWS | {"T": 33, "D": 24, "G": 2}, "tiles", {}),
    ("window_attention", "float16", WINDOWS | {"T": 17, "D": 10, "G": 3}, "tiles", {}),
    ("window_attention", "bfloat16", WINDOWS | {"W": 8, "T": 196, "D": 32, "G": 1}, "tiles", {}),
    ("window_attention", "float16", WINDOWS | {"W": 8, "T": 256, "D": 32, "G": 1}, "tiles", {}),
    ("window_attention", "float16", WINDOWS | {"W": 2, "H": 2, "T": 96, "D": 8, "G": 1}, "tiles", {}),
    ("window_attention", "float16", WINDOWS | {"T": 17, "D": 10, "G": 3}, "scalar", {"q": 2}),
    ("window_attention", "float16", WINDOWS | {"T": 16, "D": 32, "G": 3}, "scalar", {"bias": 1}),
    ("window_attention_packed", "float16", {"W": 8, "H": 6, "side": 7, "D": 30, "G": 2}, "tiles", {}),
    ("softmax", "bfloat16", {"M": 3, "N": 151_936}, "tuned", {}),  # exponentials are computed twice
    ("softmax", "float16", {"M": 2, "N": 200_001}, "tuned", {}),
    ("window_attention_grad", "float16", WINDOWS | {"T": 49, "D": 32, "G": 3}, "tuned", {}),
    ("window_attention_grad", "bfloat16", WINDOWS | {"T": 65, "D": 64, "G": 2}, "tuned", {}),
    ("window_attention_grad", "float16", WINDOWS | {"T": 64, "D": 30, "G": 3}, "tuned", {}),
    ("window_attention_grad", "bfloat16", WINDOWS | {"T": 33, "D": 48, "G": 2}, "tuned", {}),
    ("window_attention_grad", "float16", WINDOWS | {"T": 17, "D": 6, "G": 2}, "tuned", {"dk": 1}),
    ("window_attention_grad", "float16", WINDOWS | {"T": 17, "D": 64, "G": 1}, "tuned", {"q": 1}),
]


@pytest.fixture
def gpu(monkeypatch, emulated_folder):
    compiler()
    monkeypatch.setattr(embedding_grad, "_FEWEST_GROUPS", 2)  # each is a block of 1024 threads
    monkeypatch.setattr(_add_norm_grad, "_FEW_BYTES", 2**17)  # so that not all of these rows are few
    monkeypatch.setattr(_add_norm_grad, "_NARROW", 16)  # so that some of these few rows are long
    return Gpu(emulated_folder)


@pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this
@pytest.mark.parametrize(("op", "dtype", "values", "kernel", "offsets"), CASES)
def test_results_are_right_in_any_order_of_threads(catalogue, gpu, op, dtype, values, kernel, offsets):
    case = case_of(catalogue[op], "tuned", dtype, values)
    for gpu.order in (1, 2):
        assert complaint(gpu, catalogue[op], case, offsets) is None
    assert f"{op}_{kernel}" in gpu.launched


@pytest.mark.slow  # on a GPU test_layer_norm_grad.py has it
@pytest.mark.parametrize(
    ("changed", "columns"),
    [
        ({}, 13),
        ({"_TOTAL_BLOCK": 32}, 24),  # several turns
        ({"_TOTAL_AHEAD": 1}, 13),  # 12 warps
        ({"_RESIDENT_BLOCKS": 0}, 24),  # several teams of a block, of which one has no columns
        ({"_RESIDENT_BLOCKS": 0, "_TOTAL_AHEAD": 4}, 13),  # two teams of three warps
    ],
)
def test_partial_sums_are_added_by_teams_of_any_size(catalogue, gpu, monkeypatch, changed, columns):
    gpu.multiprocessors = 132  # one part of each column for every 32 rows: 47 parts
    for name, value in changed.items():
        monkeypatch.setattr(_norm_grad, name, value)
    case = case_of(catalogue["layer_norm_grad"], "tuned", "float16", {"M": 1500, "N": columns})
    for gpu.order in (1, 2):
        assert complaint(gpu, catalogue[case.op], case, {"x": 1}) is None
    assert gpu.launched.count("layer_norm_grad_total") == 2


@pytest.mark.slow  # on a GPU test_norm_grad.py has it
@pytest.mark.parametrize(("multiprocessors", "rows", "columns"), [(1, 333, 301), (132, 50, 257), (132, 13, 511)])
@pytest.mark.parametrize("op", ["layer_norm_grad", "rms_norm_grad"])
def test_tiles_leave_what_neighbours_have_of_a_pack_alone(catalogue, gpu, op, multiprocessors, rows, columns):
    gpu.multiprocessors, gpu.order = multiprocessors, 2
    case = case_of(catalogue[op], "tuned", "float16", {"M": rows, "N": columns})
    assert complaint(gpu, catalogue[op], case) is None
    assert f"{op}_tuned" in gpu.launched


@pytest.mark.slow  # on a GPU test_window_attention.py has it
@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        ("window_attention", WINDOWS | {"T": 144, "D": 8, "G": 3}),
        ("window_attention", WINDOWS | {"T": 144, "D": 2, "G": 3}),
        ("window_attention_packed", {"W": 8, "H": 6, "side": 12, "D": 8, "G": 2}),
    ],
)
def test_blocks_that_share_a_window_write_their_own_rows_alone(catalogue, gpu, op, sizes):
    """Rows of a single access, of which a warp writes more at a time than a tile has."""
    gpu.multiprocessors, gpu.order = 132, 1  # few windows, whose queries two blocks share
    assert complaint(gpu, catalogue[op], case_of(catalogue[op], "tuned", "float16", sizes)) is None


@pytest.mark.slow  # test_window_attention_grad.py has what rounding loses
@pytest.mark.parametrize("extreme", ["dout", "v"])
def test_gradients_of_the_smallest_numbers_keep_their_places(catalogue, gpu, extreme):
    import torch

    def change(inputs):
        rows = getattr(inputs, extreme)[1::2]
        rows.copy_(torch.full_like(rows, torch.finfo(rows.dtype).smallest_normal).copysign(rows))

    values = {"W": 16, "H": 3, "T": 49, "D": 32, "G": 4, "mask": "shift"}
    case = case_of(catalogue["window_attention_grad"], "tuned", "float16", values)
    assert complaint(gpu, catalogue[case.op], case, change=change) is None


@pytest.mark.slow  # on a GPU test_window_attention_grad.py has it
@pytest.mark.parametrize(("sharers", "offsets"), [(1, {}), (2, {}), (2, {"q": 1}), (2, {"dk": 1})])
def test_gradients_of_queries_whose_keys_one_of_two_warps_has(catalogue, gpu, sharers, offsets):
    def change(inputs):
        inputs.mask[:, 0, :40], inputs.mask[:, 1, 40:], inputs.mask[0, 2] = -math.inf, -math.inf, -math.inf
        inputs.bias[0, 7, 3], inputs.bias[0, 9, :40], inputs.q[0, 0, 5] = math.inf, -60_000, 300

    values = WINDOWS | {"W": 4, "H": 2, "T": 80, "D": 32, "G": 2}
    case = case_of(catalogue["window_attention_grad"], "tuned", "float16", values)
    for gpu.order in (1, 2):
        assert complaint(gpu, catalogue[case.op], case, offsets, {"sharers": sharers}, change) is None


@pytest.mark.slow  # on a GPU test_window_attention.py has it
@pytest.mark.parametrize(("tokens", "size"), [(49, 30), (17, 32)])
def test_a_window_that_is_not_a_number_leaves_nothing_behind(catalogue, gpu, tokens, size):
    """Blocks that stay have the next window where the one before lay, and zeros beside it."""

    def change(inputs):
        inputs.v[:24], inputs.k[:24] = math.inf, math.nan

    gpu.multiprocessors = 1
    values = WINDOWS | {"W": 40, "T": tokens, "D": size, "G": 1}
    case = case_of(catalogue["window_attention"], "tuned", "float16", values)
    assert complaint(gpu, catalogue[case.op], case, change=change) is None


@pytest.mark.slow  # on a GPU test_window_attention.py has it
@pytest.mark.parametrize(("windows", "tokens"), [(4, 49), (16, 49), (8, 144)])
def test_queries_without_keys_and_keys_without_weight(catalogue, gpu, windows, tokens):
    """A query without any key gives NaN, and no other does; a band of keys without weight changes nothing."""

    def change(inputs):
        inputs.mask[0, 5], inputs.mask[1, :, : tokens - 3] = -math.inf, -math.inf

    gpu.multiprocessors = 1
    values = WINDOWS | {"W": windows, "H": 1, "T": tokens, "D": 30, "G": 2, "bias": "no"}
    case = case_of(catalogue["window_attention"], "tuned", "float16", values)
    assert complaint(gpu, catalogue[case.op], case, change=change) is None


@pytest.mark.parametrize(
    ("op", "values"),
    [
        ("cross_entropy_in_place", {"M": 2, "V": 40_000}),
        ("add_rms_norm_grad", {"M": 20, "N": 3080}),
        ("linear_few_rows", {"M": 9, "K": 2056, "N": 100, "form": "norm"}),
    ],
)
def test_a_gpu_without_clusters_and_bulk_copies_is_right_as_well(catalogue, gpu, op, values):
    gpu.arch = 800
    assert complaint(gpu, catalogue[op], case_of(catalogue[op], "tuned", "bfloat16", values)) is None
