"""Written by harness ladder: the training step of timm:resnet50 as an op, with a variant for each rung."""

from harness.collection.steps.ladder import op

OP = op(
    name='ladder_resnet50',
    source='timm:resnet50',
    digest='',
    size=64,
    gives=(),
    flops=1555140968448,
    optimizer='AdamW',
    fused=True,
    foreach=True,
    several=False,
    takes_model=False,
    named=False,
    adamw='',
    called=('',),
    by_host='',
    convolutions=True,
    batch_norm=True,
    linear=True,
    attention=False,
    blocks=True,
    patched='swapped: 18, left: 1\n  16 x Bottleneck -> nn.batch_norm_add_relu (layer1.0, layer1.1, layer1.2 and 13 more)\n  1 x ResNet with dropout -> the same functions of nn ()\n  1 x AdamW -> nn.AdamW (optimizer)\n  1 x batch norm and ReLU in ResNet left: its forward calls self.forward_features, which reads self.grad_checkpointing, which may change ()',
    autocast='',
    world=1,
    gradients=102228128,
    unused=0,
    warnings=(),
)
