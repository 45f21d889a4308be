"""What is noted of the functions, constants and settings that times rest on, and what counts as a change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness import intact
from tests.rare import rare

UNBELIEVED = "while the case ran: what it measured can't be believed"
SOURCE = """
from collections.abc import Callable

FEW, WORDS, RAW, PAIR, TABLE = 3, "words", b"raw", (1, (2.0, "two")), {"float32": (1e-3, 1e-4), "int8": 1}
LISTED, ENTERED, EMPTY, few = [1], {"a": print, "b": 1}, {}, 3
MIXED, TUPLES = (1, [2]), {"a": (1, "one")}

def twice(x, times=2, *, most=9):
    return times * x

class Base:
    def inherited(self): ...
class Counter(Base):
    def count(self): ...
    @property
    def size(self): ...
    @staticmethod
    def made(): ...
    @classmethod
    def of(cls): ...
"""


@pytest.fixture(scope="module")
def noted() -> dict[str, Any]:
    """What is remembered before the tests, each of which puts back what it changes: to note it takes 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intact, "_remembered", {})
        intact.remember()
        return intact._remembered


@pytest.fixture
def guarded(process_put_back: None, noted: dict[str, Any]) -> None:
    intact._remembered.update(noted)


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, source: str = SOURCE) -> Any:
    """A module that this process seems to have imported."""
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(source, vars(module))
    return module


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, guarded: None) -> Any:
    """A module of the instrument, which is noted, as one of few: to compare all that there is takes 20 ms each time."""
    monkeypatch.setattr(intact, "_is_instrument", lambda name, _: name in ("harness.of_a_test", "harness.borrowed"))
    monkeypatch.setattr(intact, "_LAYERS", "torch.nn.modules.linear")
    module = loaded(monkeypatch, "harness.of_a_test")
    assert intact.replaced() is None
    return module


def other(*_: object, **__: object) -> None:
    """A function to put in another's place."""


CHANGES: dict[str, Callable[[Any], object]] = {
    "twice": lambda m: setattr(m, "twice", other),
    "Counter.count": lambda m: setattr(m.Counter, "count", other),
    "Counter.size": lambda m: setattr(m.Counter, "size", property(other)),
    "Counter.made": lambda m: setattr(m.Counter, "made", staticmethod(other)),
    "Counter.of": lambda m: setattr(m.Counter, "of", classmethod(other)),
    "Counter.inherited": lambda m: setattr(m.Counter, "inherited", other),  # hides what the base class has
    "Counter": lambda m: setattr(m, "Counter", m.Base),
    "sorted": lambda m: setattr(m, "sorted", other),  # hides what Python has
    "FEW": lambda m: setattr(m, "FEW", 4),
    "WORDS": lambda m: setattr(m, "WORDS", "other"),
    "RAW": lambda m: setattr(m, "RAW", b"other"),
    "PAIR": lambda m: setattr(m, "PAIR", (1, (2.0, "three"))),
    "TABLE": lambda m: m.TABLE.update(int8=2),
}


RARE = ("Counter.count", "Counter.made", "Counter.of", "Counter.size", "WORDS", "RAW")


@pytest.mark.parametrize("name", [rare(name) if name in RARE else name for name in CHANGES])
def test_what_counts_as_replaced(own, name):
    CHANGES[name](own)
    assert intact.replaced() == f"harness.of_a_test.{name} was replaced {UNBELIEVED}"


@pytest.mark.parametrize("name", ["twice", "Counter.count", "FEW"])
def test_what_can_not_be_called_any_more_is_replaced(own, name):
    owner, _, last = f"x.{name}".rpartition(".")
    setattr(own.Counter if owner != "x" else own, last, None)
    assert intact.replaced() == f"harness.of_a_test.{name} was replaced {UNBELIEVED}"


INSIDE: dict[str, tuple[str, object]] = {
    "code": ("__code__", other.__code__),
    "defaults": ("__defaults__", (3,)),
    "named defaults": ("__kwdefaults__", {"most": 8}),
}


@pytest.mark.parametrize("what", INSIDE)
def test_a_function_s_code_and_defaults_are_noted_where_it_was_defined(monkeypatch, own, what):
    """It is found in a module that took it, whose name comes first."""
    monkeypatch.setitem(sys.modules, "harness.borrowed", ModuleType("harness.borrowed"))
    sys.modules["harness.borrowed"].twice = own.twice
    assert intact.replaced() is None
    setattr(own.twice, *INSIDE[what])
    assert intact.replaced() == f"harness.of_a_test.twice was replaced {UNBELIEVED}"


@pytest.mark.parametrize("name", ["made", "of"])
def test_the_code_inside_a_method_without_an_instance_is_noted(own, name):
    vars(own.Counter)[name].__func__.__code__ = other.__code__
    assert intact.replaced() == f"harness.of_a_test.Counter.{name} was replaced {UNBELIEVED}"


def test_what_is_no_function_and_no_constant_may_change(own):
    own.LISTED.append(2)
    own.ENTERED["b"] = own.EMPTY["c"] = own.TUPLES["a"] = own.MIXED = 2
    own.few = 4
    own.added = other
    del own.added
    assert intact.replaced() is None


def test_what_comes_behind_an_added_name_is_compared_too(own):
    own.added, own.FEW = other, 4
    assert "harness.of_a_test.FEW was replaced" in intact.replaced()


def test_what_is_loaded_later_is_noted_when_it_is_first_seen(monkeypatch, guarded):
    later = loaded(monkeypatch, "harness.later")
    later.twice = other
    assert intact.replaced() is None
    later.FEW = 5
    assert "harness.later.FEW" in intact.replaced()


def test_nothing_is_compared_before_something_was_noted(own):
    intact._remembered.clear()
    own.twice = other
    assert intact.replaced() is None
    assert not intact._remembered


def test_modules_of_others_count_where_that_is_asked_for(monkeypatch):
    one, two = (loaded(monkeypatch, name) for name in ("one_of_others", "two_of_others"))
    intact.remember([one])
    two.twice = other
    one.FEW = 5
    assert intact.replaced() is None
    one.twice = other
    assert intact.replaced() == f"one_of_others.twice was replaced {UNBELIEVED}"


def test_what_is_noted_first_stays_noted(monkeypatch, own):
    own.twice = other
    intact.remember()
    assert "harness.of_a_test.twice" in intact.replaced()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("harness.check_of_a_test", True),
        ("harness", False),
        ("harnesses.check", False),
        ("harness.collection.ops.own", False),
        ("harness.collection", False),
    ],
)
def test_the_instrument_is_noted_and_the_collection_is_not(monkeypatch, name, counts):
    module = ModuleType(name)
    assert intact._is_instrument(name, module) is counts
    module.__spec__ = SimpleNamespace(name=name)
    assert intact._is_instrument("__main__", module) is counts, "the module that runs as the program"
    assert not intact._is_instrument("__main__", ModuleType("__main__"))


# ---- Torch replaces functions of its own.


def of_torch(name: str = "torch._of_a_test") -> Any:
    """A function that torch wrote, by the module of its globals."""
    space = {"__name__": name}
    exec("def written(*_): ...", space)
    return space["written"]


def test_torch_may_replace_what_is_its_own(monkeypatch, guarded):
    monkeypatch.setattr(torch.nn.functional, "linear", of_torch())
    monkeypatch.setattr(torch.Tensor, "isnan", of_torch("torch"))
    assert intact.replaced() is None


@pytest.mark.parametrize(
    "value",
    [*map(of_torch, ("torches.own", "own.torch", "mine")), rare(torch.no_grad()(other)), rare(torch.nn.Identity())],
)
def test_others_may_not_replace_what_is_torch_s_by_what_torch_wraps_or_makes_for_them(monkeypatch, guarded, value):
    monkeypatch.setattr(torch.nn.functional, "linear", value)
    assert "torch.nn.functional.linear was replaced" in intact.replaced()


def test_transformers_may_add_a_method_to_torch_s_modules_and_replace_none(monkeypatch, guarded):
    """It adds `smart_apply` when its first model is made, which is while the case runs."""
    by_it, by_another = of_torch("transformers.modeling_utils"), of_torch("transformed.modeling_utils")
    monkeypatch.setattr(torch.nn.Module, "smart_apply", by_it, raising=False)
    assert intact.replaced() is None
    monkeypatch.setattr(torch.nn.Module, "smart_apply", by_another)
    assert "smart_apply was replaced" in intact.replaced()
    monkeypatch.setattr(torch.nn.Module, "smart_apply", by_it)
    monkeypatch.setattr(torch.nn.Module, "apply", by_it)
    assert "torch.nn.modules.module.Module.apply was replaced" in intact.replaced()


def test_torch_replaces_no_function_of_others_and_no_clock(monkeypatch, own):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.streams.Event, "elapsed_time", of_torch())
        assert "torch.cuda.streams.Event.elapsed_time was replaced" in intact.replaced()
    assert intact.replaced() is None
    own.twice = of_torch()
    assert "harness.of_a_test.twice was replaced" in intact.replaced()


def test_a_function_of_torch_under_another_name_is_not_written_for_that(monkeypatch, guarded):
    monkeypatch.setattr(torch.nn.functional, "softmax", torch.nn.functional.log_softmax)
    assert "torch.nn.functional.softmax was replaced" in intact.replaced()


def test_constants_are_noted_of_the_instrument_alone(monkeypatch):
    monkeypatch.setattr(torch, "OF_A_TEST", 1, raising=False)
    intact.remember()
    monkeypatch.setattr(torch, "OF_A_TEST", 2)
    assert intact.replaced() is None


def test_the_generator_that_inputs_are_drawn_by_is_noted(monkeypatch, guarded):
    monkeypatch.setattr(torch, "default_generator", torch.Generator())
    assert "torch.default_generator was replaced" in intact.replaced()


# ---- The op of a case.


@dataclass
class Sheet:
    sizes: dict[str, list[int]]
    parts: tuple[Any, ...] = ()
    shown: int = 0
    hidden: int = field(default=0, repr=False)


def sheet() -> Sheet:
    return Sheet({"N": [1, 2]}, (Sheet({}), int))


SHEETS: dict[str, Callable[[Sheet], object]] = {
    "shown": lambda one: setattr(one, "shown", 1),
    "sizes": lambda one: one.sizes["N"].append(3),
    "parts": lambda one: setattr(one.parts[0], "shown", 1),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_field_of_what_is_watched_may_not_change(name):
    watched = sheet()
    intact.watch("op 'own'", watched)
    watched.hidden = 1
    assert intact.replaced() is None
    SHEETS[name](watched)
    assert intact.replaced() == f"op 'own': '{name}' was changed {UNBELIEVED}"
    intact.watch("op 'own'", sheet())
    assert intact.replaced() is None, "what had the name before isn't watched any more"


# ---- The state of torch and of Python.


@pytest.mark.parametrize("mode", [type("Own", (of,), {}) for of in (TorchFunctionMode, TorchDispatchMode)])
def test_a_mode_of_torch_may_not_be_on_but_a_default_device_may(mode):
    with torch.device("cpu"):
        assert intact.replaced() is None
    with mode():
        said = intact.replaced()
    assert said == "torch's functions are in the mode Own: end a mode in the call that begins it"
    with torch.device("meta"), mode():
        assert "mode Own" in intact.replaced()


def test_the_default_dtype_is_noted(guarded):
    torch.set_default_dtype(torch.float64)
    try:
        said = intact.replaced()
    finally:
        torch.set_default_dtype(torch.float32)
    assert said == f"torch's default dtype was changed {UNBELIEVED}"


def test_functions_of_torch_s_dispatcher_are_noted(monkeypatch, guarded):
    for added in ("aten/add/Meta", "own/add/CPU"):
        monkeypatch.setattr(torch.library, "_impls", {*torch.library._impls, added})
        assert intact.replaced() is None
    monkeypatch.setattr(torch.library, "_impls", {*torch.library._impls, "aten/add/CPU"})
    assert intact.replaced() == f"a function of torch's dispatcher was changed {UNBELIEVED}"


HOOKS = "what Python calls at each call (sys.setprofile, sys.settrace)"


def test_what_python_calls_at_each_call_is_noted(monkeypatch, guarded):
    for name in ("getprofile", "gettrace"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, lambda: other)
            assert intact.replaced() == f"{HOOKS} was changed {UNBELIEVED}"


@pytest.mark.parametrize("number", [0, *map(rare, range(1, 5)), 5])
def test_all_six_tools_that_watch_calls_are_noted(monkeypatch, number):
    """Python has numbers from 0 to 5 for them."""
    tools: list[str | None] = [None] * 6
    monkeypatch.setattr(sys, "monitoring", SimpleNamespace(get_tool=tools.__getitem__), raising=False)
    intact.remember()
    assert intact.replaced() is None
    tools[number] = "a profiler"
    assert intact.replaced() == f"{HOOKS} was changed {UNBELIEVED}"


def test_without_torch_there_is_nothing_to_note_and_to_give_back(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    with intact.settings_kept():
        assert intact._mode() is None
    assert not any(owner.startswith(("torch.Tensor", "state")) for owner, _ in intact._things())
