"""What the kernels of window_reverse are compiled for. test_windows.py has the rest."""

from __future__ import annotations

# Units of 16 and of 8 bytes, and none; pieces shorter than a pack; indexes of 32 and 64 bits; both ways.
COMPILED = [
    {"B": b, "H": 14, "W": 14, "C": c, "window": 7, "shift": 3, "direction": direction}
    for b, c in [(2, 96), (2, 100), (2, 97), (2, 1), (2**26, 96), (2**24, 1)]
    for direction in ("forward", "backward")
]
