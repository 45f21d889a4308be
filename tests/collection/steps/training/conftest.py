"""What the tests of training share: cases of toy models, made ready on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

from harness.collection.steps.training._trainer import Setup
from harness.devices.cpu import Cpu
from harness.model import Case
from harness.ops import Catalogue
from harness.session import Session
from tests.rare import rare

TOYS = {
    "resnet50_train": "resnet_toy",
    "bert_train": "bert_toy",
    "swin_train": "swin_toy",
    "swin_infer": "swin_toy",
    "llama_train": "llama_toy",
}
SIZES = {"resnet_toy": 4, "bert_toy": 4, "swin_toy": 2, "llama_toy": 4}
"""Of batches: small ones, since a CPU computes slowly in float16."""


@pytest.fixture(autouse=True)
def small_models(optimizers_loaded: None, one_thread: None) -> None:
    """Every test here has one thread."""


@pytest.fixture(params=["bert_train", *map(rare, ("resnet50_train", "swin_train"))])
def training(request: pytest.FixtureRequest) -> str:
    """Each op of training, in turn. A BERT trains in the least time."""
    return str(request.param)


@pytest.fixture(scope="session")
def ready(catalogue: Catalogue) -> Callable[..., AbstractContextManager[Session]]:
    """ready(op, variant, dtype): a session of a toy's case with few items, prepared on the CPU. Choices may follow."""

    @contextmanager
    def session(name: str, variant: str, dtype: str = "float16", **choices: Any) -> Iterator[Session]:
        op = catalogue[name]
        given = {choice: choices.get(choice, known.usual) for choice, known in op.choices.items()}
        given["model"] = TOYS[name]
        # The typical error of logits, and the scales of int8, are those of more images.
        symbols = (("B", 8 if name == "swin_infer" else SIZES[TOYS[name]]),)
        with Session(Case(name, variant, dtype, symbols, tuple(given.items()), device="cpu"), op, Cpu()) as made:
            made.prepare()
            yield made

    return session


@pytest.fixture
def setup(training: str) -> Setup:
    """What a training of each toy begins with."""
    return Setup(TOYS[training], SIZES[TOYS[training]], 1, torch.device("cpu"), torch.float16)
