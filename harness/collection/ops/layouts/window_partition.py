"""The cyclic shift and the partition of images into windows: row S5. Twin of window_partition.cu.

backward: x is the gradient of the windows, y the gradient of the images. It is the map of window_reverse.
"""

from __future__ import annotations

from harness.collection.ops.layouts._window_ops import window_op

OP = window_op(
    "window_partition",
    "images (B, H, W, C), rolled and cut into windows",
    "roll, view, permute and contiguous",
    forward=True,
)
