"""Models in plain torch, which whole training steps and inference are timed with: ResNet-50 v1.5, BERT, Swin, Llama.

`sizes` has the configurations, with their numbers of parameters and of operations. It needs no torch, so the parent
process may import it and this package. The files `resnet`, `bert`, `swin` and `llama` have one model each, and import
torch at their top: only a worker imports them. `files` finds the file of a model. Every one of these files has

- the model, whose parameters have the names and shapes of the reference implementation;
- a dataclass of operators, with torch's operators as defaults: a block calls the operators of its dataclass, so other
  operators can take their place. An operator that has parameters is given the module that holds them. The tensors that
  an operator is given are contiguous, if it doesn't say otherwise. The gradients that its backward is given needn't be;
- `batch`, which makes inputs and labels from a seed, and `loss`, which is what a training step minimises.
"""

from harness.collection.models.sizes import MODELS, BertConfig, Config, LlamaConfig, ResNetConfig, SwinConfig

__all__ = ["MODELS", "BertConfig", "Config", "LlamaConfig", "ResNetConfig", "SwinConfig"]
