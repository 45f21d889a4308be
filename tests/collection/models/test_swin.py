"""Swin Transformer: the same as torchvision's and timm's with the same weights; and its operators."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness.collection.models import MODELS, swin

TOY = replace(MODELS["swin_toy"], drop_path=0.0)


def inputs(tools, config=TOY):
    return swin.ImageBatch(tools.numbers(4, 3, config.image, config.image), torch.tensor([1, 0, 9, 4]))


def torchvisions(config):
    models = pytest.importorskip("torchvision.models")
    window, patch = [config.window] * 2, [config.patch] * 2
    return models.SwinTransformer(
        patch, config.width, [*config.depths], [*config.heads], window,
        stochastic_depth_prob=config.drop_path, num_classes=config.classes,
    ).double()  # fmt: skip


def timms(config):
    timm = pytest.importorskip("timm")
    return timm.models.SwinTransformer(
        img_size=config.image, embed_dim=config.width, depths=config.depths, num_heads=config.heads,
        window_size=config.window, num_classes=config.classes, drop_path_rate=config.drop_path,
    ).double()  # fmt: skip


def name_of_timm(name):
    """Timm's name of a parameter with a name of torchvision's."""
    name = re.sub(r"^features\.0\.0", "patch_embed.proj", name)
    name = re.sub(r"^features\.0\.2", "patch_embed.norm", name)
    name = re.sub(r"^features\.(\d+)\.(\d+)", lambda m: f"layers.{int(m[1]) // 2}.blocks.{m[2]}", name)
    name = re.sub(r"^features\.(\d+)", lambda m: f"layers.{int(m[1]) // 2}.downsample", name)
    return name.replace("mlp.0", "mlp.fc1").replace("mlp.3", "mlp.fc2").replace("head", "head.fc")


def assert_equal(tools, ours, theirs, names, given):
    """Both have the same loss and gradients in training, and the same outputs outside."""
    loaded = theirs.load_state_dict({names(name): value for name, value in ours.state_dict().items()}, strict=False)
    assert not loaded.unexpected_keys
    assert all(name.endswith("relative_position_index") for name in loaded.missing_keys)
    torch.manual_seed(0)
    loss = swin.loss(ours, given)
    torch.manual_seed(0)
    expected = functional.cross_entropy(theirs(given.images), given.labels, label_smoothing=0.1)
    slopes = {names(name): slope for name, slope in tools.gradients(ours, loss).items()}
    tools.assert_same(slopes | {"loss": loss}, tools.gradients(theirs, expected) | {"loss": expected})
    tools.assert_same({"": ours.eval()(given.images)}, {"": theirs.eval()(given.images)})


@pytest.mark.parametrize(
    "config",
    [
        TOY,
        replace(TOY, drop_path=0.5),
        replace(TOY, depths=(1, 3, 2), heads=(1, 2, 8), window=4, image=128, patch=4),
    ],
    ids=["plain", "drop_path", "three_stages"],
)
def test_equals_torchvision(tools, config):
    theirs = torchvisions(config)
    assert_equal(tools, tools.seeded(swin.Swin(config)), theirs, str, inputs(tools, config))
    index = swin.relative_position_index(config.window)
    assert theirs.features[1][0].attn.relative_position_index.equal(index.flatten())


def test_equals_timm(tools):
    assert_equal(tools, tools.seeded(swin.Swin(TOY)), timms(TOY), name_of_timm, inputs(tools))


def test_fingerprint(tools):
    model, given = tools.seeded(swin.Swin(TOY)), inputs(tools)
    loss = swin.loss(model, given)
    slopes = tools.gradients(model, loss)
    names = ("features.0.0.weight", "features.1.1.attn.relative_position_bias_table", "features.2.reduction.weight")
    some = [slopes[name] for name in names]
    expected = [2.25627975405, -0.455439075381, 4.37980836925, 0.859703807615, 0.0160398200425, 2.922967628]
    assert tools.fingerprint((model(given.images),), loss, some) == pytest.approx(expected, rel=1e-9)


def fused():
    """Attention by another function of torch's, as an operator in place of ours would do it."""

    def window_attention(qkv, bias, mask):
        count, tokens, heads = len(qkv), qkv.shape[1], len(bias)
        q, k, v = qkv.view(count, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        if mask is not None:
            bias = (bias + mask[:, None]).repeat(count // len(mask), 1, 1, 1)
        return functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2)

    return window_attention


def norm_partition(norm, x, window, shift):
    return swin.window_partition(norm(x), window, shift)


@pytest.mark.parametrize("fuse", [False, True])
def test_operators_can_be_swapped(tools, fuse):
    given, plain = inputs(tools), tools.seeded(swin.Swin(TOY))
    others = {"norm_partition": norm_partition, "window_attention": fused()} if fuse else {}
    operators, calls = tools.operators_counted(swin.SwinOperators, others)
    swapped = tools.seeded(swin.Swin(TOY, operators))
    losses = [swin.loss(model, given) for model in (plain, swapped)]
    tools.assert_same(*(tools.gradients(model, loss) for model, loss in zip((plain, swapped), losses, strict=True)))
    blocks = 4
    parts = {"norm_partition": blocks, "window_attention": blocks} if fuse else {
        "window_partition": blocks, "softmax": blocks,
    }  # fmt: skip
    always = {"window_reverse": blocks, "position_bias": blocks, "gelu": blocks}
    # Patch embedding, patch merging, and the end; a block has two.
    assert calls == parts | always | {"layer_norm": 3 + blocks * (1 if fuse else 2)}


@pytest.mark.parametrize("shift", [0, 2])
def test_windows_go_back_to_the_image(tools, shift):
    image = tools.numbers(2, 8, 12, 3)
    windows = swin.window_partition(image, 4, shift)
    assert windows.shape == (2 * 2 * 3, 16, 3)
    assert windows[1, 5].equal(image[0, 1 + shift, 5 + shift])
    assert swin.window_reverse(windows, 8, 12, 4, shift).equal(image)


def test_the_mask_parts_pixels_that_rolling_brought_together():
    side, window, shift = 8, 4, 2
    mask = swin.shift_mask(side, window, shift)
    place = torch.arange(side)
    coordinates = torch.stack(torch.meshgrid(place, place, indexing="ij"), -1)[None]
    windows = swin.window_partition(coordinates, window, shift)
    near = ((windows[:, None] - windows[:, :, None]).abs() < window).all(-1)
    assert mask.eq(0).equal(near)
    assert set(mask.unique().tolist()) == {0.0, -100.0}


def test_blocks_of_one_window_do_not_shift():
    blocks = [module for module in swin.Swin(TOY).modules() if isinstance(module, swin.SwinBlock)]
    assert [block.shift for block in blocks] == [0, 3, 0, 0]
    assert [block.mask is None for block in blocks] == [True, False, True, True]


def test_drop_path_grows_with_depth_and_keeps_the_mean():
    config = replace(TOY, depths=(2, 3), drop_path=0.4)
    assert config.drop_paths(0) + config.drop_paths(1) == pytest.approx((0, 0.1, 0.2, 0.3, 0.4))
    torch.manual_seed(0)
    block = swin.Swin(config).features[3][2]
    dropped = block._dropped(torch.ones(4000, 1, 1, 1))
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert dropped.mean().item() == pytest.approx(1, abs=0.05)
    assert block.eval()._dropped(dropped) is dropped
