"""Mutants: which there are, which are known to change nothing, which tests they run, and what is kept of them."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.one_test import one_test

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
mutate, mutations = import_module("mutate"), import_module("mutations")
sys.path.remove(str(ROOT / "scripts"))


def changes(source: str) -> list[str]:
    return [mutant.now for mutant in mutations.mutants("one.py", source.encode())]


@one_test(
    ("source", "made"),
    [
        ("a < b", ["(a <= b)", "(a >= b)"]),
        ("a == b != c", ["(a != b != c)", "(a == b == c)"]),
        ("a is not b", ["(a is b)"]),
        ("a not in b", ["(a in b)"]),
        ("x = a + b", ["x = (a - b)"]),
        ("x -= a", ["x += a"]),
        ("x = a // b", ["x = (a * b)"]),
        ("x = a and b", ["x = (a or b)"]),
        ("x = not a", ["x = (a)"]),
        ("x = 3", ["x = 4", "x = (2)"]),
        ("x = 1e-3", ["x = 0.002", "x = 0.0005"]),
        ("x = 0.0", ["x = 1.0"]),
        ("x = True", ["x = False"]),
        ("x = min(a, b)", ["x = max(a, b)"]),
        ("x = statistics.median(a)", ["x = statistics.fmean(a)"]),
        ("x = abs(a)", ["x = (a)"]),
        ("synchronize()", ["pass"]),
        ("raise E", ["pass"]),
        ("if a: b", ["if (not (a)): b"]),
        ("x = a if b else c", ["x = a if (not (b)) else c"]),
        ("x = [a for a in b if a]", ["x = [a for a in b if (not (a))]"]),
        # What only readers and checkers of types see, and what is asserted.
        ("x = 'text'", []),
        ("x = f'{a + 1}'", []),
        ("x: Literal[3] = y", []),
        ("x = zip(a, b, strict=True)", []),
        ("if TYPE_CHECKING:\n    import a", []),
    ],
)
def test_what_a_mutant_changes(source, made):
    assert changes(source) == made


def test_a_mutant_knows_its_place():
    source = b"""_LIMIT = 2


class A:
    def f(self, n=1):
        if (n >
                _LIMIT):
            return n
"""
    found = {str(mutant): mutant for mutant in mutations.mutants("one.py", source)}
    assert [(one.line, one.scope, [*one.lines]) for one in found.values()] == [
        (1, "", [7]),  # where the constant is used
        (1, "", [7]),
        (5, "A.f", [6, 7, 8]),  # a default, where the function runs
        (5, "A.f", [6, 7, 8]),
        (6, "A.f", [6, 7]),
        (6, "A.f", [6, 7]),
        (8, "A.f", [8]),
    ]
    assert "one.py:6 in A.f\n  - if (n > _LIMIT):\n  + if ((n >= _LIMIT)):" in found
    assert [*found.values()][-1].source == source.replace(b"return n", b"return None")


@pytest.mark.slow
def test_each_module_has_tests_and_each_mutant_that_changes_nothing_is_one():
    modules, equal = mutate.written()
    for pattern, tests in modules.items():
        assert list(ROOT.glob(pattern)), pattern
        for test in tests.split():
            assert list(ROOT.glob(test)), test
    files = {file for file, *_ in equal}
    assert files <= mutate.files_of([]).keys()
    made = {mutant.key for file in files for mutant in mutations.mutants(file, (ROOT / file).read_bytes())}
    assert equal.keys() - made == set()
    assert all(equal.values())


def test_lines_are_chosen_by_number():
    made = mutations.mutants("one.py", b"x = 1\ny = 2\n")
    assert [mutant.line for mutant in made if mutate.is_asked(mutant, ["one.py:2"])] == [2, 2]
    assert all(mutate.is_asked(mutant, ["one.py"]) for mutant in made)


def test_tests_that_run_the_line_are_run_the_fastest_first():
    one, two = mutations.mutants("one.py", b"def f():\n    g()\n\n\ndef h():\n    g()\n")
    clean = mutate.Clean({"slow": 3.0, "fast": 1.0, "other": 2.0}, {"one.py": {2: ["slow", "fast"]}})
    assert clean.tests_of(one) == ["fast", "slow"]
    # Nothing is known of a line that no test runs in its own process: a process that it starts may run it.
    assert clean.tests_of(two) == ["fast", "other", "slow"]


def test_lines_are_those_that_a_test_that_passes_ran(tmp_path):
    file = tmp_path / "few.py"
    file.write_text("def twice(x):\n    y = 2 * x\n    return y\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    watching = mutate.Watching([str(file)])
    before = sys.gettrace()
    for test, passes in (("good", True), ("bad", False)):
        watching.pytest_runtest_logstart(test)
        space["twice"](1)
        watching.pytest_runtest_logfinish(test)
        watching.pytest_runtest_logreport(SimpleNamespace(passed=passes, nodeid=test))
    sys.settrace(before)
    told = watching.told()
    assert told["lines"] == [[str(file), 2, ["good"]], [str(file), 3, ["good"]]]
    assert ([*told["seconds"]], told["failed"]) == (["good"], ["bad"])
    assert told["seconds"]["good"] > 0


def test_lines_that_other_threads_of_a_test_run_are_noted(tmp_path):
    file = tmp_path / "one.py"
    file.write_text("def twice(x):\n    return 2 * x\n")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), space)
    watching = mutate.Watching([str(file)])
    before = sys.gettrace(), threading.gettrace()
    watching.pytest_runtest_logstart("watched")
    thread = threading.Thread(target=space["twice"], args=(1,))
    thread.start()
    thread.join()
    watching.pytest_runtest_logfinish("watched")
    assert threading.gettrace() is None
    sys.settrace(before[0])
    threading.settrace(before[1])
    assert watching.told()["lines"] == [[str(file), 2, ["watched"]]]


def test_what_was_found_holds_until_the_module_changes_and_for_survivors_until_tests_do(tmp_path):
    for name in ("one.py", "test_one.py"):
        (tmp_path / name).write_text("x = 1\n")
    first, second = mutations.mutants("one.py", b"x = 1\n")

    def kept() -> list[bool]:
        results = mutate.Results(tmp_path / "found", tmp_path)
        return [results.of(mutant, ["test_one.py"]) is not None for mutant in (first, second)]

    results = mutate.Results(tmp_path / "found", tmp_path)
    assert kept() == [False, False]
    results.add(first, ["test_one.py"], {"state": "killed", "by": "a"})
    results.add(second, ["test_one.py"], {"state": "survived", "by": ""})
    assert kept() == [True, True]
    (tmp_path / "test_one.py").write_text("x = 2\n")
    assert kept() == [True, False]
    (tmp_path / "one.py").write_text("x = 1 \n")
    assert kept() == [False, False]
