"""What the kernels of dequantize_bias_residual compile; test_quantise.py calls them."""

from __future__ import annotations

COMPILED = [{"M": 4, "C": c, "scales": scales} for c in (96, 97) for scales in ("tensor", "channel")]
