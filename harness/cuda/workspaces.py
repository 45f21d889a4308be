"""Memory that a library works in, shared by all calls on a stream."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_STREAMS = 16  # whose workspaces are kept, the last used ones


def of_stream(device: torch.device, stream: int, size: int) -> torch.Tensor:
    """So many bytes for a call on this stream, the current one. A graph that is captured has memory of its own."""
    import torch

    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return _new(device, size)
    return _kept(device, stream, size)


def forget() -> None:
    """Give the memory back, once all that was launched has ended."""
    _kept.cache_clear()


@lru_cache(maxsize=_STREAMS)
def _kept(device: torch.device, _stream: int, size: int) -> torch.Tensor:
    return _new(device, size)


def _new(device: torch.device, size: int) -> torch.Tensor:
    import torch

    return torch.empty(size, dtype=torch.uint8, device=device)
