"""What a step calls of torch: its operations, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def counting() -> Any:
    """Torch's count of operations, as a context, without its hooks on modules.

    These tell modules apart, which nobody asks for here, and fail where a step takes gradients of a module's input.
    """
    from torch.utils.flop_counter import FlopCounterMode
    from torch.utils.module_tracker import ModuleTracker

    class Unhooked(ModuleTracker):  # type: ignore[misc] # torch has no types
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    counter = FlopCounterMode(display=False)
    counter.mod_tracker = Unhooked()
    return counter


@contextmanager
def attending() -> Iterator[list[object]]:
    """Calls of scaled_dot_product_attention meanwhile, also by functions of torch."""
    from torch.nn import functional
    from torch.overrides import TorchFunctionMode

    calls: list[object] = []
    real = functional.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(real)
        return real(*args, **kwargs)

    class Watch(TorchFunctionMode):  # type: ignore[misc] # torch has no types
        def __torch_function__(
            self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if function is real:
                calls.append(real)
            return function(*args, **(kwargs or {}))

    functional.scaled_dot_product_attention = counted
    try:
        with Watch():
            yield calls
    finally:
        functional.scaled_dot_product_attention = real
