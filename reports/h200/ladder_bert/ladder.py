"""Written by harness ladder: the training step of transformers:bert as an op, with a variant for each rung."""

from harness.collection.steps.ladder import op

OP = op(
    name='ladder_bert',
    source='transformers:bert',
    digest='',
    size=32,
    gives=(),
    flops=2745578815488,
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
    patched='swapped: 125, left: 13\n  37 x Dropout -> nn.dropout (bert.embeddings.dropout, bert.encoder.layer.0.attention.self.dropout, bert.encoder.layer.0.attention.output.dropout and 34 more)\n  26 x LayerNorm -> nn.layer_norm (bert.embeddings.LayerNorm, bert.encoder.layer.0.attention.output.LayerNorm, bert.encoder.layer.0.output.LayerNorm and 23 more)\n  13 x GELUActivation -> GELU of fewer instructions (bert.encoder.layer.0.intermediate.intermediate_act_fn, bert.encoder.layer.1.intermediate.intermediate_act_fn, bert.encoder.layer.2.intermediate.intermediate_act_fn and 10 more)\n  12 x BertSelfOutput -> nn.bias_dropout_residual (bert.encoder.layer.0.attention.output, bert.encoder.layer.1.attention.output, bert.encoder.layer.2.attention.output and 9 more)\n  12 x BertOutput -> nn.bias_dropout_residual (bert.encoder.layer.0.output, bert.encoder.layer.1.output, bert.encoder.layer.2.output and 9 more)\n  12 x BertSelfAttention with query, key, value -> one product (bert.encoder.layer.0.attention.self, bert.encoder.layer.1.attention.self, bert.encoder.layer.2.attention.self and 9 more)\n  12 x BertSelfAttention with dropout, softmax -> the same functions of nn (bert.encoder.layer.0.attention.self, bert.encoder.layer.1.attention.self, bert.encoder.layer.2.attention.self and 9 more)\n  1 x AdamW -> nn.AdamW (optimizer)\n  12 x dropout and addition in BertSelfAttention left: its forward takes any number of arguments (bert.encoder.layer.0.attention.self, bert.encoder.layer.1.attention.self, bert.encoder.layer.2.attention.self and 9 more)\n  1 x dropout and addition in BertEmbeddings left: its forward has arguments that may be left out (bert.embeddings)',
    autocast='',
    world=1,
    gradients=438057192,
    unused=0,
    warnings=(),
)
