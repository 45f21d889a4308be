COMPILED = [
    {"T": 1000, "Q": q, "K": k, "D": d, "P": 4096, "pairs": pairs, "way": way}
    for pairs, way in (("halves", "forward"), ("halves", "backward"), ("interleaved", "forward"))
    for q, k, d in [(32, 8, 128), (16, 16, 64), (3, 1, 6), (32, 32, 256)]
]
