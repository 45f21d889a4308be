"""Windows put back into images, and the cyclic shift undone: row S5. Twin of window_reverse.cu.

backward: x is the gradient of the images, y the gradient of the windows. It is the map of window_partition.
"""

from __future__ import annotations

from harness.collection.ops.layouts._window_ops import window_op

OP = window_op(
    "window_reverse",
    "windows put back into images (B, H, W, C), which are rolled back",
    "view, permute, contiguous and roll",
    forward=False,
)
