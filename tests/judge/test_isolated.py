"""Candidates without Python: a manifest of kernels and launch parameters."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.cuda.compile import compile_verbose
from harness.errors import InputError, MachineError, UsageError
from harness.judge import Asked, isolated
from harness.judge.forms import form_of, ops
from harness.judge.records import Sheet, Sized
from harness.judge.sources import Source
from harness.model import Case
from harness.ops import ITEMSIZE, Context, Op, Tensor, find
from tests.one_test import one_test

EXAMPLE = Path(__file__).parents[2] / "examples" / "judged_softmax.json"
KERNEL = {"entry": "k", "grid": ["cdiv(N, 256)"], "block": 256, "arguments": ["x", "y", {"int64": "N"}]}
MANIFEST = {"source": "k.cu", "kernels": [KERNEL]}


def op() -> Op:
    tensors: Any = {"inputs": (Tensor("x", ("N",)),), "outputs": (Tensor("y", ("N",)),)}
    return Op("own", "y = x", {"N": "elements"}, reference=lambda _, t: {"y": t.x}, **tensors)


def sheet(manifest: dict[str, Any]) -> Sheet:
    return Sheet("ops", "k.json", "", "", "cuda", "float32", 1, "own", options={"manifest": manifest})


def context(made: Op, n: int) -> Context:
    case = Case("own", "candidate", "float32", (("N", n),))
    return Context(case, torch.float32, torch.device("cpu"), torch.Generator(), made)


def test_launches_are_made_as_the_manifest_says(monkeypatch) -> None:
    launched: list[tuple[Any, ...]] = []
    loaded: list[tuple[Any, ...]] = []

    def kernel(_: Context, file: str, entry: str, macros: dict[str, Any]) -> Any:
        loaded.append((file, entry, macros))
        return lambda grid, block, *arguments, shared: launched.append((entry, grid, block, shared, *arguments))

    monkeypatch.setattr(Context, "kernel", kernel)
    scale = {"entry": "scale", "grid": [2, "N"], "block": "min(N, 64)", "shared": "4 * N"}
    scale |= {"arguments": ["sums", {"int32": "N * N"}, {"float32": 0.5}]}
    more = {
        "macros": {"T": {"float32": "float"}, "PACK": 4},
        "scratch": {"sums": {"shape": ["N + 1"], "dtype": "int32"}},
    }
    made = op()
    isolated.add(made, sheet(MANIFEST | more | {"kernels": [KERNEL, scale]}))
    launch = made.variants["candidate"].prepare(context(made, 300))
    t = SimpleNamespace(x=torch.ones(300), y=torch.zeros(300))
    launch(t)
    assert loaded == [("candidate.cu", name, {"T": "float", "PACK": 4}) for name in ("k", "scale")]
    (_, *first), (_, *second) = launched
    assert first[:3] == [(2,), 256, 0]
    assert first[3] is t.x
    assert first[4] is t.y
    assert (type(first[5]), first[5].value) == (ctypes.c_int64, 300)
    assert second[:3] == [(2, 300), 64, 1200]
    assert (second[3].shape, second[3].dtype) == ((301,), torch.int32)
    assert [(type(one), one.value) for one in second[4:]] == [(ctypes.c_int32, 90000), (ctypes.c_float, 0.5)]
    assert not made.variants["candidate"].returns
    assert made.variants["candidate"].devices == ("cuda",)


@one_test(
    ("change", "said"),
    [
        ({"kernel": []}, "the manifest: has the key 'kernel' (did you mean 'kernels'?)"),
        ({"source": "k.py"}, "source: isn't the name of a file"),
        ({"source": 3}, "source: isn't the name of a file"),
        ({"macros": {"T": ["float"]}}, "macros: aren't macros"),
        ({"macros": {"T": {"float31": "float"}}}, "macros: aren't macros"),
        ({"scratch": {"sums": {"shape": ["M"]}}}, "scratch: isn't scratch memory"),
        ({"kernels": []}, "kernels: isn't a list of kernels"),
        ({"kernels": [3]}, "kernels[0]: isn't a mapping"),
        ({"kernels": [KERNEL | {"entry": 3}]}, "kernels[0].entry: isn't the name of a kernel"),
        ({"kernels": [KERNEL | {"grid": "N"}]}, "kernels[0].grid: isn't a grid"),
        ({"kernels": [KERNEL | {"grid": [1, 1, 1, 1]}]}, "kernels[0].grid: isn't a grid"),
        ({"kernels": [KERNEL | {"grid": ["N / 2"]}]}, "kernels[0].grid: isn't a grid"),
        ({"kernels": [KERNEL | {"block": "__import__('os')"}]}, "kernels[0].block: isn't an expression"),
        ({"kernels": [KERNEL | {"shared": True}]}, "kernels[0].shared: isn't an expression"),
        ({"kernels": [KERNEL | {"arguments": "x"}]}, "kernels[0].arguments: isn't a list"),
        ({"kernels": [KERNEL | {"arguments": [{"int128": 1}]}]}, "kernels[0].arguments[0]: isn't an argument"),
        ({"kernels": [KERNEL | {"arguments": [{"int32": 1.5}]}]}, "kernels[0].arguments[0]: isn't an argument"),
        ({"kernels": [KERNEL] * 65}, "kernels: isn't a list of kernels (1 to 64 are allowed)"),
        ({"macros": {"T": {"float32": "float", "float16": ["__half"]}}}, "macros: aren't macros"),
        ({"macros": {"T": True}}, "macros: aren't macros"),
        ({"macros": {"1T": 3}}, "macros: aren't macros"),
        ({"scratch": {"sums": {"shape": ["N", 1.5], "dtype": "float32"}}}, "scratch: isn't scratch memory"),
        ({"scratch": {"sums": {"shape": "N", "dtype": "float32"}}}, "scratch: isn't scratch memory"),
        ({"scratch": {"sums": {"shape": ["N"], "dtype": "float31"}}}, "scratch: isn't scratch memory"),
        ({"scratch": {"sums": {"shape": ["N"], "dtype": 4}}}, "scratch: isn't scratch memory"),
        ({"scratch": {"sums": {"shape": ["N"], "dtype": "int8", "fill": 0}}}, "scratch: isn't scratch memory"),
        ({"kernels": [KERNEL | {"grid": []}]}, "kernels[0].grid: isn't a grid"),
        ({"kernels": [KERNEL | {"grid": ["N", 1.5]}]}, "kernels[0].grid: isn't a grid"),
        ({"kernels": [KERNEL | {"arguments": [3]}]}, "kernels[0].arguments[0]: isn't an argument"),
        ({"kernels": [KERNEL | {"arguments": ["x", {}]}]}, "kernels[0].arguments[1]: isn't an argument"),
        ({"kernels": [KERNEL | {"arguments": [{"int32": 1, "int64": 1}]}]}, "kernels[0].arguments[0]: isn't an argu"),
        ({"kernels": [KERNEL | {"arguments": [{"float32": True}]}]}, "kernels[0].arguments[0]: isn't an argument"),
        ({"kernels": [KERNEL | {"arguments": [{"float32": ["1"]}]}]}, "kernels[0].arguments[0]: isn't an argument"),
    ],
)
def test_what_is_malformed_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        isolated.parsed(json.dumps(MANIFEST | change), "k.json")
    assert any(problem.told.startswith(f"k.json: {said}") for problem in raised.value.problems)


ALL = dict.fromkeys(ITEMSIZE, "T")


@one_test(
    "change",
    [
        {"kernels": [KERNEL] * 64},
        {"kernels": [KERNEL | {"grid": ["N", 2, "cdiv(N, N - 1)"], "shared": 0}]},  # only a size of 1 breaks it
        {"kernels": [KERNEL | {"arguments": [{"float32": value} for value in ("p", 1, 0.5)] + [{"uint64": "N"}]}]},
        {"macros": {"T": ALL, "PACK": 4, "NAME": "text"}},
        {"scratch": {"sums": {"shape": ["N", 3], "dtype": "bfloat16"}, "one": {"shape": [], "dtype": "int8"}}},
    ],
)
def test_what_is_allowed(change: dict[str, Any]) -> None:
    assert isolated.parsed(json.dumps(MANIFEST | change), "k.json") == MANIFEST | change


@one_test("key", ["source", "kernels", "entry", "grid", "block", "arguments"])
def test_what_is_missing_is_told(key: str) -> None:
    kernel = {name: value for name, value in KERNEL.items() if name != key}
    manifest = {name: value for name, value in {**MANIFEST, "kernels": [kernel]}.items() if name != key}
    with pytest.raises(InputError) as raised:
        isolated.parsed(json.dumps(manifest), "k.json")
    place = "the manifest" if key in MANIFEST else "kernels[0]"
    assert raised.value.problems[0].told == f"k.json: {place}: has no '{key}' (add it)"
    assert len(raised.value.problems) == (2 if key == "kernels" else 1)


def test_a_manifest_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"k\.json: can't be read"):
        isolated.read(tmp_path / "k.json")


def test_a_kernel_of_machine_code_is_loaded_from_its_file(tmp_path, monkeypatch):
    (tmp_path / "candidate.cubin").write_bytes(b"code")
    asked: list[tuple[bytes, str]] = []
    kernel = SimpleNamespace(facts="facts")
    monkeypatch.setattr(isolated.cuda, "Kernel", lambda *given: asked.append(given) or kernel)
    made = op()
    isolated.add(made, sheet(MANIFEST | {"source": "k.cubin"}))
    monkeypatch.setattr(Op, "find", lambda _, name, beside: tmp_path / name if beside else None)
    ctx = context(made, 4)
    assert isolated._kernel(ctx, {"source": "k.cubin"}, "k") is kernel
    assert (asked, ctx.kernels) == ([(b"code", "k")], ["facts"])


def test_a_manifest_has_no_name_for_the_weights_of_a_model() -> None:
    without, with_some = (replace(sheet(MANIFEST), timed=(Sized({}, {}, weights=weights),)) for weights in (0, 4))
    isolated.add(op(), without)
    with pytest.raises(UsageError, match="can't name the weights of a model"):
        isolated.add(op(), with_some)


def test_an_op_of_ours_gets_the_manifest_s_variant(monkeypatch) -> None:
    monkeypatch.setattr(ops, "find", lambda _: op())
    assert ops.op(sheet(MANIFEST)).variants["candidate"].devices == ("cuda",)


@one_test("text", ["", "[1", "[" * 100_000, "\xff"])
def test_what_isn_t_json_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        isolated.parsed(text, "k.json")


@one_test(
    ("change", "said"),
    [
        ({"arguments": ["z"]}, "has the argument 'z', which is no tensor of op 'own'"),
        ({"grid": ["M"]}, "uses 'M', which op 'own' doesn't have"),
        ({"arguments": [{"int32": "Q"}]}, "uses 'Q', which op 'own' doesn't have"),
        ({"shared": "4 * S"}, "uses 'S', which op 'own' doesn't have"),
    ],
)
def test_names_that_the_op_doesn_t_have(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as raised:
        isolated.add(op(), sheet(MANIFEST | {"kernels": [KERNEL | change]}))
    assert said in raised.value.message


def test_scratch_memory_has_sizes_of_the_op() -> None:
    scratch = {"sums": {"shape": ["N", "M"], "dtype": "float32"}}
    with pytest.raises(InputError) as raised:
        isolated.add(op(), sheet(MANIFEST | {"scratch": scratch}))
    assert "scratch.sums: uses 'M', which op 'own' doesn't have" in raised.value.message


def test_the_source_lies_beside_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "k.cu").write_text("")
    for source in ("../k.cu", "missing.cu", "/etc/hostname.cu"):
        with pytest.raises(UsageError, match="there is no file"):
            isolated.code({"source": source}, tmp_path / "inside" / "k.json")
    assert isolated.code({"source": "k.cu"}, tmp_path / "k.json") == tmp_path / "k.cu"


def test_the_example_is_sound_and_its_kernel_compiles() -> None:
    manifest = isolated.read(EXAMPLE)
    isolated.refuse(find("softmax"), manifest, str(EXAMPLE))
    for dtype in ("float32", "bfloat16"):
        macros = {name: value[dtype] for name, value in manifest["macros"].items()}
        code, log = compile_verbose(isolated.code(manifest, EXAMPLE), macros, "sm_90")
        assert code
        assert "0 bytes spill stores" in log


def test_without_a_gpu_it_says_so(judged) -> None:
    manifest = json.dumps(MANIFEST | {"kernels": [KERNEL | {"grid": ["M"], "arguments": ["x", "y", {"int64": "N"}]}]})
    files = {"k.json": manifest, "k.cu": "// nothing"}
    asked: dict[str, Any] = {"op": "doubling", "candidate": "k.json", "isolated": True, "sizes": ({"M": 2, "N": 2},)}
    with pytest.raises(MachineError, match="--isolated launches kernels, and the device 'cpu' runs none"):
        judged("", files, **asked)
    with pytest.raises(InputError, match="uses 'Q'"):
        judged("", files | {"k.json": manifest.replace('"M"', '"Q"')}, **asked)


def test_tensors_of_another_form_have_numbers(tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text(
        "import torch\n"
        "def generate_input(size, seed):\n    return torch.randn(size), torch.empty(size)\n"
        "def ref_kernel(data):\n    return data[1].copy_(data[0])\n"
    )
    kernel = KERNEL | {"grid": ["cdiv(size, 256)"], "arguments": ["x0", "y0", {"int64": "size"}]}
    asked = Asked(
        tmp_path / "k.json", "cpu", 1, reference=tmp_path / "reference.py", sizes=({"size": 5},), isolated=True,
        manifest=MANIFEST | {"kernels": [kernel]},
    )  # fmt: skip
    form = form_of(asked, Source(asked.candidate))
    made = form.op(form.surveyed(form.sheet(asked, Source(asked.candidate))))
    assert [tensor.name for tensor in (*made.inputs, *made.outputs)] == ["x0", "y0"]
    assert {*made.variants} == {"eager", "compile", "compile_autotune", "candidate"}
    assert not made.variants["candidate"].returns


def test_a_file_of_python_exports_a_manifest(judged) -> None:
    text = f"def export():\n    return {MANIFEST | {'source': 'k.cubin'}}\n"
    asked: dict[str, Any] = {"op": "doubling", "isolated": True, "sizes": ({"M": 2, "N": 2},)}
    with pytest.raises(MachineError):
        judged(text, {"k.cubin": ""}, **asked)
    found = judged("def export():\n    raise OSError('no compiler')\n", **asked)
    assert found.line.startswith("crashed: loading it failed: OSError: no compiler")
    with pytest.raises(InputError, match="the manifest"):
        judged("def export():\n    return {}\n", **asked)
