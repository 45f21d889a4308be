"""Written by harness ladder: the training step of ladder_step.py as an op, with a variant for each rung."""

from harness.collection.steps.ladder import op

OP = op(
    name='ladder_step',
    source='/tmp/repo/examples/ladder_step.py',
    digest='fa2e2bdac161a87cd8cf1c1bd5f37f42e968531ed69e0d82420bb1f55c63a795',
    size=32,
    gives=('model', 'batch', 'loss', 'optimizer'),
    flops=57114624,
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
    batch_norm=True,
    linear=True,
    attention=False,
    blocks=False,
    patched='swapped: 4, left: 0\n  1 x Sequential -> nn.batch_norm_add_relu ()\n  1 x LayerNorm -> nn.layer_norm (5)\n  1 x Dropout -> nn.dropout (6)\n  1 x AdamW -> nn.AdamW (optimizer)',
    autocast='',
    world=2,
    gradients=14248,
    unused=0,
    warnings=(),
)
