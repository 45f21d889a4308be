"""JPEG files on the disk, made of noise from a seed, and the page cache that may have them.

Each file has a hash of its name and its other bytes in a comment. Before a case, the files that aren't as they were
made are made again: to check a file takes far less time than to make one.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import paths
from harness.errors import MachineError

if TYPE_CHECKING:
    import numpy as np

    from harness.collection.steps.pipeline._stages import Crew

WIDTH, HEIGHT = 500, 375
"""Pixels of an image."""
QUALITY = 96
SLOPE = 1.5
"""The noise's amplitude falls as frequency to this power, about as a photograph's does."""
SPREAD = 39.0
"""Standard deviation of the noise, in levels of 255: with it, a file is about as large as a file of ImageNet."""
SEED = 18
"""The seed of the files. All cases share them, so that they are made once."""
_LEAST = 60_000
"""Bytes of the smallest file that these images can make: nearly all have 100 to 140 thousand, a grey one has six."""
_DIGEST = hashlib.sha256
_STALE = 3600.0
"""Seconds after which nobody writes a draft any more. It takes a moment to write one."""
_TOLD = 512
"""Files after which a line says how many are made."""


def made(count: int, crew: Crew) -> list[Path]:
    """The first `count` files, in the cache folder. The crew makes the files that aren't there as they were made."""
    files = [place(number) for number in range(count)]
    files[0].parent.mkdir(parents=True, exist_ok=True)
    _remove_drafts(files[0].parent)
    wanted: set[int] = set()

    def check(number: int) -> None:
        if not is_as_made(files[number]):
            wanted.add(number)

    crew.each(count, check)
    missing = sorted(wanted)
    for start in range(0, len(missing), _TOLD):
        part = missing[start : start + _TOLD]
        crew.each(len(part), partial(_make, part))
        if len(missing) > _TOLD:
            sys.stderr.write(f"images made: {start + len(part)} of {len(missing)}\n")
    return files


def place(number: int) -> Path:
    """Where the file of this number lies, or will: what images are made of is in the folder's name."""
    return paths.cache() / f"jpegs-{WIDTH}x{HEIGHT}-q{QUALITY}-f{SLOPE:g}-d{SPREAD:g}-s{SEED}" / f"{number:06}.jpg"


def encoded(number: int) -> bytes:
    """The JPEG file of this number: baseline, quality 96, colours as fine as brightness (no chroma subsampling).

    Encoders of other versions may make other bytes of it, so no file is compared with this.
    """
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(pixels(number)).save(written, "JPEG", quality=QUALITY, subsampling=0)
    return _with_digest(place(number).name, written.getvalue())


def _with_digest(name: str, content: bytes) -> bytes:
    """A JPEG file with a comment behind its first segment, which is a hash of all else and of the file's name."""
    digest = _DIGEST(name.encode() + content).digest()
    end = _first_end(content)
    return b"".join([content[:end], b"\xff\xfe", (2 + len(digest)).to_bytes(2, "big"), digest, content[end:]])


def _first_end(content: bytes) -> int:
    """Where the first segment of a JPEG file ends, whose length stands behind its marker."""
    return 4 + int.from_bytes(content[4:6], "big")


def is_as_made(file: Path) -> bool:
    """Whether a file is there whole, has the bytes with which it was made, and is as large as such an image is."""
    try:
        content = file.read_bytes() if file.is_file() else b""
    except OSError:
        return False
    end = _first_end(content)
    bare = content[:end] + content[end + 4 + _DIGEST().digest_size :]
    return len(content) >= _LEAST and _with_digest(file.name, bare) == content


def refuse_changed(files: Sequence[Path]) -> None:
    """Raise MachineError, which names the first of these files that isn't as it was made, if there is one."""
    changed = next((file for file in files if not is_as_made(file)), None)
    if changed:
        raise MachineError(
            f"{changed}: isn't the image that was made, so it has changed since the case began",
            "measure again, which makes it anew; if that doesn't help, HARNESS_CACHE names a folder on another disk",
        )


def pixels(number: int) -> np.ndarray:
    """Noise (HEIGHT, WIDTH, 3) of uint8, whose amplitude falls with frequency; each colour has its own."""
    import numpy as np

    random = np.random.default_rng([SEED, number])
    white = random.standard_normal((3, HEIGHT, WIDTH), dtype=np.float32)
    noise = np.fft.irfft2(np.fft.rfft2(white) * _amplitude(), s=(HEIGHT, WIDTH))
    noise *= SPREAD / noise.std(axis=(1, 2), keepdims=True)
    return np.ascontiguousarray(np.clip(128 + noise, 0, 255).astype(np.uint8).transpose(1, 2, 0))


@cache
def _amplitude() -> np.ndarray:
    """The factor of each frequency; 0 for the mean, which all images share."""
    import numpy as np

    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = np.inf
    return np.asarray(frequency**-SLOPE)


def _make(numbers: Sequence[int], index: int) -> None:
    """Write a file as a whole, and to the disk: pages that aren't there yet can't leave the page cache."""
    file = place(numbers[index])
    content = encoded(numbers[index])
    draft = file.with_suffix(f".{os.getpid()}")
    try:
        with draft.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _remove_drafts(folder: Path) -> None:
    """Remove what processes have left that were killed while they wrote."""
    for draft in folder.glob("*.[0-9]*"):
        with suppress(OSError):  # another process may have removed it
            if draft.stat().st_mtime < time.time() - _STALE:
                draft.unlink()


def read(file: Path, *, cold: bool, into: np.ndarray | None = None) -> np.ndarray:
    """The bytes of a file, in new memory or at the beginning of `into`. Python's lock is free meanwhile.

    cold: let the file's pages leave the page cache afterwards. Raises OSError if not all bytes were read.
    """
    import numpy as np

    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        content = np.empty(size, np.uint8) if into is None else into[:size]
        if (found := os.readv(descriptor, [content.data])) != size:
            raise OSError(f"{file} has {size} bytes, of which {found} could be read")
        if cold:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return content
    finally:
        os.close(descriptor)


def evict(file: Path) -> None:
    """Let the pages of a file leave the page cache, where the file system can do that."""
    read(file, cold=True)


def in_page_cache(file: Path) -> float | None:
    """The share of a file's pages that are in the page cache; None where the system doesn't tell."""
    function: Callable[..., int] | None = getattr(ctypes.CDLL(None), "mincore", None)
    if function is None:
        return None
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = function(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), pages)
        del first  # it would keep the file mapped
    return None if failed else sum(page & 1 for page in pages) / len(pages)
