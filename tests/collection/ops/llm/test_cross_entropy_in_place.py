"""What the kernels of cross_entropy_in_place are compiled for. test_cross_entropy.py has the rest."""

from __future__ import annotations

COMPILED = [
    {"M": rows, "V": columns}
    for rows, columns in [
        (1000, 5),
        (1000, 256),
        (1000, 1001),
        (10_000, 32_000),
        (1000, 50_257),
        (1, 128_256),
        (1000, 128_256),
        (1000, 151_936),
        (10_000, 50_257),
        (10_000, 151_936),
        (1000, 262_144),
        (1, 262_144),
        (1000, 600_000),
    ]
]
