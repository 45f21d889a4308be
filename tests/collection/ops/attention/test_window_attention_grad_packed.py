"""The backward of attention over heads as they lie in qkv: where PACKED reads and writes, and that it spills nothing.

What it computes on a GPU is tested with the operator that asks for it, in tests/collection/nn/test_on_the_gpu.py.
"""

from __future__ import annotations

import pytest
import torch

from tests.one_test import one_test

# Windows, heads, tokens, sizes of a head.
SIZES = [(3, 1, 49, 32), (2, 3, 49, 32), (3, 4, 64, 32), (2, 2, 144, 32), (2, 3, 17, 64), (1, 2, 144, 64)]
DOUT, Q, TENSORS = 0, 1, 4


def row_of(i, chunks):
    row = i // chunks
    return row // 8 * 8 + row % 8 // 2 + row % 2 * 4 if chunks == 4 else row


class Places:
    """Twin of window_attention_grad_stage.cuh: where threads read and write, in elements of dout or qkv."""

    def __init__(self, heads, tokens, dim):
        self.tokens, self.dim, self.chunks, self.between = tokens, dim, dim // 8, heads * dim
        self.threads = -(-tokens // 16) * 32
        self.out_row, self.qkv_row = self.between, 3 * self.between

    def begin(self, window, head, tensor):
        """offsets_of(), and how far k and v lie behind q."""
        row = self.out_row if tensor == DOUT else self.qkv_row
        behind = 0 if tensor == DOUT else (tensor - Q) * self.between
        return window * (self.tokens * row) + head * self.dim + behind

    def read_by_chunks(self, window, head, tensor):
        """start_window() of aligned tensors: {(row, column) in shared memory: place}."""
        pitch = self.out_row if tensor == DOUT else self.qkv_row
        step, found = self.threads // self.chunks, {}
        for thread in range(self.threads):
            row, chunk = row_of(thread, self.chunks), thread % self.chunks
            source = self.begin(window, head, tensor) + row * pitch + chunk * 8
            for first in range(0, self.tokens, step):
                if first + step <= self.tokens or row < self.tokens - first:
                    assert (source + first * pitch) % 8 == 0
                    for e in range(8):
                        found[row + first, chunk * 8 + e] = source + first * pitch + e
        return found

    def read_by_elements(self, window, head, tensor):
        """start_window() of other tensors."""
        pitch = self.out_row if tensor == DOUT else self.qkv_row
        begin, dim = self.begin(window, head, tensor), self.dim
        return {(i // dim, i % dim): begin + i // dim * pitch + i % dim for i in range(self.tokens * dim)}

    def written(self, window, head, tensor):
        """write_strip() of all strips, in dqkv: {(token, column): place}."""
        found = {}
        for strip in range(self.threads // 32):
            for lane in range(32):
                token, chunk = 16 * strip + row_of(lane, self.chunks), lane % self.chunks
                own = self.begin(window, head, tensor) + token * self.qkv_row + chunk * 8
                for first in range(0, 16, 32 // self.chunks):
                    if token + first < self.tokens:
                        for e in range(8):
                            found[token + first, chunk * 8 + e] = own + first * self.qkv_row + e
        return found


@pytest.mark.slow  # test_window_attention_grad_fragments.py has the products
@one_test(("windows", "heads", "tokens", "dim"), SIZES)
def test_places_are_those_of_qkv(windows, heads, tokens, dim):
    places, wide = Places(heads, tokens, dim), heads * dim
    dout = torch.arange(windows * tokens * wide).view(windows, tokens, heads, dim)
    qkv = torch.arange(windows * tokens * 3 * wide).view(windows, tokens, 3, heads, dim)
    # The first and the last of all, and one between them.
    for window, head in {(0, 0), (windows - 1, heads - 1), (windows // 2, heads // 2)}:
        for tensor in range(TENSORS):
            own = dout[window, :, head] if tensor == DOUT else qkv[window, :, tensor - Q, head]
            wanted = dict(zip(((r, c) for r in range(tokens) for c in range(dim)), own.flatten().tolist(), strict=True))
            assert places.read_by_chunks(window, head, tensor) == wanted
            assert places.read_by_elements(window, head, tensor) == wanted
            if tensor != DOUT:
                assert places.written(window, head, tensor) == wanted


@pytest.mark.parametrize(("arch", "heads", "has_mask"), [("sm_90", 3, 1), ("sm_90", 24, 0), ("sm_80", 6, 1)])
def test_swin_s_compilations_spill_nothing(compiled, arch, heads, has_mask):
    macros = {"SCALAR": "__nv_bfloat16", "TOKENS": 49, "DIM": 32, "HAS_BIAS": 1, "HAS_MASK": has_mask}
    kernels = compiled("window_attention_grad.cu", {**macros, "STAGES": 2, "RESIDENT": 3, "PACKED": heads}, arch)
    assert kernels["window_attention_grad_tuned"].local_bytes == kernels["window_attention_grad_total"].local_bytes == 0
