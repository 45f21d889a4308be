COMPILED = [{"T": 5, "N": 1000}]
