"""Settings of torch that a variant changes are given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from harness import intact
from tests.one_test import one_test


def settings() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], object], tuple[Any, Any]]]:
    """Each setting: how it is read, how it is written, and two values: one is another one than it has."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    for number, part in enumerate(intact.precisions()):
        yield (
            f"fp32_precision {number}",
            partial(getattr, part, "fp32_precision"),
            partial(setattr, part, "fp32_precision"),
            ("ieee", "tf32"),
        )
    for owner, name in (
        (products, "allow_fp16_reduced_precision_reduction"),
        (products, "allow_bf16_reduced_precision_reduction"),
        (cudnn, "enabled"),
        (cudnn, "benchmark"),
        (cudnn, "deterministic"),
    ):
        yield name, partial(getattr, owner, name), partial(setattr, owner, name), (False, True)
    yield "threads", torch.get_num_threads, torch.set_num_threads, (3, 2)
    yield "products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, ("high", "highest")
    yield "deterministic", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, (2, 0)
    yield "gradients", torch.is_grad_enabled, torch.set_grad_enabled, (False, True)


SETTINGS = {name: rest for name, *rest in settings()}


@one_test("name", SETTINGS)
def test_each_setting_is_given_back(name):
    read, write, values = SETTINGS[name]
    before = read()
    value = next(value for value in values if value != before)
    try:
        with intact.settings_kept():
            write(value)
            assert read() == value
        assert read() == before
    finally:
        write(before)


def test_settings_are_given_back_after_an_error_too():
    before = torch.get_num_threads()

    def fails() -> None:
        with intact.settings_kept():
            torch.set_num_threads(before + 1)
            raise ValueError("of a variant")

    with pytest.raises(ValueError, match="of a variant"):
        fails()
    assert torch.get_num_threads() == before


def test_a_setting_that_torch_does_not_tell_stays_and_one_that_is_as_it_was_is_not_written(monkeypatch):
    written: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", written.append)
    with intact.settings_kept():
        pass
    assert written == []

    begun: list[bool] = []

    def refused() -> int:
        if not begun:
            raise RuntimeError("set in the older and the newer way")
        return 3

    monkeypatch.setattr(torch, "get_num_threads", refused)
    with intact.settings_kept():
        begun.append(True)
    assert not written
