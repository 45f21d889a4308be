"""Modules with the functions of this package: torch's modules with another forward.

They have torch's constructors, parameters, state dicts and texts, so they stand in place of torch's modules.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.collection.nn._batch_norm import batch_norm_add_relu
from harness.collection.nn._dropout import dropout
from harness.collection.nn._rows import layer_norm, rms_norm
from harness.collection.nn._softmax import softmax


class LayerNorm(torch.nn.LayerNorm):
    """The module torch.nn.LayerNorm, by layer_norm(): the result has the type of the input, also under autocast.

    >>> norm = nn.LayerNorm(8)
    >>> repr(norm) == repr(torch.nn.LayerNorm(8))
    True
    >>> norm.load_state_dict(torch.nn.LayerNorm(8).state_dict())
    <All keys matched successfully>
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise the last dimensions of the input, of `normalized_shape`. Raises ValueError if it has others."""
        is_plain = len(self.normalized_shape) == 1 and self.weight is not None
        return layer_norm(input, self.weight, self.bias, self.eps, None if is_plain else self.normalized_shape)


class RMSNorm(torch.nn.RMSNorm):
    """The module torch.nn.RMSNorm, by rms_norm(): the result has the type of the input, also under autocast.

    >>> nn.RMSNorm(3, eps=0.0)(torch.full((3,), 5.0))
    tensor([1., 1., 1.], grad_fn=<rms_normBackward>)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x, of `normalized_shape`. Raises ValueError if it has others."""
        is_plain = len(self.normalized_shape) == 1 and self.weight is not None
        return rms_norm(x, self.weight, self.eps, None if is_plain else self.normalized_shape)


class Softmax(torch.nn.Softmax):
    """The module torch.nn.Softmax, by softmax().

    >>> nn.Softmax(dim=-1)(torch.zeros(2))
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Divide exp(input) by its sum along `dim`, which torch chooses if it is None."""
        return super().forward(input) if self.dim is None else softmax(input, self.dim)


class Dropout(torch.nn.Dropout):
    """The module torch.nn.Dropout, by dropout().

    >>> nn.Dropout(p=0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Drop elements of the input in training; in evaluation give the input itself."""
        return dropout(input, self.p, self.training, self.inplace)


class BatchNormAddReLU(torch.nn.BatchNorm2d):
    """Batch norm of torch.nn.BatchNorm2d, a residual and ReLU, by batch_norm_add_relu().

    It has the constructor and the state dict of torch.nn.BatchNorm2d.

    >>> nn.BatchNormAddReLU(3)(torch.randn(2, 3, 4, 4), residual=torch.full((2, 3, 4, 4), -9.0)).max()
    tensor(0., grad_fn=<MaxBackward1>)
    """

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """Normalise images (N, C, H, W), add the residual, and set what is below 0 to 0."""
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean of all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        running = self.running_mean, self.running_var
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        if self.training and not self.track_running_stats:
            running = None, None
        return batch_norm_add_relu(input, residual, *running, self.weight, self.bias, by_batch, momentum, self.eps)
