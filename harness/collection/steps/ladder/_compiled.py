"""How torch.compile compiles a user's model, and whether it did: what it leaves out runs as it is, in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def begin_compiling() -> None:
    """Forget what torch.compile made, and let its cache keep graphs with our autograd Functions for later processes."""
    import torch
    from torch._dynamo.utils import counters
    from torch._functorch import config

    torch.compiler.reset()
    counters.clear()
    # Torch has it off. The key of the cache has the code of both passes, so that nothing older is found.
    config.autograd_cache_allow_custom_autograd_functions = True


def is_compiled() -> bool:
    """Whether torch.compile has made anything since `begin_compiling`."""
    from torch._dynamo.utils import counters

    return bool(counters["stats"]["unique_graphs"])


def compile_in_place(module: torch.nn.Module, **options: Any) -> None:
    """Do what module.compile() does, also for a module whose class is torch's own, such as Sequential.

    module.compile() hands torch's function to torch.compile, which compiles no function of torch by itself. A copy of
    the module isn't compiled, as after module.compile(). options: of torch.compile.
    """
    import torch

    def called(*given: Any, **named: Any) -> Any:
        return module._call_impl(*given, **named)

    module._compiled_call_impl = torch.compile(called, **options)
