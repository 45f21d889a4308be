"""What happens to images on their way: decoded, cut and resized, copied to the device, and scaled there.

A crop is cut at random for each image of each batch, as training does, and resized to the model's side. On a CPU that
is done with eight bits an element, and the copy takes eight bits too: a quarter of the bytes of float32. The device
then scales the elements for the model. So the bus and the processor's memory have the least to do.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.collection.steps.pipeline._files import HEIGHT, WIDTH

if TYPE_CHECKING:
    import numpy as np
    import torch

    from harness.collection.steps.pipeline._stages import Crew

MISSING = "needs torchvision, which decodes on a GPU: pip install 'gpu-bench-harness[pipeline]'"
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""The mean and the deviation of ImageNet's red, green and blue, in levels of 255. Images are scaled by them."""
_AREA = (0.08, 1.0)
"""The least and the largest area of a crop, over the image's area."""
_RATIO = (3 / 4, 4 / 3)
"""The least and the largest ratio of a crop's width to its height."""


class Item(NamedTuple):
    """A batch on its way. number: its place in the order of batches. data: what the last stage made of it."""

    number: int
    data: Any


def torchvision_missing() -> str | None:
    """Why torchvision can't be used; None if it can."""
    return None if importlib.util.find_spec("torchvision") else MISSING


def order(seed: int, first: int, size: int, files: int) -> list[int]:
    """Which files the images `first` to first + size - 1 come from: each file once an epoch, shuffled anew."""
    import numpy as np

    epochs = range(first // files, (first + size - 1) // files + 1)
    shuffled = np.concatenate([np.random.default_rng([seed, epoch]).permutation(files) for epoch in epochs])
    begin = first - epochs[0] * files
    return [int(one) for one in shuffled[begin : begin + size]]


def crops(seed: int, number: int, size: int) -> np.ndarray:
    """A crop for each image of batch `number`: (size, 4) integers, which are left, top, width and height.

    The area is uniform, and so is the logarithm of the ratio; what would be larger than the image ends at its edge.
    """
    import numpy as np

    random = np.random.default_rng([seed, number, 1])
    area = random.uniform(*_AREA, size) * WIDTH * HEIGHT
    ratio = np.exp(random.uniform(np.log(_RATIO[0]), np.log(_RATIO[1]), size))
    width = np.clip(np.sqrt(area * ratio).round(), 1, WIDTH).astype(int)
    height = np.clip(np.sqrt(area / ratio).round(), 1, HEIGHT).astype(int)
    left = random.integers(0, WIDTH - width + 1)
    top = random.integers(0, HEIGHT - height + 1)
    return np.stack([left, top, width, height], 1)


# ---- On a CPU.


def by_pillow(encoded: np.ndarray) -> torch.Tensor:
    """An image (3, HEIGHT, WIDTH) of uint8, whose colours lie side by side in memory. Pillow frees Python's lock."""
    import numpy as np
    import torch
    from PIL import Image

    with Image.open(io.BytesIO(encoded.data)) as opened:
        return torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)


def by_torchvision(encoded: np.ndarray) -> torch.Tensor:
    """The same as `by_pillow` does, by libjpeg in torchvision, which frees Python's lock too."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    decoded: torch.Tensor = decode_jpeg(torch.from_numpy(encoded), ImageReadMode.RGB)
    return decoded


def decoder() -> Callable[[np.ndarray], torch.Tensor]:
    """What decodes a file's bytes on the CPU: torchvision where it is installed, else Pillow."""
    return by_pillow if torchvision_missing() else by_torchvision


def resized(image: torch.Tensor, crop: np.ndarray, side: int) -> torch.Tensor:
    """A crop of an image (3, H, W) as (side, side, 3) of uint8: bilinear, with antialiasing."""
    from torch.nn.functional import interpolate

    left, top, width, height = map(int, crop)
    part = image[None, :, top : top + height, left : left + width]
    return interpolate(part, (side, side), mode="bilinear", antialias=True)[0].permute(1, 2, 0)


class ThreadImages:
    """Resizes batches of decoded images by threads. pinned: results lie in memory that the device can copy from."""

    def __init__(self, crew: Crew, side: int, seed: int, *, pinned: bool) -> None:
        self._crew, self._side, self._seed, self._pinned = crew, side, seed, pinned

    def resize(self, item: Item) -> Item:
        """A list of images (3, H, W) -> images (B, side, side, 3) of uint8."""
        import torch

        size, side = len(item.data), self._side
        # Torch keeps pinned memory for later, so that only the first batches wait for the driver.
        images = torch.empty(size, side, side, 3, dtype=torch.uint8, pin_memory=self._pinned)
        boxes = crops(self._seed, item.number, size)

        def one(index: int) -> None:
            images[index].copy_(resized(item.data[index], boxes[index], side))

        self._crew.each(size, one)
        return Item(item.number, images)


class Copier:
    """Copies batches to the device, beside what the device computes. A batch is there when the call returns."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, item: Item) -> Item:
        """Images on the host -> the same on the device."""
        import torch

        if self._stream is None:
            return Item(item.number, item.data.clone())
        with torch.cuda.stream(self._stream):
            images = item.data.to(self._device, non_blocking=True)
            ended = torch.cuda.Event(blocking=True)
            ended.record()
        ended.synchronize()
        return Item(item.number, images)


# ---- On a GPU.


def resized_together(images: torch.Tensor, boxes: np.ndarray, side: int) -> torch.Tensor:
    """Crops of images (B, 3, H, W) as (B, 3, side, side) of float32, by one kernel: bilinear, without antialiasing."""
    from torch.nn.functional import grid_sample

    return grid_sample(images.float(), _grid(boxes, side, images.device), "bilinear", "border", align_corners=False)


def _grid(boxes: np.ndarray, side: int, device: torch.device) -> torch.Tensor:
    """Where each element of the crops lies in its image, (B, side, side, 2): across and down, -1 to 1 edge to edge.

    Torch's affine_grid makes it by a matrix product, which TF32, that the training step asks for, rounds to a fraction
    of a pixel. Here it is float32 throughout.
    """
    import torch

    centres = (torch.arange(side, device=device) * 2 + 1) / (2 * side)
    begin, size = torch.from_numpy(boxes).to(device, torch.float32).split(2, dim=1)
    image = torch.tensor([WIDTH, HEIGHT], device=device)
    places = (begin[:, None] + centres[:, None] * size[:, None]) * 2 / image - 1  # (B, side, 2)
    across, down = places[:, None, :, 0], places[:, :, None, 1]
    return torch.stack(torch.broadcast_tensors(across, down), -1)


class GpuImages:
    """Decodes batches by nvJPEG, and resizes them, on a stream beside the training step's."""

    def __init__(self, device: torch.device, side: int, seed: int) -> None:
        import torch

        self._device, self._side, self._seed = device, side, seed
        self._stream = torch.cuda.Stream(device)

    def both(self, item: Item) -> Item:
        """Files' bytes -> images (B, 3, side, side) of float32, 0 to 255, on the device."""
        return self._resized(item, self._decoded(item))

    def decode(self, item: Item) -> Item:
        """Files' bytes -> images (B, 3, H, W) of uint8 on the device."""
        return self._on_stream(item, self._decoded(item))

    def resize(self, item: Item) -> Item:
        """Images (B, 3, H, W) -> images (B, 3, side, side) of float32, 0 to 255."""
        return self._resized(item, lambda: item.data)

    def _decoded(self, item: Item) -> Any:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        encoded = [torch.from_numpy(one) for one in item.data]
        return lambda: torch.stack(decode_jpeg(encoded, ImageReadMode.RGB, device=self._device))

    def _resized(self, item: Item, images: Any) -> Item:
        boxes = crops(self._seed, item.number, len(item.data))
        return self._on_stream(item, lambda: resized_together(images(), boxes, self._side))

    def _on_stream(self, item: Item, work: Any) -> Item:
        """What `work` makes, on the stream of its own. It is there when the call returns.

        The decoder writes by a stream of its own, which doesn't wait for what still reads the memory that it is given.
        So all that was read is over before it is called again.
        """
        import torch

        with torch.cuda.stream(self._stream):
            made = work()
            ended = torch.cuda.Event(blocking=True)
            ended.record()
        ended.synchronize()
        return Item(item.number, made)
