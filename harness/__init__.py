"""Measure GPU operators honestly: bundled CUDA kernels beside PyTorch, against what the memory can do."""

__version__ = "0.2.0"
