"""The examples in docstrings of harness.nn run, on a CPU."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import torch

from harness import nn
from harness.collection import nn as package
from tests.one_test import one_test

MODULES = [package.__name__, *(one.name for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}."))]


@one_test("name", MODULES)
def test_examples_give_what_stands_there(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder().find(module, globs={"torch": torch, "nn": nn}):
        runner.run(test)
    assert not runner.failures
    assert runner.tries == Path(module.__file__).read_text(encoding="utf-8").count(">>> ")
