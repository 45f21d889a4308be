"""Matrix products by cuBLASLt, whose functions the package nvmath-python gives to Python.

A `Gemm` says what is multiplied. `obstacle` says why cuBLASLt can't do it here, and a `Matmul` does it. Matrices of
ops lie in memory row by row, matrices of cuBLASLt column by column: the transposed matrix. So cuBLASLt is asked for
y^T = w x^T, whose first operand is w. Then a column of y is a row of cuBLASLt's result, and gets one bias.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from harness.cuda import racing, workspaces
from harness.cuda.launch import stream_handle
from harness.errors import MachineError

if TYPE_CHECKING:
    import torch

WORKSPACE = 32 * 2**20
"""Bytes that an algorithm may use beside its operands; torch gives the same number on Hopper."""
MANY = 24
"""Algorithms that are tried where the fastest is searched for."""
_PROPOSED = 8
"""Algorithms that cuBLASLt is asked for where one is wanted: it also proposes some that refuse to run."""
MISSING = "needs nvmath-python, which gives cuBLASLt to Python: pip install 'gpu-bench-harness[gemm]'"

Activation = Literal["", "relu", "gelu"]
Alpha = Literal["one", "device", "columns"]
Order = Literal["", "COL4_4R2_8C", "COL32_2R_4R4"]
_Tensors: TypeAlias = "Sequence[torch.Tensor | None]"
"""The two operands as cuBLASLt has them, the result, the bias, alpha."""

_ALIGNED = 256  # bytes of an address that are enough for every algorithm
_PARTS_IN_COMPUTE_TYPE = 2  # CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
_TYPES = {
    "float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "int8": "CUDA_R_8I",
    "int32": "CUDA_R_32I",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product: y (m, n) = alpha * x (m, k) times the weights, plus a bias for each column; or a batch of them.

    activation: what is applied then; gelu by its formula with a hyperbolic tangent, the only one that cuBLASLt has.
    dtype: of x and the weights. out: of y. as_rows: the weights are (n, k), as nn.Linear has them; otherwise (k, n).
    alpha: 'one'; 'device', a factor in the device's memory; 'columns', a factor for each column of y there. order: one
    of cuBLASLt's own orders of the weights; then x and y are in its order COL32. All matrices are contiguous.

    Sums of int8 are int32, sums of floats float32: products of float32 aren't rounded to TF32.
    """

    m: int
    n: int
    k: int
    dtype: str
    out: str
    as_rows: bool = True
    batch: int = 1
    bias: bool = False
    activation: Activation = ""
    alpha: Alpha = "one"
    order: Order = ""

    @property
    def compute(self) -> str:
        """The type that cuBLASLt adds up in."""
        return "COMPUTE_32I" if self.dtype == "int8" else "COMPUTE_32F"

    @property
    def epilogue(self) -> str:
        """The name that cuBLASLt has for what it does to the sums before it writes them; '' for nothing."""
        return "_".join(filter(None, (self.activation.upper(), "BIAS" if self.bias else "")))

    @property
    def scale(self) -> str:
        """The type of alpha."""
        return "int32" if self.out == "int32" else "float32"

    @property
    def layouts(self) -> tuple[Layout, Layout, Layout]:
        """The two operands and the result, as cuBLASLt has them."""
        m, n, k = self.m, self.n, self.k
        if self.order:
            # These orders are of the matrices themselves, not of the transposed ones. Their leading dimensions are the
            # elements of 32 columns.
            rows = -(-n // 8) * 8 if self.order == "COL4_4R2_8C" else -(-n // 32) * 32
            x, y = Layout(self.dtype, m, k, 32 * m, "COL32"), Layout(self.out, m, n, 32 * m, "COL32")
            return x, Layout(self.dtype, n, k, 32 * rows, self.order), y
        rows, columns = (k, n) if self.as_rows else (n, k)
        weights = Layout(self.dtype, rows, columns, rows, stride=n * k)
        return weights, Layout(self.dtype, k, m, k, stride=m * k), Layout(self.out, n, m, n, stride=m * n)

    @property
    def transposed(self) -> tuple[bool, bool]:
        """Which of cuBLASLt's operands is transposed."""
        return (False, True) if self.order else (self.as_rows, False)


@dataclass(frozen=True, slots=True)
class Layout:
    """A matrix in memory as cuBLASLt describes it.

    leading: elements from one column to the next. stride: elements from one matrix of a batch to the next.
    """

    dtype: str
    rows: int
    columns: int
    leading: int
    order: str = "COL"
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Library:
    """The parts of nvmath-python that are used: cuBLASLt's functions, and two lists of types by name."""

    lt: Any
    compute: Any
    types: Any


@cache
def library() -> Library:
    """The parts of nvmath-python, which takes a second to import."""
    lt, cublas = (importlib.import_module(f"nvmath.bindings.{name}") for name in ("cublasLt", "cublas"))
    return Library(lt, cublas.ComputeType, importlib.import_module("nvmath").CudaDataType)


def missing() -> str | None:
    """Why there is no cuBLASLt to call; None if there may be one."""
    return None if importlib.util.find_spec("nvmath") else MISSING


def obstacle(product: Gemm) -> str | None:
    """Why cuBLASLt can't do this product here, in cuBLASLt's words; None if it can. The question needs no memory."""
    if reason := missing():
        return reason
    try:
        with ExitStack() as opened:
            found = _Description(product, opened).algorithms(1, (_ALIGNED,) * 3)
    except (library().lt.cuBLASLtError, RuntimeError) as error:
        return f"cuBLASLt: {_words(error)}"
    return None if len(found) else "cuBLASLt: it has no algorithm for this product"


def reordered(weights: torch.Tensor, product: Gemm) -> torch.Tensor:
    """Weights (n, k) of int8, in cuBLASLt's own order that the product wants, as a tensor of one dimension."""
    import torch

    parts, (_, layout, _) = library(), product.layouts
    lt = parts.lt
    wanted = torch.zeros(layout.leading * -(-layout.columns // 32), dtype=weights.dtype, device=weights.device)
    factors = torch.tensor([1.0, 0.0], dtype=torch.float32, device="cpu")
    one = factors.data_ptr()
    with ExitStack() as opened:
        given = _made(Layout(layout.dtype, layout.rows, layout.columns, layout.columns, "ROW"), 1, opened)
        result = _made(layout, 1, opened)
        transform = lt.matrix_transform_desc_create(parts.types[_TYPES["float32"]])
        opened.callback(lt.matrix_transform_desc_destroy, transform)
        lt.matrix_transform(
            *(_handle(), transform, one, weights.data_ptr(), given, one + factors.element_size()),
            *(0, 0, wanted.data_ptr(), result, stream_handle()),
        )
    return wanted


class Matmul:
    """A product that is ready to be called, on torch's current stream. A call doesn't wait.

    Products that are called on one stream share its workspace. A graph that is captured has one of its own.

    The first call with tensors of an alignment chooses the algorithm for this alignment. A session makes this call
    before anything is timed. algorithms: how many of cuBLASLt's proposals are timed then; with 1 its first choice
    that runs is taken untimed. Another one takes its place only if it is surely faster. hot: whether calls find their
    tensors in the L2; otherwise the algorithms are timed with tensors that aren't there.

    Raises MachineError in cuBLASLt's words where it refuses a call.
    """

    def __init__(self, product: Gemm, algorithms: int = 1, *, hot: bool = False) -> None:
        self._product, self._count, self._hot = product, algorithms, hot
        self._opened = ExitStack()
        self._description = _Description(product, self._opened)
        self._chosen: dict[tuple[int, ...], Any] = {}

    def close(self) -> None:
        """Give cuBLASLt's descriptors back."""
        self._opened.close()

    def __call__(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        y: torch.Tensor,
        bias: torch.Tensor | None = None,
        alpha: torch.Tensor | None = None,
    ) -> None:
        """Multiply into y. bias (n): where the product has one. alpha (1) or (n), float32: where it isn't 'one'."""
        operands = (x, weights) if self._product.order else (weights, x)
        tensors = (*operands, y, bias, alpha)
        alignments = tuple(_alignment(tensor) for tensor in (*operands, y, bias))
        if alignments not in self._chosen:
            self._chosen[alignments] = self._choose(alignments, tensors)
        try:
            self._run(tensors, self._chosen[alignments])
        except library().lt.cuBLASLtError as error:
            raise _refused(error) from error

    def _run(self, tensors: _Tensors, algorithm: Any) -> None:
        *matrices, bias, alpha = tensors
        assert matrices[-1] is not None
        if bias is not None:
            self._description.set_bias(bias.data_ptr())
        stream = stream_handle()
        workspace = workspaces.of_stream(matrices[-1].device, stream, WORKSPACE)
        self._description.multiply(
            [*map(_address, matrices)], _address(alpha), algorithm.ctypes.data, workspace.data_ptr(), stream
        )

    def _choose(self, alignments: tuple[int, ...], tensors: _Tensors) -> Any:
        """The fastest of the algorithms; the first one that runs, if one is wanted."""
        if tensors[3] is not None:
            self._description.set_bias(tensors[3].data_ptr())
        try:
            proposed = self._description.algorithms(self._count if self._count > 1 else _PROPOSED, alignments[:3])
        except library().lt.cuBLASLtError as error:
            raise _refused(error) from error
        every = (proposed[place : place + 1] for place in range(len(proposed)))
        found = list(islice((algorithm for algorithm in every if self._runs(tensors, algorithm)), self._count))
        if not found:
            raise MachineError("cuBLASLt has no algorithm for this product", "check how its tensors are aligned")
        if len(found) == 1:
            return found[0]
        sets = [tensors] if self._hot else racing.rotated(tensors)
        watch = racing.HeldClock.of(lambda place, number: self._run(sets[number], found[place]), len(sets))
        return found[racing.fastest(len(found), watch)]

    def _runs(self, tensors: _Tensors, algorithm: Any) -> bool:
        """Whether an algorithm that was proposed can run."""
        try:
            self._run(tensors, algorithm)
        except library().lt.cuBLASLtError:
            return False
        return True


class _Description:
    """The descriptors of a product. They live until `opened` is closed."""

    def __init__(self, product: Gemm, opened: ExitStack) -> None:
        import numpy as np

        parts = library()
        self._lt = lt = parts.lt
        kind = parts.types[_TYPES[product.scale]]
        self._descriptor = lt.matmul_desc_create(parts.compute[product.compute], kind)
        opened.callback(lt.matmul_desc_destroy, self._descriptor)
        self._held: dict[str, Any] = {}
        for name, is_transposed in zip(("TRANSA", "TRANSB"), product.transposed, strict=True):
            self._describe(name, int(is_transposed))
        if product.epilogue:
            self._describe("EPILOGUE", lt.Epilogue[product.epilogue])
        if product.bias:
            self.set_bias(_ALIGNED)  # any aligned address: algorithms are chosen by it, too
        modes = {"one": "HOST", "device": "DEVICE", "columns": "ALPHA_DEVICE_VECTOR_BETA_ZERO"}
        self._describe("POINTER_MODE", lt.PointerMode[modes[product.alpha]])
        self._factors = np.ones(1, product.scale), np.zeros(1, product.scale)
        self._alpha_on_host = product.alpha == "one"
        self._zero: torch.Tensor | None = None
        self._layouts = [_made(layout, product.batch, opened) for layout in product.layouts]

    def set_bias(self, address: int) -> None:
        """Say where the bias of the next call lies."""
        self._describe("BIAS_POINTER", address)

    def algorithms(self, count: int, alignments: Sequence[int]) -> Any:
        """What cuBLASLt proposes, up to `count` algorithms, in an array of its own records, the best guess first.

        alignments: bytes that the addresses of the two operands and of the result are multiples of.
        """
        import numpy as np

        lt = self._lt
        wanted = {
            "MAX_WORKSPACE_BYTES": WORKSPACE,
            # Parts of a sum that was split would otherwise be rounded to the type of y before they are added.
            "REDUCTION_SCHEME_MASK": _PARTS_IN_COMPUTE_TYPE,
            **dict(zip((f"MIN_ALIGNMENT_{name}_BYTES" for name in "ABCD"), (*alignments, alignments[2]), strict=True)),
        }
        found, returned = np.zeros(count, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        with ExitStack() as opened:
            preference = lt.matmul_preference_create()
            opened.callback(lt.matmul_preference_destroy, preference)
            for name, value in wanted.items():
                attribute = lt.MatmulPreferenceAttribute[name]
                kind = lt.get_matmul_preference_attribute_dtype(attribute)
                _set(partial(lt.matmul_preference_set_attribute, preference, attribute), kind, value)
            a, b, d = self._layouts
            lt.matmul_algo_get_heuristic(
                *(_handle(), self._descriptor, a, b, d, d, preference, count),
                *(found.ctypes.data, returned.ctypes.data),
            )
        found = found[: int(returned[0])]
        return found[found["state"] == 0]

    def multiply(self, addresses: Sequence[int], alpha: int, algorithm: int, workspace: int, stream: int) -> None:
        """Launch. addresses: of the two operands and of the result."""
        a, b, d = addresses
        of_a, of_b, of_d = self._layouts
        one, zero = (factor.ctypes.data for factor in self._factors)
        if not self._alpha_on_host:
            self._zero = _zero() if self._zero is None else self._zero
            one, zero = alpha, self._zero.data_ptr()
        self._lt.matmul(
            *(_handle(), self._descriptor, one, a, of_a, b, of_b, zero, d, of_d, d, of_d),
            *(algorithm, workspace, WORKSPACE, stream),
        )

    def _describe(self, name: str, value: int) -> None:
        attribute = self._lt.MatmulDescAttribute[name]
        kind = self._lt.get_matmul_desc_attribute_dtype(attribute)
        _set(partial(self._lt.matmul_desc_set_attribute, self._descriptor, attribute), kind, value)


def _made(layout: Layout, batch: int, opened: ExitStack) -> int:
    """The descriptor of a matrix, or of a batch of them. It lives until `opened` is closed."""
    parts = library()
    lt, kind = parts.lt, parts.types[_TYPES[layout.dtype]]
    made: int = lt.matrix_layout_create(kind, layout.rows, layout.columns, layout.leading)
    opened.callback(lt.matrix_layout_destroy, made)
    more = {"ORDER": int(lt.Order[layout.order])}
    if batch > 1:
        more |= {"BATCH_COUNT": batch, "STRIDED_BATCH_OFFSET": layout.stride}
    for name, value in more.items():
        attribute = lt.MatrixLayoutAttribute[name]
        of_number = lt.get_matrix_layout_attribute_dtype(attribute)
        _set(partial(lt.matrix_layout_set_attribute, made, attribute), of_number, value)
    return made


def _set(give: Callable[[int, int], object], kind: Any, value: int) -> None:
    """Give the address and the bytes of a number of this type to a function that copies it."""
    import numpy as np

    number = np.array([value], kind)
    give(number.ctypes.data, number.nbytes)


def _handle() -> int:
    """The handle of cuBLASLt for the current device."""
    return _handle_of(_device())


@cache
def _handle_of(_device: int) -> int:
    """The handle of a device, which is the current one: cuBLASLt binds a handle to it."""
    return int(library().lt.create())


def _device() -> int:
    # Torch isn't imported for this: an obstacle can be asked for without it.
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch and torch.cuda.is_initialized() else 0


def _words(error: Exception) -> str:
    """What cuBLASLt says of an error, without the binding's advice how to log."""
    return str(error).partition(". You can set")[0]


def _refused(error: Exception) -> MachineError:
    return MachineError(f"cuBLASLt refuses the product: {_words(error)}", "take other sizes, or another variant")


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _alignment(tensor: torch.Tensor | None) -> int:
    """Bytes that the tensor's address is a multiple of, as far as algorithms ask for it."""
    address = _address(tensor)
    return min(_ALIGNED, address & -address) if address else _ALIGNED


def _zero() -> torch.Tensor:
    import torch

    return torch.zeros(1, dtype=torch.float32, device="cuda")
