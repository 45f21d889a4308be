"""A variant of yours for an op that is there.

`harness run softmax --ops examples/own_variant.py --variants eager,mine` checks, times and reports the variant beside
the op's own variants, on the same inputs.
"""

from __future__ import annotations

from harness.ops import Context, Launch, find


@find("softmax").variant("mine", "maximum, exp and sum in float32", devices=("cuda", "cpu"), returns=True)
def mine(_: Context) -> Launch:
    """Without the maximum it would be wrong for large numbers, which the check has, too."""
    import torch

    def launch(t):  # type: ignore[no-untyped-def]
        x = t.x.float()
        powers = torch.exp(x - x.amax(1, keepdim=True))
        return ((powers / powers.sum(1, keepdim=True)).to(t.x.dtype),)

    return launch
