"""Every kernel of ours is of the family that profilers should count it to."""

from __future__ import annotations

import re

import pytest

from harness import paths
from harness.families import OTHER, family
from harness.ops import Catalogue
from tests.one_test import one_test


@pytest.fixture(autouse=True)
def declared() -> Catalogue:
    return Catalogue()


@one_test(
    ("name", "wanted"),
    [
        ("bias_add_index32", "elementwise_unrolled"),
        ("two_biases_divmod64", "elementwise_unrolled"),
        ("bias_add_early_index32", "elementwise_unrolled"),
        ("activate", "elementwise_unrolled"),
        ("activate_whole", "elementwise_vectorised"),
        ("bias_add_any", "elementwise_vectorised"),
        ("prelu_naive64", "elementwise_unrolled"),
        ("prelu_packed", "elementwise_vectorised"),
        ("prelu_grad_total", "reduction"),
        ("int8_linear_tiles", "gemm"),
        ("qkv_few_rows_tuned", "gemm"),
        ("decode_attention_tuned", "attention"),
        ("bias_dropout_residual_tuned", "elementwise_vectorised"),
        ("dropout_naive", "elementwise_unrolled"),
        ("layer_norm_grad_dgamma", "normalisation"),
        ("rms_norm_tuned", "normalisation"),
        ("bn_add", "normalisation"),
        ("softmax_sum", "softmax"),
        ("misaligned_words", "copy"),
        ("unscale_loop", "unscale"),
        ("adamw_tuned", "optimiser"),
        ("window_attention_grad_tuned", "attention"),
        ("layer_norm_window_partition_long", "normalisation"),
        ("bank_conflicts", OTHER),
        ("fma_chains", OTHER),
    ],
)
def test_the_family_of_a_kernel_of_ours(name: str, wanted: str) -> None:
    assert family(name) == wanted


def test_only_kernels_that_are_none_of_these_are_other() -> None:
    declared = re.compile(
        r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*)?(?!__launch)(\w+)\s*\("
    )
    names = {
        name
        for file in paths.data("kernels").rglob("*.cu*")
        for name in declared.findall(file.read_text(encoding="utf-8"))
        if name != "name"  # the parameter of a macro
    }
    assert len(names) > 100
    assert {name for name in names if family(name) == OTHER} == {"bank_conflicts", "fma_chains"}
