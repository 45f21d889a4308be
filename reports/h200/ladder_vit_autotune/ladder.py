"""Written by harness ladder: the training step of timm:vit_base_patch16_224 as an op, with a variant for each rung."""

from harness.collection.steps.ladder import op

OP = op(
    name='ladder_vit_base_patch16_224',
    source='timm:vit_base_patch16_224',
    digest='',
    size=64,
    gives=(),
    flops=6775493492736,
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
    attention=True,
    blocks=True,
    patched='swapped: 51, left: 63\n  25 x LayerNorm -> nn.layer_norm (blocks.0.norm1, blocks.0.norm2, blocks.1.norm1 and 22 more)\n  12 x Attention with softmax -> the same functions of nn (blocks.0.attn, blocks.1.attn, blocks.2.attn and 9 more)\n  12 x GELU -> GELU of fewer instructions (blocks.0.mlp.act, blocks.1.mlp.act, blocks.2.mlp.act and 9 more)\n  1 x Conv2d -> a product of patches, in halves (patch_embed.proj)\n  1 x AdamW -> nn.AdamW (optimizer)\n  50 x Dropout left: it drops nothing (pos_drop, blocks.0.attn.attn_drop, blocks.0.attn.proj_drop and 47 more)\n  12 x dropout and addition in Attention left: its forward has arguments that may be left out (blocks.0.attn, blocks.1.attn, blocks.2.attn and 9 more)\n  1 x dropout and addition in VisionTransformer left: its forward has arguments that may be left out ()',
    autocast='',
    world=1,
    gradients=346270624,
    unused=0,
    warnings=(),
)
