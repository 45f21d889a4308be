"""The variants that `transpose` and `nchw_to_nhwc` share: both transpose a batch of matrices."""

from __future__ import annotations

from collections.abc import Callable

from harness.collection.ops.layouts import _transpose, _transpose_tuning
from harness.collection.ops.layouts._transpose_plan import Matrices
from harness.model import Case
from harness.ops import Context, Launch, Op


def add_matrix_variants(op: Op, matrices: Callable[[Case], Matrices]) -> None:
    """Add the variants `tiled`, `packed` and `tuned`. matrices: the matrices that a case transposes."""

    def too_long(case: Case) -> str | None:
        return _transpose_tuning.too_long(matrices(case))

    def no_pairs(case: Case) -> str | None:
        return _transpose.no_pairs(matrices(case))

    @op.variant(
        "tiled", "32 x 32 elements through shared memory", role="published", rows=("O13",), unsupported=too_long
    )
    def tiled(ctx: Context) -> Launch:
        """The textbook's kernel."""
        return _transpose.tiled(ctx, op.name, matrices(ctx.case))

    @op.variant(
        "packed",
        "64 x 64 halves through shared memory, two an access",
        role="published",
        rows=("O13",),
        unsupported=no_pairs,
    )
    def packed(ctx: Context) -> Launch:
        """The text after: index arithmetic for two halves at once."""
        return _transpose.packed(ctx, op.name, matrices(ctx.case))

    @op.variant(
        "tuned",
        "packs of 16 bytes through registers or shared memory, or words",
        rows=("O13",),
        unsupported=too_long,
        tuning=_transpose_tuning.tuning(op.name, matrices),
    )
    def tuned(ctx: Context) -> Launch:
        """A table, sizes and addresses decide which of these ways is taken: transpose.cu says how."""
        return _transpose.tuned(ctx, op.name, matrices(ctx.case))
