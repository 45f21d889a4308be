"""A cuBLASLt that only tells what it was asked, so that its descriptors can be looked at without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from harness.cuda import cublaslt, racing, workspaces
from harness.errors import MachineError

Epilogue = IntEnum("Epilogue", {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6, "GELU_BIAS": 36})
Order = IntEnum("Order", {"COL": 0, "ROW": 1, "COL32": 2, "COL4_4R2_8C": 3, "COL32_2R_4R4": 4})
PointerMode = IntEnum("PointerMode", {"HOST": 0, "DEVICE": 1, "ALPHA_DEVICE_VECTOR_BETA_ZERO": 3})
Described = IntEnum("Described", {"POINTER_MODE": 2, "TRANSA": 3, "TRANSB": 4, "EPILOGUE": 7, "BIAS_POINTER": 8})
LaidOut = IntEnum("LaidOut", {"ORDER": 1, "BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
ALIGNMENTS = {f"MIN_ALIGNMENT_{name}_BYTES": 5 + place for place, name in enumerate("ABCD")}
PREFERENCES = [("MAX_WORKSPACE_BYTES", 1), ("REDUCTION_SCHEME_MASK", 3), *ALIGNMENTS.items()]
Preferred: Any = IntEnum("Preferred", PREFERENCES)  # type: ignore[misc] # made of a list
Compute = IntEnum("Compute", {"COMPUTE_32F": 68, "COMPUTE_32I": 72})
Types = IntEnum("Types", {"CUDA_R_32F": 0, "CUDA_R_16F": 2, "CUDA_R_16BF": 14, "CUDA_R_8I": 3, "CUDA_R_32I": 10})
ALGORITHM = np.dtype([("data_", "<u8", (8,))])
RECORD = np.dtype([("algo", ALGORITHM), ("workspace_size", "<u8"), ("state", "<i4"), ("rest", "<i4", (5,))])
ARGUMENTS = (
    *("handle", "descriptor", "alpha", "a", "of_a", "b", "of_b", "beta", "c", "of_c", "d", "of_d"),
    *("algorithm", "workspace", "bytes", "stream"),
)
REFUSAL = "the requested functionality is not supported (CUBLAS_STATUS_NOT_SUPPORTED)"


@contextmanager
def refused(offset: int) -> Iterator[None]:
    """CuBLASLt decides which addresses it takes that aren't multiples of 16 bytes. offset: in numbers of halves."""
    try:
        yield
    except MachineError as error:
        if offset % 8 == 0 or "has no algorithm" not in error.message:
            raise


class CublasLtError(Exception):
    """As the binding's: its text is cuBLASLt's, with advice."""

    def __init__(self) -> None:
        super().__init__(f"{REFUSAL}. You can set CUBLASLT_LOG_LEVEL=5 environment variable to learn more.")


@dataclass
class FakeLt:
    """cublasLt's functions. An algorithm's record holds its number, counted from 0.

    calls: names of the functions that were called, in order. objects: by handle, what was made and set. alive: handles
    that weren't given back. multiplied, transformed: the arguments of each product, and of each change of order, by
    name. refused: an error is all that is proposed. proposed: algorithms at most. broken: algorithms that are proposed
    and don't run. failed: algorithms whose state says that they aren't to be used.
    """

    calls: list[str] = field(default_factory=list)
    objects: dict[int, dict[str, Any]] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    multiplied: list[dict[str, int]] = field(default_factory=list)
    transformed: list[dict[str, Any]] = field(default_factory=list)
    refused: bool = False
    proposed: int = 100
    broken: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    sets: list[int] = field(default_factory=list)

    Epilogue, Order, PointerMode = Epilogue, Order, PointerMode
    MatmulDescAttribute, MatrixLayoutAttribute, MatmulPreferenceAttribute = Described, LaidOut, Preferred
    cuBLASLtError = CublasLtError  # noqa: N815 - the binding's own name
    matmul_heuristic_result_dtype = RECORD

    def _make(self, call: str, **said: Any) -> int:
        self.calls.append(call)
        handle = 1000 + len(self.objects)
        self.objects[handle] = said
        self.alive.add(handle)
        return handle

    def _destroy(self, handle: int) -> None:
        self.alive.remove(handle)

    def _set(self, target: int, attribute: IntEnum, address: int, size: int) -> None:
        kind = {1: ctypes.c_int8, 4: ctypes.c_int32, 8: ctypes.c_int64}[size]
        assert target in self.alive
        self.objects[target][attribute.name] = kind.from_address(address).value

    def create(self) -> int:
        return self._make("create")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._make("descriptor", compute=Compute(compute).name, scale=Types(scale).name)

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        return self._make("layout", type=Types(kind).name, rows=rows, columns=columns, leading=leading)

    def matmul_preference_create(self) -> int:
        return self._make("preference")

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = matrix_transform_desc_destroy = _destroy
    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = _set

    def get_matmul_desc_attribute_dtype(self, attribute: IntEnum) -> Any:
        return np.int64 if attribute.name.endswith("POINTER") else np.int32

    def get_matrix_layout_attribute_dtype(self, attribute: IntEnum) -> Any:
        return np.int64 if attribute.name == "STRIDED_BATCH_OFFSET" else np.int32

    def get_matmul_preference_attribute_dtype(self, attribute: IntEnum) -> Any:
        return np.uint64 if attribute.name == "MAX_WORKSPACE_BYTES" else np.uint32

    def matmul_algo_get_heuristic(self, *arguments: int) -> None:
        *_, count, records, returned = arguments
        self.calls.append(f"heuristic {count}")
        if self.refused:
            raise CublasLtError
        given = min(count, self.proposed)
        for place in range(given):
            record = (ctypes.c_byte * RECORD.itemsize).from_address(records + place * RECORD.itemsize)
            array: Any = np.ndarray(1, RECORD, record)
            array["algo"]["data_"][0][0] = place
            array["state"][0] = 15 if place in self.failed else 0
        ctypes.c_int32.from_address(returned).value = given

    def matmul(self, *arguments: int) -> None:
        names = [
            "handle",
            "descriptor",
            "alpha",
            "a",
            "of_a",
            "b",
            "of_b",
            "beta",
            "c",
            "of_c",
            "d",
            "of_d",
            "algorithm",
            "workspace",
            "bytes",
            "stream",
        ]
        said = dict(zip(names, arguments, strict=True))
        algorithm = ctypes.c_uint64.from_address(said["algorithm"]).value
        self.calls.append(f"matmul {algorithm}")
        if algorithm in self.broken:
            raise CublasLtError
        bias = self.objects[said["descriptor"]].get("BIAS_POINTER")
        self.multiplied.append(said | {"algorithm": algorithm, "bias": bias})

    def matrix_transform_desc_create(self, scale: int) -> int:
        return self._make("transform", scale=Types(scale).name)

    def matrix_transform(self, *arguments: int) -> None:
        names = ("handle", "descriptor", "alpha", "a", "of_a", "beta", "b", "of_b", "c", "of_c", "stream")
        said: dict[str, Any] = dict(zip(names, arguments, strict=True))
        factors = tuple(ctypes.c_float.from_address(said[name]).value for name in ("alpha", "beta"))
        self.transformed.append(said | {"factors": factors})

    def described(self, call: dict[str, int]) -> list[dict[str, Any]]:
        """What a call multiplied: the descriptor, and the layouts of its operands and of its result."""
        return [self.objects[call[name]] for name in ("descriptor", "of_a", "of_b", "of_d")]


@dataclass
class FakeAddress:
    """A tensor of which only the address is asked for."""

    address: int
    device: str = "cpu"

    def data_ptr(self) -> int:
        return self.address


@pytest.fixture
def address() -> type[FakeAddress]:
    return FakeAddress


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLt]:
    """The fake, in place of nvmath-python's. An algorithm takes a second for each step from number 3."""
    import torch

    fake = FakeLt()
    monkeypatch.setattr(cublaslt, "missing", lambda: None)
    monkeypatch.setattr(cublaslt, "library", lambda: cublaslt.Library(fake, Compute, Types))
    monkeypatch.setattr(cublaslt, "stream_handle", lambda: 77)
    monkeypatch.setattr(cublaslt, "_zero", lambda: torch.zeros(1))

    def timed(launch: Any, sets: int) -> Any:
        fake.sets.append(sets)

        def seconds(place: int) -> float:
            launch(place, sets - 1)
            return float(abs(3 - fake.multiplied[-1]["algorithm"]))

        return seconds

    monkeypatch.setattr(racing.HeldClock, "of", timed)
    monkeypatch.setattr(racing, "rotated", lambda tensors: [tensors, tensors])
    cublaslt._handle_of.cache_clear()
    workspaces.forget()
    yield fake
    cublaslt._handle_of.cache_clear()
    workspaces.forget()


@pytest.fixture
def launch_on_cpu() -> Any:
    """launch_on_cpu(op, variant, dtype, values): the tensors of a variant that cuBLASLt does, after a call."""
    import torch

    from harness import check
    from harness.model import Case
    from harness.ops import Context, Tensors

    def call(op: Any, variant: str, dtype: str, values: dict[str, Any]) -> Any:
        shape = tuple((name, values[name]) for name in op.symbols)
        choices = tuple((name, values.get(name, choice.usual)) for name, choice in op.choices.items())
        case, chosen = Case(op.name, variant, dtype, shape, choices, device="cpu"), op.variants[variant]
        assert chosen.unsupported is None or chosen.unsupported(case) is None
        generator = torch.Generator().manual_seed(1)
        ctx = Context(case, getattr(torch, dtype), torch.device("cpu"), generator, op)
        given = check.make_inputs(ctx)
        t = check.merged(given, check.make_outputs(ctx, chosen))
        t = check.merged(t, Tensors(**(chosen.encode(ctx, t) if chosen.encode else {})))
        chosen.prepare(ctx)(t)
        return check.merged(t, Tensors(given=given, ctx=ctx))

    return call
