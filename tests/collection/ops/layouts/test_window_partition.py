"""What the kernels of window_partition are compiled for. test_windows.py has the rest."""

from __future__ import annotations

# Units of 16 and of 8 bytes, and none; pieces shorter than a pack; indexes of 32 and 64 bits; both ways. Windows that
# fit into a tile, with one row of them and with several, and larger ones.
COMPILED = [
    {"B": b, "H": size, "W": size, "C": c, "window": size // 2, "shift": 3, "direction": direction}
    for b, size, c in [
        (2, 14, 96),
        (2, 14, 100),
        (2, 14, 97),
        (2, 14, 3),
        (2, 14, 1),
        (2, 14, 769),
        (2, 400, 1),
        (2**26, 14, 96),
        (2**24, 14, 1),
        (2**20, 14, 97),
        (2**20, 14, 769),
    ]
    for direction in ("forward", "backward")
]
