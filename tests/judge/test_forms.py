"""What the forms read in files and requests, without measuring anything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.errors import InputError, UsageError
from harness.judge import loading, sources
from harness.judge.forms import gpumode, ops
from harness.judge.records import Asked, Sheet
from harness.model import Case
from harness.ops import Choice, Context, Op, Tensor
from harness.session import EndedError

# ---- GPU MODE's.

REFERENCE = "def generate_input(size, scale, seed): ...\ndef ref_kernel(data): ...\n"
CUSTOM = "def custom_kernel(data): ...\ndef other(data): ...\n"


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """A candidate with a reference beside it."""
    (tmp_path / "mine.py").write_text(CUSTOM)
    (tmp_path / "reference.py").write_text(REFERENCE)
    return Asked(tmp_path / "mine.py", "cpu", 3, sizes=({"size": 4, "scale": 1},))


def of_gpumode(asked: Asked) -> Sheet:
    return gpumode.sheet(asked, sources.read(asked.candidate))


def recognises(asked: Asked) -> bool:
    return gpumode.recognises(asked, sources.read(asked.candidate))


def test_the_form_is_recognised_by_its_functions(asked: Asked, tmp_path: Path) -> None:
    assert recognises(asked)
    assert recognises(replace(asked, function="other"))
    assert not recognises(replace(asked, function="third"))
    assert not recognises(replace(asked, op="softmax"))
    assert recognises(replace(asked, function="third", isolated=True)), "a manifest has no functions"
    (tmp_path / "reference.py").write_text("def ref_kernel(data): ...\n")
    assert not recognises(asked)
    (tmp_path / "mine.py").write_text(CUSTOM + REFERENCE)
    assert recognises(asked)
    assert not recognises(replace(asked, reference=tmp_path / "reference.py")), "the file that is named counts"


def test_what_a_request_says(asked: Asked, tmp_path: Path) -> None:
    found = of_gpumode(asked)
    assert (found.candidate, found.reference) == tuple(str(tmp_path / name) for name in ("mine.py", "reference.py"))
    assert (found.function, found.options["seeded"], found.notes) == ("custom_kernel", True, ())
    assert of_gpumode(replace(asked, function="other")).function == "other"
    assert [one.arguments for one in found.timed] == [{"size": 4, "scale": 1}]
    assert found.tested == ()
    (tmp_path / "reference.py").write_text(REFERENCE.replace(", seed", ""))
    assert of_gpumode(asked).options["seeded"] is False
    (tmp_path / "mine.py").write_text(CUSTOM + REFERENCE)
    assert of_gpumode(asked).notes[0].startswith("The reference stands in the candidate's own file")


def test_a_request_that_this_form_can_not_carry_out(asked: Asked, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dtype can't be given"):
        of_gpumode(replace(asked, dtypes=("float16",)))
    with pytest.raises(UsageError, match=r"no sizes are known for generate_input\(size, scale\)") as raised:
        of_gpumode(replace(asked, sizes=()))
    assert "--sizes size=1024,scale=1024" in raised.value.advice
    (tmp_path / "reference.py").write_text("def generate_input(seed): ...\ndef ref_kernel(data): ...\n")
    assert [one.arguments for one in of_gpumode(replace(asked, sizes=())).timed] == [{}], "none are needed"


def test_sizes_of_a_task_are_timed_and_its_tests_checked(asked: Asked, tmp_path: Path) -> None:
    task = "files:\n  - {source: ../shared/eval.py}\n  - {source: task.py}\n  - {name: x}\n  - {source: 3}\n"
    tests = "tests:\n  - {size: 1, scale: 2, seed: 5}\n"
    (tmp_path / "task.yml").write_text(f"{task}{tests}benchmarks:\n  - {{size: 3, scale: 4, seed: 6}}\n")
    found = of_gpumode(replace(asked, sizes=()))
    both = [[one.arguments for one in part] for part in (found.timed, found.tested)]
    assert both == [[{"size": 3, "scale": 4}], [{"size": 1, "scale": 2}]]
    assert found.folders == tuple(sorted({str(tmp_path), str(tmp_path.parent / "shared")}))
    given = of_gpumode(asked)
    assert ([one.arguments["size"] for one in given.timed], len(given.tested)) == ([4], 1)
    (tmp_path / "task.yml").write_text(tests)
    found = of_gpumode(replace(asked, sizes=()))
    assert ([one.arguments["size"] for one in found.timed], found.tested) == ([1], ())


@pytest.mark.parametrize(
    "text", ["[]", "tests: {}", "benchmarks: [3]", "files: 3", "tests: [{size: 1}, 2]", "3", "benchmarks: text"]
)
def test_a_task_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "task.yml").write_text(text)
    with pytest.raises(UsageError, match="must be lists of mappings"):
        gpumode._task(tmp_path / "task.yml")
    assert gpumode._task(tmp_path / "none.yml") == {}


def test_arguments_that_are_sizes_in_every_case_are_sizes() -> None:
    first = [{"n": 4, "world": 2, "seed": 1, "mode": "a b", "flag": True, "k": 1}, {"n": 4, "world": 2, "seed": 2,
             "mode": "a b", "flag": True, "k": 1}]  # fmt: skip
    second = [{"n": 8, "world": 3, "seed": 1, "mode": "", "flag": False, "k": 0}]
    timed, tested = gpumode._cases(first, second)
    assert [one.sizes for one in timed] == [{"n": 4, "world_": 2, "mode": "a_b", "flag": "True", "k": "1"}]
    assert [one.sizes for one in tested] == [{"n": 8, "world_": 3, "mode": "_", "flag": "False", "k": "0"}]
    assert tested[0].arguments == {"n": 8, "world": 3, "mode": "", "flag": False, "k": 0}
    assert gpumode._cases([{"n": 1}])[0][0].sizes == {"n": 1}
    with pytest.raises(UsageError, match="cases with other arguments than n can't be judged together") as told:
        gpumode._cases([{"n": 1}], [{"m": 1}])
    assert told.value.advice == "give all cases of task.yml and of --sizes the same arguments"


@pytest.fixture
def reference(tmp_path: Path, monkeypatch) -> Any:
    """Makes the reference of a file."""

    def made(text: str, *, seeded: bool = True) -> Any:
        (tmp_path / "theirs.py").write_text(text)
        sheet = Sheet("gpumode", "", str(tmp_path / "theirs.py"), "", "cpu", "float32", 1, "judged",
                      options={"seeded": seeded})  # fmt: skip
        monkeypatch.setattr(loading, "load", lambda file, *_: _module(file))
        return gpumode.reference(sheet)

    return made


def _module(file: str) -> Any:
    space: dict[str, Any] = {}
    exec(Path(file).read_text(), space)
    return SimpleNamespace(**space)


DRAWING = "import torch\ndef generate_input(n, **rest):\n    return torch.rand(n), n, rest\n"
DOUBLING = "def ref_kernel(data):\n    return data[0] * 2\n"


def test_inputs_are_drawn_by_the_seed(reference) -> None:
    made = reference(DRAWING + DOUBLING)
    (first, _, rest), (again, *_), (other, *_) = (made.inputs({"n": 3}, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert rest == {"seed": 1}
    assert reference(DRAWING + DOUBLING, seeded=False).inputs({"n": 3}, 1)[2] == {}


def test_only_floats_become_precise(reference) -> None:
    made = reference("def generate_input(n): ...\ndef ref_kernel(data):\n    return data\n")
    got = made.precisely([torch.ones(2, dtype=torch.float16), torch.ones(2, dtype=torch.int32)])
    assert [one.dtype for one in got] == [torch.float64, torch.int32]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("True", None), ("''", None), ("None", None), ("(True, 'fine')", None), ("(True, '')", None),
        ("False", "check_implementation: False"), ("'off by 1'", "check_implementation: off by 1"),
        ("(False, 'off by 1')", "check_implementation: off by 1"), ("1 / 0", "check_implementation fails: ZeroDiv"),
    ],
)  # fmt: skip
def test_what_the_form_s_own_check_finds(reference, gives: str, said: str | None) -> None:
    check = f"def check_implementation(data, output):\n    return {gives}\n"
    found = reference(DRAWING + DOUBLING + check)
    assert found.decides
    told = found.complaint(None, [torch.ones(1)])
    assert told is None if said is None else told.startswith(said)


def test_a_check_is_given_one_output_or_a_tuple(reference) -> None:
    check = "def check_implementation(data, output):\n    return type(output).__name__\n"
    found = reference(DRAWING + DOUBLING + check)
    assert found.complaint(None, [torch.ones(1)]) == "check_implementation: Tensor"
    assert found.complaint(None, [torch.ones(1)] * 2) == "check_implementation: tuple"
    without = reference(DRAWING + DOUBLING)
    assert (without.decides, without.complaint(None, []), without.weights) == (False, None, 0)


def test_only_sizes_are_varied(reference) -> None:
    made = reference(DRAWING + DOUBLING)
    varied = list(islice(made.vary({"n": 64, "mode": "a", "flag": True, "k": 0}, random.Random(1)), 5))
    assert {(one["mode"], one["flag"], one["k"]) for one in varied} == {("a", True, 0)}
    assert len({one["n"] for one in varied}) == 5
    assert list(made.vary({"mode": "a"}, random.Random(1))) == []


# ---- Ours.


def op() -> Op:
    return Op(
        "own", "y = x", {"M": "rows", "N": "columns"}, defaults={"N": "2 * M"},
        choices={"mode": Choice("how", ("plain", "fast"))}, inputs=(Tensor("x", ("M", "N")), Tensor("w", ("N",))),
        outputs=(Tensor("y", ("M", "N")),), reference=lambda _, t: {"y": t.x},
    )  # fmt: skip


FILE = Path("mine.py")


def test_parameters_are_names_of_the_op_or_as_many_as_inputs() -> None:
    for given in (["x", "w"], ["y", "N", "mode", "x"], []):
        assert ops._parameters(op(), FILE, "f", given) == given
    assert ops._parameters(op(), FILE, "f", ["a", "b"]) == ops._parameters(op(), FILE, "f", ["x", "b"]) == ["x", "w"]
    for given in (["a"], ["x", "w", "a"]):
        with pytest.raises(UsageError, match="f has a parameter 'a', which op 'own' doesn't have") as raised:
            ops._parameters(op(), FILE, "f", given)
        assert raised.value.advice == ("parameters are named x, w, y, M, N, mode, or are as many as inputs: x, w")


@pytest.mark.parametrize(("names", "said"), [((), "no public function"), (("f", "g"), "f, g as public functions")])
def test_a_file_has_one_public_function(names: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=f"defines {said}"):
        ops._only(sources.Source(FILE, functions=dict.fromkeys((*names, "_own"), ())))
    assert ops._only(sources.Source(FILE, functions={"f": (), "_own": ()})) == "f"


def with_parameters(parameters: list[str]) -> Sheet:
    options = {"manifest": {}, "parameters": parameters}
    return Sheet("ops", "mine.py", "", "double", "cpu", "", 1, "own", options=options)


@pytest.mark.parametrize(("parameters", "returns"), [(["x"], True), (["x", "y"], False), (["N"], True), (["y"], False)])
def test_a_function_that_names_an_output_writes_into_it(monkeypatch, parameters: list[str], returns: bool) -> None:
    made = op()
    monkeypatch.setattr(ops, "find", lambda _: made)
    asked = Sheet(
        "ops", "mine.py", "", "double", "cpu", "", 1, "own", options={"manifest": {}, "parameters": parameters}
    )
    assert ops.op(asked).variants["candidate"].returns is returns


def test_an_op_that_only_updates_its_inputs_returns_nothing(monkeypatch) -> None:
    made = Op(
        "own", "x = 2 x", {"N": ""}, inputs=(Tensor("x", ("N",), inplace=True),), reference=lambda _, t: {"x": t.x}
    )
    monkeypatch.setattr(ops, "find", lambda _: made)
    asked = Sheet("ops", "mine.py", "", "double", "cpu", "", 1, "own", options={"manifest": {}, "parameters": ["x"]})
    assert not ops.op(asked).variants["candidate"].returns


def context(made: Op) -> Context:
    case = Case("own", "candidate", "float32", (("M", 2), ("N", 4)), (("mode", "fast"),), device="cpu")
    return Context(case, torch.float32, torch.device("cpu"), torch.Generator(), made)


@pytest.mark.parametrize(
    ("parameters", "given"),
    [(["w", "x"], ["of w", "of x"]), (["N", "y", "mode", "x"], [4, "of y", "fast", "of x"]), (["N"], [4])],
)
def test_a_function_is_given_tensors_sizes_and_choices_in_its_order(monkeypatch, parameters, given) -> None:
    monkeypatch.setattr(loading, "load", lambda *_: SimpleNamespace(double=lambda *values: list(values)))
    launch = ops._function(with_parameters(parameters))(context(op()))
    assert launch(SimpleNamespace(x="of x", w="of w", y="of y")) == given


def test_other_sizes_keep_the_op_s_defaults_and_what_is_no_size(monkeypatch):
    def drawn(sizes: dict[str, int], _: random.Random) -> Iterator[dict[str, int]]:
        return iter([{name: size + 1 for name, size in sizes.items()}])

    monkeypatch.setattr(ops.sizes, "drawn", drawn)

    def other(**known: int) -> dict[str, int]:
        return next(ops.other_sizes(op(), known, random.Random(1)))

    assert other(M=4, N=8) == {"M": 5, "N": 10}, "N is twice M"
    assert other(M=4, N=9) == {"M": 5, "N": 10}, "N is a size of its own"
    assert other(M=0, N=5) == {"M": 0, "N": 6}
    assert other(M=1, N=5) == {"M": 2, "N": 6}
    assert [*other(N=9, M=4)] == ["M", "N"], "in the op's order"


def test_encodings_differ_by_tensors_and_numbers() -> None:
    one = {"a": torch.ones(2), "n": 3, "text": "x"}
    assert not ops._differs(one, {**one, "text": "y"})
    for change in ({"a": torch.zeros(2)}, {"n": 4}, {"n": 3.5}, {"b": torch.ones(1)}, {"m": 1}):
        assert ops._differs(one, {**one, **change})


def test_inputs_are_as_before_when_other_values_were_encoded() -> None:
    seen: list[Any] = []
    t = SimpleNamespace(x=torch.arange(6.0).reshape(2, 3), w=torch.arange(3.0), y=torch.ones(2))

    def encode(_: Context, tensors: Any) -> dict[str, Any]:
        seen.extend([tensors.x.tolist(), tensors.w.tolist()])
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ops._of_other_values(context(op()), t, encode)
    assert seen == [[[5.0, 4.0, 3.0], [2.0, 1.0, 0.0]], [2.0, 1.0, 0.0]]
    assert (t.x.flatten().tolist(), t.w.tolist()) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0])


def test_an_encoding_is_tried_once_with_other_values(monkeypatch) -> None:
    tried: list[float] = []

    def encode(_: Context, t: Any) -> dict[str, Any]:
        tried.append(float(t.x[0]))
        return {"first": float(t.x[0]) if depends else 0.0}

    variant = SimpleNamespace(encode=encode, unsupported=None)
    monkeypatch.setattr(ops, "_added", lambda *_: {"fast": variant})
    sheet = Sheet("ops", "mine.py", "", "fast", "cpu", "", 1, "own", options={"plugins": []})
    t, own, depends = SimpleNamespace(x=torch.tensor([1.0, 2.0]), w=torch.ones(1)), ops._Own(sheet), False
    assert own.encode(context(op()), t) == own.encode(context(op()), t) == {"first": 0.0}
    assert tried == [1.0, 2.0, 1.0]
    depends = True
    with pytest.raises(EndedError, match="depends on the values of inputs"):
        ops._Own(sheet).encode(context(op()), t)
    assert own.unsupported("case") is None
    variant.unsupported = lambda case: f"not for a {case}"
    assert own.unsupported("case") == "not for a case"


def named(monkeypatch: pytest.MonkeyPatch, text: str, **more: Any) -> Sheet:
    """The sheet of a candidate for an op, whose file has this text."""
    monkeypatch.setattr(ops, "Catalogue", lambda _: {"own": op()})
    asked = replace(Asked(FILE, "cpu", 3, op="own"), **more)
    assert ops.recognises(asked, sources.Source(FILE))
    functions = {name: given for name, given in {"double": ("x",), "triple": ("x", "y")}.items() if name in text}
    return ops.sheet(asked, sources.Source(FILE, functions=functions, adds="variant" in text))


def test_the_sheet_of_a_function_of_a_variant_and_of_a_manifest(monkeypatch) -> None:
    found = named(monkeypatch, "double", plugins=(Path("own.py"),))
    assert (found.function, found.options["parameters"]) == ("double", ["x"])
    assert (found.op, found.seed, found.options["plugins"]) == ("own", 3, [str(Path("own.py").resolve())])
    assert named(monkeypatch, "double triple", function="triple").options["parameters"] == ["x", "y"]
    adds = named(monkeypatch, "variant double triple")
    assert (adds.function, "parameters" in adds.options) == ("", False)
    kernel = {"entry": "k", "grid": ["M"], "block": 32, "arguments": ["x"]}
    manifest = {"source": "k.cu", "kernels": [kernel]}
    of_kernels = named(monkeypatch, "", isolated=True, manifest=manifest)
    assert (of_kernels.options["manifest"], "parameters" in of_kernels.options) == (manifest, False)
    with pytest.raises(InputError, match="uses 'Q'"):
        named(monkeypatch, "", isolated=True, manifest={**manifest, "kernels": [{**kernel, "grid": ["Q"]}]})
    assert not ops.recognises(Asked(FILE, "cpu", 3), sources.Source(FILE))


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("double", {"op": "another"}, "no op is named 'another'"),
        ("double", {"reference": FILE}, "--reference can't be given with --op"),
        ("double triple", {}, "defines double, triple as public functions"),
        ("double", {"function": "triple"}, "defines no function 'triple'"),
    ],
)
def test_a_request_for_an_op_that_can_not_be_carried_out(monkeypatch, text, more, said) -> None:
    with pytest.raises(UsageError) as raised:
        named(monkeypatch, text, **more)
    assert said in raised.value.message


def test_a_sheet_says_what_a_file_adds(monkeypatch):
    def variant(**more: Any) -> SimpleNamespace:
        known = {"inputs": None, "outputs": None, "returns": True, "devices": ("cuda",), "encode": None}
        return SimpleNamespace(**(known | more))

    def surveyed(function: str = "", **added: SimpleNamespace) -> Sheet:
        monkeypatch.setattr(ops, "_added", lambda *_: added)
        asked = Sheet("ops", "mine.py", "", function, "cpu", "", 1, "own", options={"manifest": {}, "plugins": []})
        return ops.surveyed(asked)

    found = surveyed(fast=variant())
    assert (found.function, found.options["variant"]) == (
        "fast", {"returns": True, "devices": ["cuda"], "encodes": False},
    )  # fmt: skip
    encoding = surveyed("faster", fast=variant(), faster=variant(returns=False, encode=print))
    assert encoding.options["variant"] == {"returns": False, "devices": ["cuda"], "encodes": True}
    several = {"a": variant(), "b": variant()}
    some = "adds to op 'own' the variants a, b$"
    for function, added, said in (("", {}, "adds no variant to op 'own'$"), ("", several, some), ("c", several, some)):
        with pytest.raises(UsageError, match=said):
            surveyed(function, **added)
    for of_its_own in ({"inputs": ()}, {"outputs": ()}):
        with pytest.raises(UsageError, match="variant 'fast' declares tensors of its own"):
            surveyed(fast=variant(**of_its_own))
    for known in ({"manifest": {"source": "k.cu"}}, {"manifest": {}, "parameters": []}):
        sheet = Sheet("ops", "mine.py", "", "", "cpu", "", 1, "own", options=known)
        assert ops.surveyed(sheet) is sheet, "no code is run for it"


def test_a_candidate_s_variant_is_declared_as_its_file_declares_it(monkeypatch):
    fast = SimpleNamespace(prepare=lambda ctx: ("ready", ctx), unsupported=lambda case: f"not for {case}")
    monkeypatch.setattr(ops, "_added", lambda *_: {"fast": fast})
    for encodes in (False, True):
        made, known = op(), {"returns": True, "devices": ["cuda"], "encodes": encodes}
        monkeypatch.setattr(ops, "find", lambda _, made=made: made)
        options = {"manifest": {}, "plugins": [], "variant": known}
        ops.op(Sheet("ops", "mine.py", "", "fast", "cpu", "", 1, "own", options=options))
        found = made.variants["candidate"]
        assert (found.returns, found.devices, found.encode is not None) == (True, ("cuda",), encodes)
        assert (found.prepare("context"), found.unsupported("it")) == (("ready", "context"), "not for it")
