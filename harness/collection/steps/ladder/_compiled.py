"""How torch.compile compiles a user's model, and what it compiled.

A part of the model that torch.compile leaves out runs as it is, and torch says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_TOO_OFTEN = "recompile limit"
"""What torch says of code that it compiled so often that it gives up."""


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


def left_out() -> str:
    """Why torch.compile left out a part of the model since `begin_compiling`, in torch's words; '' if it didn't."""
    from torch._dynamo.utils import counters

    reasons = [*counters["graph_break"], *(one for one in counters["unimplemented"] if _TOO_OFTEN in one)]
    return reasons[0].strip().splitlines()[0] if reasons else ""


def compile_in_place(module: torch.nn.Module, **options: Any) -> None:
    """Do what module.compile() does, also for a module whose class is torch's own, such as Sequential.

    module.compile() gives torch's own `_call_impl` to torch.compile, which skips functions of torch. So only a forward
    in a user's file is compiled. Here a function of ours calls `_call_impl`, and torch.compile compiles what is inside.
    A copy of the module isn't compiled, as after module.compile(). options: of torch.compile.
    """
    import torch

    def called(*given: Any, **named: Any) -> Any:
        return module._call_impl(*given, **named)

    # Torch counts how often it compiled a code object, and gives up after eight times: each module has its own.
    called.__code__ = called.__code__.replace()
    module._compiled_call_impl = torch.compile(called, **options)
