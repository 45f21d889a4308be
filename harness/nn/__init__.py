"""The catalogue's kernels in a user's model."""

from harness.nn._rows import layer_norm, rms_norm, softmax

__all__ = ["layer_norm", "rms_norm", "softmax"]
