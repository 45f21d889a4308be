"""What the kernels of swiglu_grad are compiled for. test_swiglu.py has the rest."""

from __future__ import annotations

COMPILED = [
    *({"M": 1000, "H": columns, "layout": layout} for layout in ("packed", "separate") for columns in (14_336, 77)),
    {"M": 2**20, "H": 14_336, "layout": "packed"},
]
