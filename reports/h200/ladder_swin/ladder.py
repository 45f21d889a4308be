"""Written by harness ladder: the training step of timm:swin_tiny_patch4_window7_224 as an op, with a variant for each rung."""

from harness.collection.steps.ladder import op

OP = op(
    name='ladder_swin_tiny_patch4_window7_224',
    source='timm:swin_tiny_patch4_window7_224',
    digest='',
    size=64,
    gives=(),
    flops=1722527907840,
    optimizer='AdamW',
    fused=True,
    foreach=True,
    several=False,
    takes_model=False,
    named=False,
    adamw='',
    called=('',),
    by_host='',
    convolutions=False,
    batch_norm=False,
    linear=True,
    attention=False,
    blocks=True,
    patched='swapped: 55, left: 62\n  29 x LayerNorm -> nn.layer_norm (patch_embed.norm, layers.0.blocks.0.norm1, layers.0.blocks.0.norm2 and 26 more)\n  12 x Softmax -> nn.softmax (layers.0.blocks.0.attn.softmax, layers.0.blocks.1.attn.softmax, layers.1.blocks.0.attn.softmax and 9 more)\n  12 x GELU -> GELU of fewer instructions (layers.0.blocks.0.mlp.act, layers.0.blocks.1.mlp.act, layers.1.blocks.0.mlp.act and 9 more)\n  1 x Conv2d -> a product of patches, in halves (patch_embed.proj)\n  1 x AdamW -> nn.AdamW (optimizer)\n  49 x Dropout left: it drops nothing (layers.0.blocks.0.attn.attn_drop, layers.0.blocks.0.attn.proj_drop, layers.0.blocks.0.mlp.drop1 and 46 more)\n  12 x dropout and addition in WindowAttention left: its forward has arguments that may be left out (layers.0.blocks.0.attn, layers.0.blocks.1.attn, layers.1.blocks.0.attn and 9 more)\n  1 x dropout and addition in ClassifierHead left: its forward has arguments that may be left out (head)',
    autocast='',
    world=1,
    gradients=113153416,
    unused=0,
    warnings=(),
)
