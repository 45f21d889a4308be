"""What variants declare of their plans, for all ops with plans: the rule is legal, and plans launch what they say."""

from __future__ import annotations

import itertools

import pytest

from harness import plans
from harness.ops import Catalogue, Context
from harness.ops.tuning import kernels_digest
from harness.plans import Entry, TimedPlan
from harness.tune.candidates import legal_plans
from tests.collection.test_kernels import GENERATOR, FakeKernel, alignments, case_of, pretend_gpu, told
from tests.rare import rare

TUNED = [(op, name) for op in Catalogue().values() for name, variant in op.variants.items() if variant.tuning]
CASES, PLANS = 16, 3  # of a variant, and of a case


def launched(monkeypatch, op, case, plan=None):
    """What a call with aligned tensors launches: entry, macros, threads, shared memory and blocks of a cluster."""
    found = []

    def load(_file, entry, macros):
        def told_of(_grid, threads, *_, shared=0, cluster=None):
            found.append((entry, tuple(sorted(macros.items())), threads, shared or 0, cluster or 1))

        return FakeKernel(told_of)

    pretend_gpu(monkeypatch, load)
    variant = op.variants[case.variant]
    ctx = Context(case, None, None, GENERATOR, op)
    ctx.tried = plan
    launch = variant.prepare(ctx)
    inputs, outputs = op.tensors(variant)
    launch(next(alignments(inputs + outputs, case.values, case.dtype)))
    return found


def some(items, most):
    """At most so many of them, from the first to the last one."""
    return items[:: max(1, -(-len(items) // most))]


@pytest.mark.parametrize(
    ("op", "name"),
    # They have many plans: ops/gemm/test_int8_plan.py says that these are legal, transpose has those of nchw_to_nhwc.
    [(rare if op.name in ("int8_linear", "nchw_to_nhwc") else pytest.param)(op, name) for op, name in TUNED],
    ids=lambda value: getattr(value, "name", value),
)
def test_plans_are_legal_and_launch_what_they_say(monkeypatch, op, name):
    tuning, module = op.variants[name].tuning, told(op.name)
    dtypes = [dtype for dtype in ("float32", "bfloat16") if dtype in op.dtypes] or op.dtypes
    every = [case_of(op, name, dtype, values) for dtype, values in itertools.product(dtypes, module.COMPILED)]
    with_plan = 0
    pretend_gpu(monkeypatch, lambda *_: FakeKernel())
    for case in some(every, CASES):
        if op.variants[name].unsupported and op.variants[name].unsupported(case):
            continue
        rule = tuning.rule(case)
        if rule is None:
            continue
        with_plan += 1
        assert tuning.obstacle(case, rule) is None, (case.id, rule)
        plans = list(legal_plans(tuning, case))
        assert dict(rule) in plans, (case.id, rule)
        assert launched(monkeypatch, op, case) == launched(monkeypatch, op, case, rule), case.id
        for plan in some(plans, PLANS) if tuning.kernels else []:
            made = launched(monkeypatch, op, case, plan)
            for built in tuning.kernels(case, plan):
                said = (built.entry, tuple(sorted(built.macros.items())), built.threads, built.shared, built.cluster)
                same = [one for one in made if one[:2] == said[:2]]
                assert same, (case.id, plan, said, made)
                assert built.threads == 0 or said in same, (case.id, plan, said, same)
    assert with_plan


def test_a_table_decides_which_kernel_a_transpose_launches(monkeypatch):
    """A measured size's plan serves its neighbours; a size far away takes the rule's plan."""
    op = Catalogue()["nchw_to_nhwc"]
    sizes = {"N": 33, "C": 64, "H": 56, "W": 56}
    timed = (TimedPlan({"tiles": "registers2"}, 1.0, 1.0, 1.0), TimedPlan({"tiles": "words"}, 2.0, 2.0, 2.0, rule=True))
    choices = {"direction": "to_nhwc"}
    digest = kernels_digest(op, "tuned")
    entry = Entry(op.name, "tuned", "bfloat16", sizes, choices, timed, digest, "", "", "", "", 2, 0)
    monkeypatch.setattr(plans, "entries", lambda _kind: ((entry,),))
    found = {
        images: launched(monkeypatch, op, case_of(op, "tuned", "bfloat16", sizes | {"N": images}))[0][0]
        for images in (33, 48, 128)
    }
    blocks, words = "nchw_to_nhwc_register_blocks", "nchw_to_nhwc_word_tiles"
    assert found == {33: blocks, 48: blocks, 128: words}
