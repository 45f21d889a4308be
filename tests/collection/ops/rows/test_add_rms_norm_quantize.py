COMPILED = [
    {"M": rows, "N": columns, "to": to, "scales": scales}
    for to in ("e4m3", "int8")
    for scales in ("row", "tensor")
    for rows, columns in [
        (1000, 77),
        (1000, 128),
        (10_000, 2048),
        (10_000, 5120),
        (10_000, 8192),
        (10_000, 131_072),
        (1, 2**18),
    ]
]
