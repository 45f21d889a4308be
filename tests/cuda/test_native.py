"""The launcher in C: it is built once, kept, and done without where it can't be built."""

from __future__ import annotations

import ctypes
import shutil
import sysconfig

import pytest

from harness import paths
from harness.cuda import launch, native
from harness.devices import _software
from harness.errors import MachineError
from tests.cuda.drivers import driven_by
from tests.one_test import one_test


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "native"


@pytest.fixture(scope="module")
def library():
    """The library, compiled once for all tests that need one, or its name."""
    native.built()
    (file,) = (paths.cache() / "native").glob("launcher-*.so")
    return file


@pytest.mark.slow
def test_it_is_compiled_once(empty_cache, monkeypatch):
    assert hasattr(native.built(), "Memo")
    (library,) = empty_cache.iterdir()
    monkeypatch.setenv("CC", "/no/compiler")
    assert hasattr(native.built(), "Memo")
    monkeypatch.setattr(native, "SOURCE", _changed(empty_cache.parent))
    with pytest.raises(MachineError, match="can't be compiled"):
        native.built()
    assert [*empty_cache.iterdir()] == [library]


def _changed(folder):
    """The source with another comment: another library."""
    for name in ("launcher.c", "launcher.h"):
        (folder / name).write_text(native.SOURCE.with_name(name).read_text() + "/* changed */\n")
    return folder / "launcher.c"


def test_what_is_missing_is_said(empty_cache, monkeypatch):
    monkeypatch.setenv("CC", "false --with options")
    with pytest.raises(MachineError, match=r"^false --with options -O2 .* failed:"):
        native.built()
    monkeypatch.delenv("CC")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda _: None)
        with pytest.raises(MachineError, match="no C compiler is installed"):
            native.built()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(MachineError, match=r"Python's headers aren't in /nowhere") as caught:
        native.built()
    assert caught.value.advice == "install them: apt-get install python3-dev"


@pytest.mark.slow  # a test above has one that is compiled anew
def test_a_library_that_is_cut_off_is_an_error_that_names_it(empty_cache, library):
    empty_cache.mkdir(mode=0o700)
    cut = empty_cache / library.name
    cut.write_bytes(b"")
    cut.chmod(0o700)
    with pytest.raises(MachineError, match="can't be loaded") as caught:
        native.built()
    assert caught.value.advice == f"remove {cut}"


def test_a_library_that_others_can_write_is_compiled_anew(empty_cache, library):
    assert library.stat().st_mode & 0o077 == 0
    empty_cache.mkdir(mode=0o700)
    planted = empty_cache / library.name
    planted.write_bytes(b"planted")
    planted.chmod(0o666)
    assert hasattr(native.built(), "Memo")
    assert planted.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("chosen", ["/proc/none", ""])
def test_there_is_none_where_the_cache_folder_cannot_be_used(empty_cache, monkeypatch, chosen):
    if chosen:
        monkeypatch.setenv("HARNESS_CACHE", chosen)
    else:
        empty_cache.parent.chmod(0o777)
    with pytest.raises(MachineError, match="isn't a folder that this user alone can write"):
        native.built()
    assert native.launcher.__wrapped__() is None
    assert not empty_cache.exists()


def test_python_launches_where_it_is_missing(empty_cache, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert native.launcher.__wrapped__() is None


class Empty(ctypes.Structure):
    """A struct without members takes no room, so a kernel could have any number of them."""


def test_arguments_beyond_its_room_are_refused(monkeypatch):
    driven_by(lambda *_: 0, "C", monkeypatch)
    module, large = native.launcher(), (ctypes.c_char * 2000)()
    for arguments in ((large,), (ctypes.c_int(1),) * 65, (Empty(),) * 65):
        with pytest.raises(ValueError, match=r"too large|too many arguments"):
            module.launch(1, (1, 1, 1), 32, 0, 0, 1, arguments)


@one_test(
    "changed",
    [
        {"words": []},
        {"words": [0] * 200},
        {"steps": [(1, (1, 1, 1), 32, 0, 0, list(range(65)))]},
        {"steps": [(1, (1, 1, 1), 32, 0, 0, [9])]},
        {"steps": [(1, (1, 1, 1), 32, 0, 0, [-1])]},
        {"sources": [5, 0]},
        {"sources": [-2, 0]},
    ],
    ids=[
        *("fewer words than addresses", "many words", "many arguments", "no such word", "a word before the first one"),
        *("no such tensor", "a tensor before the first one"),
    ],
)
def test_a_plan_that_would_read_beyond_its_memory_is_refused(changed):
    module = native.built()
    whole = {
        "outputs": (((1,), (1,), None),),
        "sources": [0, 1],
        "words": [0, 0, 7],
        "steps": [(1, (1, 1, 1), 32, 0, 0, [0, 1, 2])],
    }
    assert module.Plan("op", 1, *_parts(whole)[:1], *_parts(whole)[1:])
    with pytest.raises(ValueError, match=r"too many|fewer words|no such"):
        module.Plan("op", 1, *_parts(whole | changed))


def _parts(plan):
    return plan["outputs"], True, None, 0, plan["sources"], [], plan["words"], plan["steps"]


def test_a_launch_of_a_memo_that_fails_leaves_nothing(monkeypatch):
    """An error of the driver reaches the caller of a function that is known, and the next call works."""
    statuses = [0, 719, 0]
    driven_by(lambda *_: statuses.pop(0), "C", monkeypatch)
    import torch

    module = native.launcher()
    ways = torch._C._dynamo.guards._empty_strided_cpu, lambda: -1, lambda _: 64
    known, counts = {}, {"op": 0}
    plan = module.Plan(
        "op", 1, (((4,), (1,), torch.float32),), True, None, -1, [0, 1], [], [0, 0], [(1, (1, 1, 1), 32, 0, 0, [0, 1])]
    )

    def learn(key, x):
        known[key] = plan
        return x

    memo = module.Memo(learn, known, torch.Tensor, torch.nn.Parameter, *ways, counts)
    x = torch.ones(4)
    assert memo(x) is x
    assert memo(x).shape == (4,)
    with pytest.raises(MachineError, match="CUDA_ERROR_LAUNCH_FAILED"):
        memo(x)
    assert memo(x).shape == (4,)
    assert counts == {"op": 3}
    assert statuses == []
    assert launch.recover is not None


def test_a_memo_takes_its_arguments_by_place_and_not_any_number():
    import torch

    ways = torch._C._dynamo.guards._empty_strided_cpu, lambda: -1, lambda _: 64
    memo = native.built().Memo(lambda _key, *given: len(given), {}, torch.Tensor, torch.nn.Parameter, *ways, {})
    assert memo(*range(32)) == 32
    with pytest.raises(TypeError, match="by place"):
        memo(*range(33))
    with pytest.raises(TypeError, match="by place"):
        memo(x=1)


def test_the_environment_says_which_launcher_there_is(empty_cache, library, monkeypatch):
    empty_cache.mkdir(mode=0o700)
    shutil.copy(library, empty_cache)
    fact = _software.launcher()
    assert (fact.name, fact.advice) == ("launcher in C", "")
    assert str(empty_cache) in fact.value
    monkeypatch.setenv("CC", "false")
    monkeypatch.setenv("HARNESS_CACHE", str(empty_cache))
    fact = _software.launcher()
    assert fact.value.startswith("none (false -O2")
    assert fact.advice.endswith("without it kernels run alike, and each launch takes the host longer")
