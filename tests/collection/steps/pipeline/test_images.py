"""Files of noise, the page cache, crops, and images that are decoded, resized and scaled."""

from __future__ import annotations

import errno
import io
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from harness.collection.steps.pipeline import _files, _images
from harness.collection.steps.pipeline._images import Item, ThreadImages
from harness.collection.steps.pipeline._stages import Crew
from harness.errors import MachineError
from tests.properties import bounded

COUNT = 4


@pytest.fixture(scope="module")
def crew():
    made = Crew(2)
    yield made
    made.close()


@pytest.fixture
def files(crew):
    return _files.made(COUNT, crew)


def test_files_are_as_large_as_said_and_the_same_each_time(files):
    sizes = [file.stat().st_size for file in files]
    assert all(100e3 < size < 145e3 for size in sizes)
    assert 110e3 < sum(sizes) / COUNT < 135e3
    assert files[1].read_bytes() == _files.encoded(1)
    assert _files.encoded(1) != _files.encoded(2)


def test_files_that_are_there_are_not_made_again(files, crew, monkeypatch):
    files[2].unlink()
    made = []
    monkeypatch.setattr(_files, "_make", lambda numbers, index: made.append(numbers[index]))
    _files.made(COUNT, crew)
    assert made == [2]
    monkeypatch.undo()
    _files.made(COUNT, crew)


def flipped(content):
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


def flat(_content):
    written = io.BytesIO()
    grey = np.full((_files.HEIGHT, _files.WIDTH, 3), 128, np.uint8)
    Image.fromarray(grey).save(written, "JPEG", quality=_files.QUALITY, subsampling=0)
    return written.getvalue()


def signed_flat(content):
    """As somebody makes it who knows how files are signed."""
    return _files._with_digest("000001.jpg", flat(content))


DAMAGES = [flipped, flat, signed_flat, lambda _: b"", lambda content: content[:-1], lambda _: _files.encoded(2)]


@pytest.mark.parametrize("damaged", DAMAGES, ids=["flipped", "flat", "signed", "empty", "cut", "another"])
def test_a_file_that_is_not_as_it_was_made_is_made_again(files, crew, damaged):
    whole = files[1].read_bytes()
    files[1].write_bytes(damaged(whole))
    with pytest.raises(MachineError, match=r"000001\.jpg: isn't the image that was made"):
        _files.refuse_changed(files)
    _files.made(COUNT, crew)
    assert files[1].read_bytes() == whole
    _files.refuse_changed(files)


def test_any_bytes_are_no_file(files, tmp_path):
    file = tmp_path / files[0].name
    whole = files[0].read_bytes()

    @bounded
    @given(st.integers(0, len(whole) - 1), st.binary(max_size=40), st.booleans())
    def holds(start, piece, cut):
        found = whole[:start] + piece + (b"" if cut else whole[start + len(piece) :])
        file.write_bytes(found)
        assert _files.is_as_made(file) is (found == whole)

    holds()


def test_a_full_disk_leaves_no_draft_and_old_drafts_go(files, crew, monkeypatch):
    folder = files[0].parent
    files[3].unlink()

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        _files.made(COUNT, crew)
    monkeypatch.undo()
    assert {file.suffix for file in folder.iterdir()} == {".jpg"}
    old, new = folder / "000003.77", folder / "000003.78"
    for draft in (old, new):
        draft.touch()
    os.utime(old, (0, 0))
    _files.made(COUNT, crew)
    assert (old.exists(), new.exists()) == (False, True)
    new.unlink()


@pytest.mark.parametrize("name", ["SLOPE", "SPREAD", "QUALITY", "SEED"])
def test_other_images_have_other_files(name, monkeypatch):
    before = _files.place(1)
    monkeypatch.setattr(_files, name, 77)
    assert _files.place(1) != before


def test_noise_falls_with_frequency_as_said():
    image = _files.pixels(0)[:, :, 1].astype(float)
    power = np.abs(np.fft.rfft2(image - image.mean())) ** 2
    frequency = np.hypot(np.fft.fftfreq(_files.HEIGHT)[:, None], np.fft.rfftfreq(_files.WIDTH)[None])
    low, high = (power[(frequency > f) & (frequency < 1.2 * f)].mean() for f in (0.02, 0.08))
    assert np.log(low / high) / np.log(4) == pytest.approx(2 * _files.SLOPE, rel=0.1)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="files can't leave the page cache here")
def test_a_cold_read_gives_the_bytes_and_leaves_nothing_in_the_page_cache(files):
    assert _files.read(files[0], cold=False).tobytes() == files[0].read_bytes()
    if _files.in_page_cache(files[0]) != 1:
        pytest.skip("this system doesn't tell what is in the page cache")
    assert _files.read(files[0], cold=True).tobytes() == _files.encoded(0)
    if (left := _files.in_page_cache(files[0])) == 1:
        pytest.skip("the file system of the cache folder lies in memory")
    assert left == 0


def test_a_file_is_read_into_memory_that_is_there(files):
    room = np.zeros(200_000, np.uint8)
    found = _files.read(files[0], cold=False, into=room[:-1])
    assert found.tobytes() == files[0].read_bytes()
    assert found.base is room
    assert not room[len(found) :].any()
    with pytest.raises(OSError, match=f"{files[0].name} has {len(found)} bytes, of which 100 could be read"):
        _files.read(files[0], cold=False, into=room[:100])


def test_decoded_images_are_those_that_were_encoded(files):
    decoded = _images.by_pillow(_files.read(files[0], cold=False))
    assert decoded.shape == (3, _files.HEIGHT, _files.WIDTH)
    off = decoded.permute(1, 2, 0).float() - torch.from_numpy(_files.pixels(0)).float()
    assert off.abs().mean() < 3  # quality 96 loses a little


def test_each_file_comes_once_an_epoch_in_another_order():
    found = _images.order(3, 0, 24, 8)
    epochs = [found[start : start + 8] for start in (0, 8, 16)]
    assert all(sorted(epoch) == list(range(8)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert found == [one for first in range(0, 24, 6) for one in _images.order(3, first, 6, 8)]
    assert found != _images.order(4, 0, 24, 8)


def test_crops_lie_in_the_image_and_have_the_sizes_said():
    boxes = _images.crops(3, 5, 1000)
    left, top, width, height = boxes.T
    assert boxes.min() >= 0
    assert width.min() > 0
    assert ((left + width) <= _files.WIDTH).all()
    assert ((top + height) <= _files.HEIGHT).all()
    area = width * height / (_files.WIDTH * _files.HEIGHT)
    assert 0.07 < area.min() < 0.1
    assert area.mean() == pytest.approx(0.52, abs=0.03)
    assert (boxes == _images.crops(3, 5, 1000)).all()
    assert not (boxes == _images.crops(3, 6, 1000)).all()


def test_both_ways_of_resizing_cut_the_same_crop():
    """On an image that hardly changes from pixel to pixel, antialiasing makes no difference."""
    across = torch.linspace(0, 200, _files.WIDTH).expand(_files.HEIGHT, -1)
    down = torch.linspace(0, 200, _files.HEIGHT)[:, None].expand(-1, _files.WIDTH)
    image = torch.stack([across, down, (across + down) / 2]).to(torch.uint8)
    for box in _images.crops(1, 1, 6):
        alone = _images.resized(image, box, 32).permute(2, 0, 1).float()
        [together] = _images.resized_together(image[None], box[None], 32)
        assert (alone - together).abs().max() < 2


def test_crops_on_the_gpu_lie_where_an_affine_grid_puts_them_but_without_a_matrix_product():
    """The training step lets products be rounded to TF32, which moved them by up to a tenth of a pixel."""
    boxes = _images.crops(1, 2, 5)
    left, top, width, height = (torch.from_numpy(one) for one in boxes.T)
    maps = torch.zeros(5, 2, 3, dtype=torch.float64)
    maps[:, 0, 0], maps[:, 0, 2] = width / _files.WIDTH, (2 * left + width) / _files.WIDTH - 1
    maps[:, 1, 1], maps[:, 1, 2] = height / _files.HEIGHT, (2 * top + height) / _files.HEIGHT - 1
    wanted = torch.nn.functional.affine_grid(maps, [5, 3, 32, 32], align_corners=False)
    assert torch.allclose(_images._grid(boxes, 32, torch.device("cpu")).double(), wanted, atol=1e-6)
    with torch.profiler.profile() as profile:
        _images.resized_together(torch.zeros(5, 3, _files.HEIGHT, _files.WIDTH, dtype=torch.uint8), boxes, 32)
    assert [event.key for event in profile.key_averages() if "mm" in event.key] == []


def test_threads_resize_each_image_by_its_own_crop(files, crew):
    decoded = [_images.by_pillow(_files.read(file, cold=False)) for file in files]
    images = ThreadImages(crew, 32, 7, pinned=False)
    found = images.resize(Item(3, decoded))
    assert found.number == 3
    boxes = _images.crops(7, 3, COUNT)
    wanted = [_images.resized(image, box, 32) for image, box in zip(decoded, boxes, strict=True)]
    assert found.data.equal(torch.stack(wanted))
    assert not images.resize(Item(4, decoded)).data.equal(found.data)
