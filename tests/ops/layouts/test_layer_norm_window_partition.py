"""layer_norm_window_partition: its plans, its reference, and its kernels on a GPU."""

from __future__ import annotations

# Lanes of a warp with few chunks and with many, with and without missing ones, chunks of each width, blocks, and rows
# that are too long for a block.
COMPILED = [
    {"B": b, "H": 2, "W": 2, "C": c, "window": 2, "shift": 1}
    for b, c in [
        *((2, c) for c in (1, 3, 4, 8, 49, 96, 97, 98, 100, 128, 192, 384, 768, 1000, 1536, 3072, 8191, 8192, 2**15)),
        (2, 2**17),
    ]
]
