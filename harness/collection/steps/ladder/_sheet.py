"""What is known of a user's step before it is measured. This file needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepSheet:
    """A user's step, as its survey found it.

    name: of the op. source: the path of the file, or 'timm:NAME' or 'transformers:NAME'. digest: SHA-256 of the file's
    content; '' for a library's model. size: of the batch, as the first tensor has it. gives: the names that the file
    defines of those that are asked for. flops: of a step, by torch's counter; 0 where it can't count. optimizer: the
    name of its class; of several optimizers their names. fused, foreach: whether such a class has these calls. several:
    whether the file gives several optimizers. takes_model: whether optimizer() gets the model. named: whether the file
    gives losses by name. adamw: why our AdamW can stand for none of the optimizers; '' if it can. called: the names of
    the modules that the step calls, as get_submodule takes them: '' is the model. by_host: what the host decides anew
    in each step, and a CUDA graph would repeat; '' for nothing. convolutions (two or more: one alone embeds patches),
    batch_norm, linear, attention (scaled_dot_product_attention), blocks (that repeat): whether the model has some.
    patched: what `nn.patch` says of the model. autocast: why the model fails under autocast; '' if it doesn't. world:
    the most devices that the step is measured on. gradients: bytes of all weights' gradients. unused: how many weights
    had no gradient in a step. warnings: sentences on what a user may want to change first.
    """

    name: str
    source: str
    digest: str
    size: int
    gives: tuple[str, ...]
    flops: int = 0
    optimizer: str = "AdamW"
    fused: bool = True
    foreach: bool = True
    several: bool = False
    takes_model: bool = False
    named: bool = False
    adamw: str = ""
    called: tuple[str, ...] = ("",)
    by_host: str = ""
    convolutions: bool = False
    batch_norm: bool = False
    linear: bool = True
    attention: bool = False
    blocks: bool = False
    patched: str = ""
    autocast: str = ""
    world: int = 1
    gradients: int = 0
    unused: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def has_step(self) -> bool:
        """Whether the file makes the whole step itself, its backward and the optimizer's step included."""
        return "step" in self.gives

    @property
    def has_swaps(self) -> bool:
        """Whether `nn.patch` swaps anything."""
        return not self.patched.startswith("swapped: 0,")
