"""What a user's file gives: a model, a batch, and a loss or a whole step; or a model of timm or of transformers."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder._file_state import FileState
from harness.errors import UsageError, nearest

if TYPE_CHECKING:
    import torch

NEEDED = ("model", "batch")
ASKED = (*NEEDED, "loss", "step", "optimizer")
"""The functions that a file may define."""
LIBRARIES = ("timm", "transformers")
USUAL_SIZE = 32
"""Items of a batch of a library's model, unless told."""
RATE = 1e-4
"""The rate of AdamW where the file gives no optimizer."""
_TOKENS = 128
_EXAMPLE = "model() gives a module, batch() its tensors, loss(model, *batch) a number; examples/ladder_step.py is one"


@dataclass(frozen=True, slots=True)
class Given:
    """What a source gives, as functions.

    model(): a module. batch(): tensors, in a tuple, a mapping, or alone. loss(model, *batch): a scalar, or scalars by
    name. optimizer(a list of weights), or optimizer(model): an optimizer, or several in a tuple, a list or a dict.
    step(model, optimizer, *batch): the whole step, which gives what loss gives; None where loss is to be used. names:
    of what the file defines. state: the file's global variables; a library's model has none.
    """

    model: Callable[[], torch.nn.Module]
    batch: Callable[[], Any]
    loss: Callable[..., Any]
    optimizer: Callable[[Any], Any]
    step: Callable[..., Any] | None
    names: tuple[str, ...]
    state: FileState = field(default_factory=lambda: FileState({}))

    @property
    def takes_model(self) -> bool:
        """Whether optimizer() is to be given the model, since its argument has that name."""
        return next(iter(inspect.signature(self.optimizer).parameters), "") == "model"


def is_library(source: str) -> bool:
    """Whether a source names a model of a library, not a file."""
    return source.partition(":")[0] in LIBRARIES and ":" in source


@cache
def given(source: str, size: int = USUAL_SIZE) -> Given:
    """What a source gives. size: of the batch of a library's model.

    Raises UsageError for a file that isn't there, or lacks a function, and for a library that isn't installed or
    doesn't know the model; and what the file raises where it is loaded.
    """
    if is_library(source):
        library, _, name = source.partition(":")
        _refuse_missing(library)
        return {"timm": _of_timm, "transformers": _of_transformers}[library](name, size)
    module = _module(Path(source))
    names = tuple(name for name in ASKED if callable(getattr(module, name, None)))
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise UsageError(f"{source}: defines no function {' and no function '.join(missing)}", _EXAMPLE)
    if "loss" in names and "step" in names:
        raise UsageError(f"{source}: defines both loss and step", "name one of them: step makes the whole step itself")
    return Given(
        module.model,
        module.batch,
        getattr(module, "loss", loss_of_output),
        getattr(module, "optimizer", adamw),
        getattr(module, "step", None),
        names,
        FileState(vars(module)),
    )


def arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch as the arguments of a function behind the model."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def loss_of_output(model: Any, *batch: Any, **named: Any) -> Any:
    """The loss that a model gives itself, as those of transformers do."""
    found = model(*batch, **named)
    loss = found.get("loss") if isinstance(found, Mapping) else getattr(found, "loss", None)
    if loss is None:
        raise UsageError("the file defines no loss, and the model's output has none", f"define one: {_EXAMPLE}")
    return loss


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The optimizer where the file gives none."""
    import torch

    return torch.optim.AdamW(parameters, lr=RATE)


def _module(file: Path) -> ModuleType:
    """The module in a file, which may import what lies beside it."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"{file}: isn't a file of Python", "name a file whose name ends in .py")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    # A module of this name that is there already, such as a standard one, stays.
    sys.modules.setdefault(file.stem, module)
    own, sys.argv = sys.argv, [str(file)]  # which a file may parse
    try:
        spec.loader.exec_module(module)
    except SystemExit as ended:
        raise UsageError(
            f"{file}: ends by sys.exit({ended.code!r}) where it is loaded",
            "let arguments have defaults, and put what trains below if __name__ == '__main__':",
        ) from None
    finally:
        sys.argv = own
    return module


def _refuse_missing(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"{library} isn't installed here", f"pip install {library}, or write a file: {_EXAMPLE}")


# ---- Models of libraries.


def _of_timm(name: str, size: int) -> Given:
    import timm  # type: ignore[import-not-found] # it may be missing

    if not timm.is_model(name):
        raise UsageError(f"timm has no model '{name}'", nearest(name, timm.list_models()))
    return Given(partial(timm.create_model, name), partial(_images, name, size), _cross_entropy, adamw, None, ())


def _images(name: str, size: int) -> Any:
    import timm
    import torch

    config = timm.get_pretrained_cfg(name, allow_unregistered=True)
    shape = tuple(config.input_size) if config else (3, 224, 224)
    return torch.randn(size, *shape), torch.randint(0, config.num_classes if config else 1000, (size,))


def _cross_entropy(model: Any, images: Any, labels: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(model(images), labels)


def _of_transformers(name: str, size: int) -> Given:
    config = _config(name)
    model = partial(_language_model(config).from_config, config)
    return Given(model, partial(_tokens, config.vocab_size, size), loss_of_output, adamw, None, ())


def _config(name: str) -> Any:
    """The configuration of a kind of model, such as 'bert', or of a folder, or of a name on the hub."""
    import transformers  # type: ignore[import-not-found] # it may be missing

    try:
        if name in transformers.CONFIG_MAPPING:
            return transformers.AutoConfig.for_model(name)
        return transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise UsageError(
            f"transformers has no model '{name}': {first}", "name a kind, such as bert, or a folder with a config.json"
        ) from error


def _language_model(config: Any) -> Any:
    """The class of the model with the head for the words that it learns from. Raises UsageError if it has none."""
    import transformers

    for kind in (transformers.AutoModelForMaskedLM, transformers.AutoModelForCausalLM):
        if type(config) in kind._model_mapping:
            return kind
    raise UsageError(f"transformers has no language model for '{config.model_type}'", f"write a file: {_EXAMPLE}")


def _tokens(words: int, size: int) -> Any:
    import torch

    tokens = torch.randint(0, words, (size, _TOKENS))
    return {"input_ids": tokens, "labels": tokens}
