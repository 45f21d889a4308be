"""Users' steps on two ranks, by gloo: they are the steps of one process, and what goes wrong is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _rungs, _steps
from harness.collection.steps.ladder._code import FileForm
from harness.collection.steps.ladder._code_ranks import Ranks
from harness.collection.steps.ladder._sheet import StepSheet
from harness.errors import UsageError
from harness.model import Case, Job, Timing
from harness.processes.supervisor import Workers
from harness.ranks import FOLDER
from tests.collection.steps.ladder import pair
from tests.collection.steps.ladder.conftest import STEPS, answered, op_of

ROOT = Path(__file__).parents[4]


def ran(folder: Path, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """What the ranks printed, and how they ended."""
    world = {"WORLD_SIZE": "2", FOLDER: str(folder)}
    command = [sys.executable, "-m", pair.__name__, *arguments]
    running = [
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | world | {"RANK": str(rank)}, stdout=-1, stderr=-1, text=True
        )
        for rank in range(2)
    ]
    texts = [one.communicate() for one in running]
    return [
        subprocess.CompletedProcess(command, one.returncode, *text) for one, text in zip(running, texts, strict=True)
    ]


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> list[subprocess.CompletedProcess[str]]:
    return ran(tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow  # training/test_sharded.py has steps of two ranks
@pytest.mark.parametrize("check", pair.CHECKS, ids=lambda check: check.__name__)
def test_two_ranks(check, ended):
    for rank in ended:
        assert check.__name__ in rank.stdout.split(), rank.stderr


@pytest.mark.slow  # `exact` has what ranks compute; test_steps.py, test_code.py have the same rungs in one process
def test_more_of_two_ranks(tmp_path):
    for rank in ran(tmp_path, "rare"):
        assert rank.stdout.split() == [check.__name__ for check in pair.RARE], rank.stderr


# pair.py's `forgotten` has a rank that fails while another one waits, test_steps.py the error of a step, and
# tests/processes/test_supervisor.py what is made of the answers of ranks.
@pytest.mark.slow
def test_a_rank_that_fails_names_itself(tmp_path):
    """The first rank waits for the second one, whose batch can't be made."""
    known = answered("attention") | {"world": 2}
    step = tmp_path / "attention.py"
    fails = "    import os\n    if os.environ['RANK'] == '1':\n        raise ValueError('no data')\n"
    step.write_text((STEPS / step.name).read_text().replace("def batch():\n", f"def batch():\n{fails}"))
    plugin = tmp_path / "ladder.py"
    plugin.write_text(ladder.plugin(known | {"source": str(step)}))
    case = Case(known["name"], "amp", "bfloat16", (("B", 8),), world=2, device="cpu")
    with Workers("cpu", [plugin]) as workers:
        found = workers.measure(Job(case, Timing(0.5, 0.02, 100.0)))
    assert (found.status, found.error.partition("\n")[0]) == (
        "crashed",
        "rank 1: the step itself fails, as the file has it: ValueError: no data",
    )


def why_not(name: str, world: int, **known: object) -> str:
    sheet = StepSheet("ladder_step", "step.py", "", 8, ("model",), **{"world": 2, "blocks": True} | known)
    (rung,) = (one for one in _rungs.of_sheet(sheet) if one.name == name)
    return _rungs.why_not(rung, sheet, "bfloat16", world)


def test_a_rung_that_cant_go_with_several_ranks_says_why():
    assert why_not("streams", 2) == "DistributedDataParallel sums gradients before a second stream has them"
    assert why_not("streams", 1) == why_not("graph", 2) == why_not("fsdp", 2, blocks=False) == ""
    assert why_not("fsdp_keep", 2, blocks=False) == "the model has no list of blocks of one class"


def test_rungs_about_several_ranks_are_there_where_several_were_asked_for():
    alone, two = (
        _rungs.of_sheet(StepSheet("ladder_step", "step.py", "", 8, (), world=world, convolutions=True, optimizer="SGD"))
        for world in (1, 2)
    )
    assert two[: len(alone)] == alone
    assert tuple(rung.name for rung in two[len(alone) :]) == _rungs.OF_RANKS
    # FSDP2 takes no weights with channels last, and has no fused calls but Adam's.
    parts = {rung.name: (rung.channels_last, rung.optimizer) for rung in two if rung.is_sharded}
    assert parts == {
        **dict.fromkeys(("fsdp", "fsdp_keep", "fsdp_compile"), (False, "foreach")),
        **dict.fromkeys(("fsdp_graph", "fsdp_compile_graph"), (False, "foreach")),
        **dict.fromkeys(("patched_fsdp", "patched_fsdp_compile"), (False, "ours")),
        **dict.fromkeys(("patched_fsdp_graph", "patched_fsdp_compile_graph"), (False, "ours")),
    }
    assert {rung.name for rung in two if rung.is_sharded and rung.graph} == {name for name in parts if "graph" in name}


def test_a_graph_of_parts_is_in_its_own_words_and_its_code_has_a_stream():
    (rung,) = (one for one in _rungs.rungs(of_parts="fused") if one.name == "fsdp_graph")
    assert _steps.reason(rung, 2) == "fsdp can't be captured as a CUDA graph, on 2 devices"
    text = ladder.code(rung, "bfloat16", "step.py", ("model", "batch", "loss"), 8, Ranks(2))
    compile(text, "faster.py", "exec")
    order = ["fully_shard(model", "side = torch.cuda.Stream()", "with torch.cuda.stream(side):", "graph = torch.cuda"]
    assert [text.index(line) for line in order] == sorted(text.index(line) for line in order)
    assert 'torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local")' in text
    assert "'capturable': True" in text


def test_the_code_compiles_a_model_before_it_is_wrapped():
    """Around DistributedDataParallel, torch.compile would leave out a Sequential. A step's parts are compiled each."""
    (rung,) = (one for one in _rungs.rungs() if one.name == "compile_graph")
    text = ladder.code(rung, "bfloat16", "step.py", ("model", "batch", "loss"), 8, Ranks(2))
    order = [
        "compiled = torch.compile(model,",
        "wrapped = DistributedDataParallel(\n        compiled,",
        "loss(wrapped, ",
    ]
    assert [text.index(line) for line in order] == sorted(text.index(line) for line in order)
    form = FileForm(("model", "batch", "step"), called=("generator", "critic"))
    parts = ladder.code(rung, "bfloat16", "step.py", form, 8)
    compile(parts, "faster.py", "exec")
    assert "_compiled import compile_in_place" in parts
    assert "compile_in_place(model.get_submodule(part), dynamic=False, mode='default')" in parts


def test_the_work_of_two_ranks_is_of_all_items_and_of_the_gradients_that_each_sends():
    """In a ring of two each rank sends as many bytes as gradients have. Operations are one rank's."""
    op, known = op_of("attention", 2), answered("attention")
    one, two = (op.work_done_by(op.variants["amp"], {"B": 8, "world": world}, "bfloat16") for world in (1, 2))
    parameters = 2 * (2 * 16 + 17 * 48 + 17 * 16) + 17 * 4
    assert known["gradients"] == 4 * parameters
    assert (one.items, one.sent, two.items, two.sent) == (8, 0, 16, 4 * parameters)
    assert one.flops == two.flops


def test_weights_that_are_never_used_are_told():
    assert (answered("unused")["unused"], answered("attention")["unused"], answered("custom")["unused"]) == (2, 0, 0)
    tags = _rungs.tags(StepSheet("ladder_step", "step.py", "", 8, (), world=2, unused=2))
    assert _rungs.UNUSED in tags


@pytest.mark.parametrize(
    ("rung", "world", "told"),
    [
        ("float32", 1, "the step itself fails, as the file has it"),
        ("float32", 2, "the step fails in DistributedDataParallel, on 2 devices"),
        ("amp", 2, "the step fails in DistributedDataParallel, on 2 devices"),
        ("fused_optimizer", 2, "the step fails in DistributedDataParallel, on 2 devices"),
    ],
)
def test_an_error_says_what_several_ranks_have_to_do_with_it(rung, world, told):
    (one,) = (one for one in _rungs.rungs(of_parts="") if one.name == rung)
    message = "'DistributedDataParallel' object has no attribute 'head'"
    with pytest.raises(UsageError) as raised, _steps.told(one, world):
        raise AttributeError(message)
    assert raised.value.message == f"{told}: AttributeError: {message}"
    assert raised.value.advice.startswith("let loss or step call the model alone")
    with (
        pytest.raises(UsageError, match=r"by FSDP2, on 2 devices: ValueError: no"),
        _steps.told(next(one for one in _rungs.rungs(of_parts="") if one.name == "fsdp"), 2),
    ):
        raise ValueError("no")
