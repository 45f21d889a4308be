"""What a report says of a user's step: what to use, as code; what failed; the ladder, also without its plug-in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.collection.steps.ladder import _rungs, report
from harness.collection.steps.ladder._sheet import StepSheet
from harness.model import Attachment, Case, Measurement, Work
from harness.report import build, sections
from harness.report.formats import markdown
from harness.report.frame import by_scenario
from harness.report.tree import CommandLine, Figure, Note, Table, tables

STEPS = {"float32": 0.2, "amp": 0.1, "fused_optimizer": 0.09, "graph": 0.05, "compile": 0.06, "patched": 0.04}
TAGS = ("ladder", "gives:model", "gives:batch", "gives:loss", "ours:adamw")


def case(variant, world=1):
    return Case("ladder_step", variant, "bfloat16", (("B", 32),), world=world)


def timed(variant, seconds, world=1):
    work = Work(items=32 * world, item="items")
    return Measurement(case(variant, world), "ok", (seconds,) * 11, timer="steady", work=work)


@pytest.fixture
def lines(make_run):
    """lines(measurements, attachments): the lines of a run of a step whose plug-in isn't loaded."""

    def make(*more, attachments=(), steps=STEPS):
        measured = [*(timed(variant, seconds) for variant, seconds in steps.items()), *more]
        roles = tuple((one.case.variant, "ours" if one.case.variant == "patched" else "baseline") for one in measured)
        fields = {"baseline": "float32", "roles": roles, "tags": TAGS, "source": "step.py"}
        run = make_run(measured, attachments=attachments, **fields)
        ((_, found),) = by_scenario(run)
        return run, found

    return make


def test_the_fastest_rung_that_is_right_is_to_be_used_as_code(lines):
    wrong = Measurement(case("patched_graph"), "wrong", error="losses: the loss of step 3 is 2.1")
    _, found = lines(wrong)
    first = sections.sections(found)[0]
    assert first.title == "What to use"
    told, failed, _, code = first.blocks
    assert isinstance(told, Note)
    assert told.text.startswith("Use patched (bfloat16, B32): 40.00 ms a step, 5.00x as fast")
    assert failed.text == "patched_graph isn't among them (wrong): losses: the loss of step 3 is 2.1"
    assert isinstance(code, CommandLine)
    assert code.language == "python"
    assert "import step as user" in code.text
    assert "nn.patch(model, optimizer, scaler)" in code.text
    assert "torch.autocast(device.type, torch.bfloat16)" in code.text


def test_rungs_that_may_be_as_fast_are_named(lines):
    def spread(variant, *seconds):
        return replace(timed(variant, 0.1), samples=seconds * 11)

    noisy = [spread("float32", 0.2), spread("amp", 0.08, 0.12), spread("compile", 0.09, 0.15)]
    _, found = lines(*noisy, steps={})
    assert report.fastest(found).case.variant == "amp"
    (told,) = [note.text for note in report.verdicts(found)][:1]
    assert told.endswith(" These may be as fast, by 95% intervals that overlap: compile.")
    _, found = lines()
    assert not any("may be as fast" in note.text for note in report.verdicts(found))


def test_a_rung_that_gains_nothing_for_sure_isnt_recommended(lines):
    base, amp, other = (replace(timed(name, 0.1), samples=samples * 11) for name, samples in (
        ("float32", (0.1, 0.12)), ("amp", (0.09, 0.12)), ("fused_optimizer", (0.2,))
    ))  # fmt: skip
    _, found = lines(base, amp, other, steps={})
    assert report.fastest(found).case.variant == "float32"
    (told,) = [note.text for note in report.verdicts(found)][:1]
    assert told.startswith("No rung is surely faster than float32 (bfloat16, B32): ")
    assert told.endswith(" These may be as fast, by 95% intervals that overlap: amp.")


def test_a_noisy_rung_ahead_doesnt_hide_one_that_is_surely_faster(lines):
    base, noisy, steady = (replace(timed(name, 0.1), samples=samples * 11) for name, samples in (
        ("float32", (0.1, 0.101)), ("amp", (0.05, 0.12)), ("fused_optimizer", (0.09,))
    ))  # fmt: skip
    _, found = lines(base, noisy, steady, steps={})
    assert report.fastest(found).case.variant == "fused_optimizer"
    (told,) = [note.text for note in report.verdicts(found)][:1]
    assert told.endswith(" These may be as fast, by 95% intervals that overlap: amp.")


def test_an_optimizer_that_ours_cant_stand_for_stays_fused(lines, make_run):
    measured = [timed(variant, seconds) for variant, seconds in STEPS.items()]
    run = make_run(measured, baseline="float32", tags=TAGS[:-1], source="step.py")
    ((_, found),) = by_scenario(run)
    code = sections.sections(found)[0].blocks[-1]
    assert "nn.patch(model)\n" in code.text
    assert "'fused': True" in code.text


def test_the_code_is_of_what_was_measured_where_only_some_rungs_were(make_run):
    """Without fused_optimizer and channels_last among the rungs, the rungs above have them all the same."""
    tags = _rungs.tags(StepSheet("ladder_step", "step.py", "", 32, ("model",), convolutions=True))
    run = make_run([timed("float32", 0.2), timed("compile", 0.1)], baseline="float32", tags=tags, source="step.py")
    ((_, found),) = by_scenario(run)
    code = sections.sections(found)[0].blocks[-1].text
    assert "'fused': True" in code
    assert "channels_last" in code
    foreach = _rungs.tags(StepSheet("ladder_step", "step.py", "", 32, ("model",), fused=False))
    (rung,) = (one for one in _rungs.of_tags(foreach, ["compile"]) if one.name == "compile")
    assert (rung.base, rung.optimizer) == ("foreach_optimizer", "foreach")
    plain = _rungs.tags(StepSheet("ladder_step", "step.py", "", 32, ("model",), fused=False, foreach=False))
    assert {one.base for one in _rungs.of_tags(plain, ["compile"]) if one.name == "compile"} == {"amp"}


def test_the_ladder_and_its_families_stand_below(lines):
    families = (("family_gemm", 0.6), ("family_normalisation", 0.3))
    traces = [
        Attachment(case(name).id, "torch", (("time", 0.9 * STEPS[name]), ("idle", 0.1), *families))
        for name in ("float32", "amp", "fused_optimizer", "graph")
    ]
    run, found = lines(attachments=tuple(traces))
    rungs = sections.sections(found)[1]
    assert rungs.title == "Rungs"
    assert [isinstance(block, Figure) for block in rungs.blocks[:2]] == [True, True]
    taken_off = [table for table in tables(rungs.blocks) if "compared with" in {one.head for one in table.columns}]
    (table,) = taken_off
    assert isinstance(table, Table)
    cells = {column.head: column.cells for column in table.columns}
    assert dict(zip(cells["rung"], cells["compared with"], strict=True)) == {
        "amp": "float32", "fused_optimizer": "amp", "graph": "fused_optimizer"
    }  # fmt: skip
    assert "## What to use" in markdown.render(build.page(run))


def test_a_ladder_without_any_time_says_nothing_to_use(lines):
    failed = Measurement(case("float32"), "crashed", error="the step itself fails, as the file has it: ValueError: x")
    _, found = lines(failed, steps={})
    assert [note.text for note in sections.verdicts(found)] == [
        "float32 isn't among them (crashed): the step itself fails, as the file has it: ValueError: x"
    ]
    assert sections.sections(found) == []


def learned(variant, *means, steps=50):
    series = (("means", means), ("forced", ()), *((f"losses_{n}", (1.0, m)) for n, m in enumerate(means, 1)),
              *((f"skipped_{n}", ()) for n, _ in enumerate(means, 1)))  # fmt: skip
    values = (("steps", steps), ("size", 32), ("seeds", len(means)), ("loss", sum(means) / len(means)), ("last", 1.0))
    return Attachment(case(variant).id, "losses", values, series=series)


def test_without_several_seeds_the_recommendation_says_how_to_compare_losses(lines):
    _, found = lines()
    assert sections.sections(found)[0].blocks[0].text.endswith("weren't compared: --seeds 5 does so.")


def test_the_recommended_rung_keeps_its_losses_within_the_seeds_spread(lines):
    """patched is the fastest, and learns otherwise; graph is the next one; compile's training failed."""
    traces = (
        learned("float32", 1.0, 1.1, 1.2), learned("patched", 1.3, 1.3, 1.3), learned("graph", 1.1, 1.1, 1.12),
        learned("amp", 1.1, 1.1, 1.12), learned("fused_optimizer", 1.0, 1.0, 1.3),
    )  # fmt: skip
    _, found = lines(attachments=traces)
    every = sections.sections(found)
    told, *failed = [block.text for block in every[0].blocks if isinstance(block, Note)]
    assert told.startswith("Use graph (bfloat16, B32)")
    assert told.endswith(
        "Its mean loss over 50 steps from 3 seeds, 1.1067, lies within the spread of float32's seeds, 1.0000 to 1.2000."
    )
    assert "compile isn't among them: it wasn't trained from several seeds" in failed
    off = "its mean loss from several seeds is 1.3000; 1.0000 to 1.2000 is their spread in float32"
    assert f"patched isn't among them: {off}" in failed
    losses = next(section for section in every if section.title == "Losses")
    texts = [block.text for block in losses.blocks if isinstance(block, Note)]
    assert "The mean losses of 3 of 4 rungs lie within the spread of the seeds of float32" in " ".join(texts)
    assert "overflow" not in " ".join(texts)
    assert any("3 of 4 rungs lie within" in note.text for note in sections.verdicts(found))


def test_a_ladder_whose_baseline_wasnt_trained_judges_no_losses(lines):
    _, found = lines(attachments=(learned("patched", 1.3, 1.3, 1.3), learned("amp", 1.0, 1.1, 1.2)))
    told = sections.sections(found)[0].blocks[0].text
    assert told.startswith("Use patched")
    assert told.endswith("weren't compared: --seeds 5 does so.")


def test_several_devices_have_a_recommendation_of_their_own(make_run):
    """Items are those of both, efficiency is over the same rung on one device, and torchrun starts the program."""
    sheet = StepSheet("ladder_step", "step.py", "", 32, ("model", "batch", "loss"), world=2, unused=1, optimizer="SGD")
    alone = {"float32": 0.2, "accumulate": 0.08, "fsdp": 0.01}
    measured = [
        *(timed(name, seconds) for name, seconds in alone.items()),
        *(timed(name, seconds, 2) for name, seconds in {"float32": 0.25, "accumulate": 0.1, "fsdp": 0.2}.items()),
    ]
    run = make_run(measured, baseline="float32", tags=_rungs.tags(sheet), source="step.py")
    ((_, found),) = by_scenario(run)
    one, _, code, two, _, other, _, start = sections.sections(found)[0].blocks
    # On one device fsdp does what another rung does.
    assert one.text.startswith("Use accumulate (bfloat16, B32): 80.00 ms a step, 2.50x")
    assert "distributed" not in code.text
    told = "100.0 ms a step, 640.0 items a second on 2 devices, an efficiency of 80.0% (80.0% to 80.0%), 2.50x as fast"
    assert two.text.startswith(f"Use accumulate (bfloat16, B32, world=2): {told}")
    assert two.text.endswith("--seeds 5 does so.")
    assert start.text == "torchrun --standalone --nproc-per-node=2 faster.py"
    for line in ("find_unused_parameters=True,", "with wrapped.no_sync() if number < 2 else nullcontext():"):
        assert line in other.text
    compile(other.text, "faster.py", "exec")
    (line,) = (line for line in found if line.case.variant == "fsdp" and line.case.world == 2)
    assert (line.values["items"], line.values["efficiency"]) == (pytest.approx(320), pytest.approx(0.05))
    assert "'foreach': True" in report.program(found, line)
    assert "fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=True)" in report.program(found, line)


def test_what_a_trace_tells_of_communication_stands_below(make_run):
    told = replace(timed("amp", 0.1, 2), facts=(("communication", 0.2), ("hidden_by_trace", 0.9)))
    run = make_run([timed("float32", 0.2), timed("amp", 0.08), told], baseline="float32", tags=TAGS, source="step.py")
    ((_, found),) = by_scenario(run)
    (section,) = (one for one in sections.sections(found) if one.title == "Communication")
    cells = {column.head: column.cells for table in tables(section.blocks) for column in table.columns}
    assert (cells["case"], cells["communication"], cells["hidden (trace)"]) == (("B32, world=2, amp",), (0.2,), (0.9,))


def test_no_training_is_missed_of_a_rung_that_does_what_another_one_does(lines):
    traces = (learned("float32", 1.0, 1.1, 1.2), learned("graph", 1.1, 1.1, 1.12))
    steps = {"float32": 0.2, "graph": 0.05, "fsdp": 0.01, "compile": 0.01}
    _, found = lines(steps=steps, attachments=traces)
    told, *failed, _ = [block.text for block in sections.sections(found)[0].blocks if isinstance(block, Note)]
    assert told.startswith("Use graph")
    assert failed == ["compile isn't among them: it wasn't trained from several seeds"]
