"""The collection: what the harness comes with to measure. It reaches the instrument only by what plug-ins use, too.

`ops` has kernels and the PyTorch code that they replace, `models` has networks in plain torch, and `steps` has whole
steps of training, inference, scaling and pipelines, which run the kernels in these networks by `harness.nn`.
"""
