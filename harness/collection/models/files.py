"""The files of models: which one has the model of a configuration. It needs no torch, until a file is asked for."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from harness.collection.models.sizes import MODELS

if TYPE_CHECKING:
    import torch


def module_of(model: str) -> ModuleType:
    """The file of a model, which has MODEL (its class), BLOCK, OPERATORS, `batch` and `loss`."""
    return import_module(f"harness.collection.models.{MODELS[model].module}")


def blocks_of(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The blocks of a model of ours, by name."""
    kind = import_module(type(model).__module__).BLOCK
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}
