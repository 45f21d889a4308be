"""How one kernel makes a small layer of prelu_grad. Twin of prelu_grad_whole.cu.

Blocks own groups of channels as in batch norm's small layers, by the same cut; the kernel keeps as many packs, in no
more registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import cuda
from harness.collection.ops.batch_norm._batch_norm import ImageSizes
from harness.collection.ops.batch_norm._whole import CLUSTERS, Whole
from harness.collection.ops.elementwise import PACK_BYTES, aligned
from harness.model import Case
from harness.ops import ITEMSIZE, Built, Context, Launch, Plan, Tensors, Tuning

_MOST_TRIED = 2  # waves of blocks, by a search
# An estimate: a second kernel takes the time in which a multiprocessor reads so many bytes.
_SECOND_KERNEL = 64 * 1024


def cut_of(case: Case, cluster: int) -> Whole | None:
    """The layer as the kernel cuts it, with so many blocks for a group of channels; None where no group fits."""
    n, c, h, w = (int(case.values[name]) for name in "NCHW")
    sizes = ImageSizes(n, c, h * w) if c > 1 else ImageSizes(1, 1, n * h * w)
    return Whole.of(sizes, PACK_BYTES // ITEMSIZE[case.dtype], cluster)


def _rule(case: Case) -> Plan:
    """One kernel where all of its blocks fit on the device at once and share the work out well enough, else two.

    All blocks of a wave first read and then write, while blocks of the two kernels read beside others that write. Few
    groups leave multiprocessors idle, which the two kernels don't.
    """
    clusters = CLUSTERS if cuda.has_clusters() else CLUSTERS[:1]
    cuts = [cut for cluster in clusters if (cut := cut_of(case, cluster)) and cut.waves == 1]
    best = min(cuts, key=lambda cut: cut.cost, default=None)
    if best is None:
        return {"whole": 0}
    shared = 2 * ITEMSIZE[case.dtype] * best.sizes.elements / cuda.multiprocessors()
    return {"whole": best.cluster if best.cost <= shared + _SECOND_KERNEL else 0}


def _refuse(case: Case, plan: Plan) -> str | None:
    cluster = int(plan["whole"])
    if cluster > 1 and not cuda.has_clusters():
        return "clusters of blocks came with compute capability 9.0"
    cut = cut_of(case, cluster) if cluster else None
    if cluster and cut is None:
        return "no kernel has groups of channels for such blocks"
    return f"blocks come in more than {_MOST_TRIED} waves" if cut and cut.waves > _MOST_TRIED else None


def _kernels(case: Case, plan: Plan) -> Iterator[Built]:
    """The kernel, if the plan has it; the two kernels aren't compiled for a plan."""
    if cluster := int(plan["whole"]):
        yield _built(case, cluster)


def _built(case: Case, cluster: int) -> Built:
    cut = cut_of(case, cluster)
    assert cut
    entry = f"prelu_grad_whole_{cut.form}"
    return Built("prelu_grad_whole.cu", entry, cut.macros(case.dtype), cut.threads, cluster=cluster)


TUNING = Tuning(lambda _: {"whole": (0, *CLUSTERS)}, _rule, _refuse, _kernels)
"""What `tuned` declares. whole: blocks that own a group of channels, if one kernel makes a layer; 0: two kernels do."""


def launch_of(ctx: Context, cluster: int, otherwise: Launch) -> Launch:
    """The launch of the kernel; `otherwise` runs where a tensor of packs doesn't begin on 16 bytes."""
    cut, built = cut_of(ctx.case, cluster), _built(ctx.case, cluster)
    assert cut
    kernel = ctx.kernel(built.file, built.entry, built.macros)
    grid, together, told = cut.groups * cluster, cluster if cluster > 1 else None, cut.cut()

    def launch(t: Tensors) -> None:
        if aligned(t.x, t.dy, t.dx):
            kernel(grid, built.threads, t.x, t.dy, t.alpha, t.dx, t.dalpha, told, cluster=together)
        else:
            otherwise(t)

    return launch
