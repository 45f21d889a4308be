"""`harness tune` as a command: a search on the CPU from the first plan to the case that takes the table's plan."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

import harness.tune
from harness import kept, paths, plans
from harness.cli import app, tune
from harness.errors import CompileError, UsageError
from harness.model import Case, Timing
from harness.ops import Catalogue
from harness.ops.tuning import kernels_digest
from harness.plans import Entry, PlanTable, TimedPlan
from harness.tune import Ahead, Candidate, Listed, ToTune, Tuned
from harness.tune.search import Ranking
from tests.one_test import one_test

PLUGINS = Path(__file__).parents[1] / "plugins"
Harness = Callable[..., subprocess.CompletedProcess[str]]
OPS = [f"--ops={PLUGINS / 'tunable.py'}"]
SMALL = f"--ops={PLUGINS / 'small.py'}"
SEARCH = ["tune", "chunked", *OPS, "--device=cpu", "--sizes=M=64,N=16", "--max-time=0.05", "--precision=0.5"]
SCENARIO = """
title: near the size that was searched
op: chunked
shapes: [{M: 96, N: 16}]
dtypes: [float32]
variants: [tuned]
baseline: tuned
timing: {max_time: 0.02, precision: 0.5}
"""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow  # tests/tune has the search and its table, tests/plans that a case takes the plan of a near one
def test_a_search_writes_a_table_and_the_next_run_takes_its_plan(
    harness: Harness, folder: Path, tmp_path: Path
) -> None:
    own = {"HARNESS_CACHE": str(tmp_path / "cache")}
    stopped = harness(*SEARCH, SMALL, "--budget=0.001s", **own)
    assert stopped.returncode == 3, stopped.stderr
    assert "the same command goes on" in stopped.stderr
    ended = harness(*SEARCH, SMALL, **own)
    assert ended.returncode == 0, ended.stderr
    assert "rows1.waywrong: wrong: y:" in ended.stderr
    file = next((tmp_path / "cache" / "plans").iterdir())
    assert f"table: {file}" in ended.stdout
    [entry] = json.loads(file.read_text())["entries"]
    assert entry["shape"] == {"M": 64, "N": 16}
    assert {plan["plan"]["way"] for plan in entry["timed"]} == {"neg"}
    assert sum(plan["rule"] for plan in entry["timed"]) == 1
    assert all(plan["low"] <= plan["time"] <= plan["high"] for plan in entry["timed"])
    assert (entry["tried"], entry["dropped"]) == (6, 3)
    assert entry["source"]
    assert not list((tmp_path / "cache" / "tune").iterdir())
    # Whichever plan was the fastest here: a table with one that surely is.
    entry["timed"] = [
        {"plan": {"rows": rows, "way": "neg"}, "time": time, "low": time, "high": time, "rule": rows == 1}
        for rows, time in ((8, 1.0), (1, 2.0))
    ]
    file.write_text(json.dumps({"schema": 1, "device": json.loads(file.read_text())["device"], "entries": [entry]}))
    (folder / "near.yaml").write_text(SCENARIO)
    ran = harness("run", "near.yaml", *OPS, SMALL, "--device=cpu", f"--output={tmp_path / 'run'}", **own)
    assert ran.returncode == 0, ran.stderr
    [result] = [
        json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines() if "case" in line
    ]
    facts = {name: value for name, value in result["facts"] if name.startswith("neighbour")}
    assert facts == {"neighbour": pytest.approx(0.585, abs=1e-3), "neighbour_M": 64.0, "neighbour_N": 16.0}


def test_a_table_of_another_device_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"schema": 1, "device": "another", "entries": []}')
    result = invoke(*SEARCH, f"--output={file}")
    assert result.exit_code == 2, result.output
    assert "is the table of another" in " ".join(result.output.split())
    assert "round" not in result.output


def test_a_table_of_another_version_in_the_cache_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    kept.write(f"plans/{plans.file_name(plans.device_name('cpu'))}", b'{"schema": 99, "device": "x", "entries": []}')
    result = invoke(*SEARCH)
    assert result.exit_code == 2, result.output
    assert "another version of the harness wrote it" in " ".join(result.output.split())
    assert "round" not in result.output


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = invoke(*SEARCH, f"--output={tmp_path / 'file' / 'table.json'}")
    assert result.exit_code == 2, result.output
    assert "table.json: can't be written: " in " ".join(result.output.split())
    assert "round" not in result.output


def test_a_dry_run_lists_plans_and_times_nothing() -> None:
    result = invoke(*SEARCH, "--dry-run")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "chunked/tuned/float32/M64-N16: 6 plans to time, 2 refused, 0 left out"
    assert "  refused: 2 plans: more rows than there are" in lines
    assert lines[2].split() == ["rows1.wayneg", "by", "the", "rule"]
    # A process and a report a round; a quarter of a second beside sampling: 6, 5 and 2 plans.
    assert lines[-1] == "13 measurements in 3 rounds, about 0:00:22; --budget ends a search sooner"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This processor's table has a plan for 64 rows, and one for 4096 rows that other kernels made."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "data", lambda name: tmp_path / name)
    plans.forget()
    source = kernels_digest(Catalogue((PLUGINS / "tunable.py",))["chunked"], "tuned")
    timed = [
        TimedPlan({"rows": rows, "way": "neg"}, time, time, time, rule=rows == 1)
        for rows, time in ((64, 1.0), (1, 2.0))
    ]
    entry = Entry("chunked", "tuned", "float32", {"M": 64, "N": 16}, {}, tuple(timed), source, "", "", "", "", 6, 3)
    old = replace(entry, shape={"M": 4096, "N": 16}, source="another")
    plans.write(PlanTable(plans.device_name("cpu"), (entry, old)))
    yield
    plans.forget()


@pytest.mark.usefixtures("table")
def test_a_dry_run_says_which_plan_is_the_tables() -> None:
    sizes = [f"--sizes=M={rows},N=16" for rows in (64, 100, 4096)]
    result = invoke("tune", "chunked", *OPS, "--device=cpu", *sizes, "--dry-run")
    assert result.exit_code == 0, result.output
    marked = [line.split() for line in result.stdout.splitlines() if " by the " in line]
    rule, other = ["rows1.wayneg", "by", "the", "rule"], ["rows64.wayneg", "by", "the", "table"]
    assert marked == [rule, other, rule, other, rule]


@pytest.mark.usefixtures("table")
def test_an_op_is_listed_with_its_tables() -> None:
    result = invoke("list", "op", "chunked", *OPS)
    assert result.exit_code == 0, result.output
    device = plans.device_name("cpu")
    line = f"tuned on {device}: 2 sizes in your table, 1 of them unused: other kernels made the plans"
    assert line in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("op", "sizes", "case"),
    [
        ("nchw_to_nhwc", "N=2,C=8,H=2,W=2,direction=to_nchw", "float32/N2-C8-H2-W2/direction=to_nchw"),
        ("window_partition", "B=1,H=8,W=8,C=4,window=4,shift=0", "float32/B1-H8-W8-C4-window4-shift0"),
        ("bias_dropout_residual", "R=2,C=8,p=0.5", "float32/R2-C8/p=0.5"),
    ],
)
def test_sizes_may_name_choices_and_be_0_where_the_op_has_such_a_default(op: str, sizes: str, case: str) -> None:
    found = Catalogue()[op]
    setting = tune._sized(found, sizes)
    assert tune._case(found, "tuned", "float32", setting, "cuda").id == f"{op}/tuned/{case}"


def test_a_dry_run_says_why_a_size_has_no_plan_and_ends_as_the_search_would() -> None:
    result = invoke("tune", "chunked", *OPS, "--device=cpu", "--sizes=M=7,N=16", "--dry-run")
    assert result.exit_code == 2
    assert "chunked/tuned/float32/M7-N16: no plan: " in result.stdout
    assert "has no plan that can be timed at these sizes" in result.stderr
    assert "measurements" not in result.stdout


@pytest.mark.parametrize("name", ["sm_90", "SM90", "90", "9.0", "sm_90a", "compute_90"])
def test_an_architecture_may_be_spelt_as_elsewhere(name: str) -> None:
    assert tune._spelt(name) == "sm_90"
    assert (tune._spelt("12.0"), tune._spelt("h100")) == ("sm_120", "h100")


def test_a_variant_must_be_named_only_where_several_have_plans() -> None:
    op = Catalogue((PLUGINS / "tunable.py",))["chunked"]
    tuned = op.variants["tuned"]
    assert tune._with_plans(op, None) == "tuned"
    two = SimpleNamespace(name="chunked", variants={**op.variants, "other": tuned})
    assert tune._with_plans(two, "other") == "other"
    with pytest.raises(UsageError, match="several variants of op 'chunked' have plans") as caught:
        tune._with_plans(two, None)
    assert caught.value.advice == "add --variant tuned or other"


SEVERAL = """
title: one with plans, one without
op: {op}
shapes: [{{M: 96, N: 16}}]
dtypes: [float32]
variants: [eager]
baseline: eager
"""


def test_without_an_op_all_ops_of_the_scenarios_that_have_plans_are_searched(tmp_path: Path) -> None:
    file = tmp_path / "several.yaml"
    file.write_text("---".join(SEVERAL.format(op=op) for op in ("softmax", "chunked")))
    result = invoke("tune", f"--scenario={file}", *OPS, "--device=cpu", "--dry-run")
    assert result.exit_code == 0, result.output
    # Softmax has plans on a GPU alone.
    assert [line for line in result.stdout.splitlines() if "to time" in line] == [
        "chunked/tuned/float32/M96-N16: 6 plans to time, 2 refused, 0 left out"
    ]
    file.write_text(SEVERAL.format(op="softmax"))
    result = invoke("tune", f"--scenario={file}", *OPS, "--device=cpu", "--dry-run")
    assert result.exit_code == 2
    assert "no op of these scenarios has plans to search on 'cpu'" in " ".join(result.output.split())
    assert "--dry-run --arch sm_90 lists the plans without a GPU" in " ".join(result.output.split())


def test_a_dry_run_lists_the_other_ops_where_one_has_a_fault(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(wanted: ToTune, _: object) -> tuple[Listed, ...]:
        if wanted.op == "a":
            raise UsageError("its rule is wrong")
        return (Listed(Case("b", "tuned", "float32", ()), (Candidate({"n": 1}),)),)

    monkeypatch.setattr(harness.tune, "listed", listed)
    with pytest.raises(UsageError, match="its rule is wrong"):
        tune._list([ToTune(op, "tuned", (), "cpu") for op in "ab"], Timing())
    told = capsys.readouterr()
    assert told.err == "a: its rule is wrong\n"
    assert "b/tuned/float32/scalar: 1 plan to time" in told.out
    with pytest.raises(UsageError, match="its rule is wrong"):
        tune._list([ToTune("a", "tuned", (), "cpu")], Timing())
    assert capsys.readouterr().err == ""


BROKEN = (Candidate({"n": 1}, rule=True, dropped="doesn't compile: mine.cu"), Candidate({"n": 2}, dropped="no rule"))


def test_a_dry_run_of_several_ops_fails_where_no_rule_of_one_compiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(wanted: ToTune, _: object) -> tuple[Listed, ...]:
        return (Listed(Case(wanted.op, "tuned", "float32", ()), {"a": BROKEN, "b": (Candidate({"n": 1}),)}[wanted.op]),)

    monkeypatch.setattr(harness.tune, "listed", listed)
    with pytest.raises(CompileError, match=r"the rule's plan, n1, doesn't compile: mine\.cu"):
        tune._list([ToTune(op, "tuned", (), "cpu") for op in "ab"], Timing())
    told = capsys.readouterr().out
    assert "left out: n1: doesn't compile: mine.cu (the rule)" in told
    assert "b/tuned/float32/scalar: 1 plan to time" in told


@pytest.mark.parametrize(("count", "more"), [(1, ""), (2, ", nor at 1 other size"), (3, ", nor at 2 other sizes")])
def test_a_search_that_left_out_sizes_tells_what_it_found_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, more: str
) -> None:
    cases = tuple(Case("a", "tuned", "float32", (("N", size),)) for size in range(4))
    wanted = ToTune("a", "tuned", cases, "cpu")
    timed = TimedPlan({"n": 2}, 1e-6, 1e-6, 1e-6, rule=True)
    found = Tuned({cases[3]: Ranking((timed,), 2, complete=True)}, (), None, True, cases[:count])
    forgotten: list[object] = []
    monkeypatch.setattr(harness.tune, "in_order", lambda _: [Ahead(wanted, plans=8, sizes=4)])
    monkeypatch.setattr(harness.tune, "forget", forgotten.append)
    monkeypatch.setattr(tune, "_searched", lambda *_: found)
    with pytest.raises(CompileError, match=f"a/tuned/float32/N0: the rule's plan doesn't compile{more}$"):
        tune._search([wanted], math.inf)
    assert "a/tuned/float32/N3: the rule's plan stays, 1.000 us (2 tried)" in capsys.readouterr().out
    assert forgotten == []
    monkeypatch.setattr(tune, "_searched", lambda *_: replace(found, broken=()))
    tune._search([wanted], math.inf)
    assert forgotten == [wanted]


@pytest.mark.gpu
def test_a_search_on_a_gpu_drops_what_spills_and_keeps_a_plan_that_is_right(harness: Harness, tmp_path: Path) -> None:
    own = {"HARNESS_CACHE": str(tmp_path / "cache")}
    sizes = ["--sizes=M=4096,N=768", "--dtype=float16", "--max-time=0.05"]
    found = harness("tune", "rms_norm", *sizes, **own)
    assert found.returncode == 0, found.stderr
    [entry] = json.loads(next((tmp_path / "cache" / "plans").iterdir()).read_text())["entries"]
    assert entry["tried"] > 4
    assert entry["driver"]
    assert len(entry["timed"]) >= 4
    assert sum(plan["rule"] for plan in entry["timed"]) <= 1


def test_the_compiler_is_kept_from_the_drivers_cache_before_anything_asks_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "0")
    seen = []

    def device(_: str | None) -> str:
        seen.append(os.environ["CUDA_CACHE_DISABLE"])
        raise UsageError("no device")

    monkeypatch.setattr(tune, "_device", device)
    CliRunner().invoke(app, ["tune", "rms_norm", "--sizes=M=64,N=896"])
    assert seen == ["1"]


@pytest.mark.gpu
def test_the_plan_of_an_earlier_run_is_searched(harness: Harness, tmp_path: Path) -> None:
    """The driver keeps the kernel of the run, and would give it without what the compiler says of its registers."""
    run = ["run", "models", "--only=rms_norm/tuned/*/M64-N896", "--variants=tuned", "--max-time=0.02"]
    asked = ["tune", "rms_norm", "--sizes=M=64,N=896", "--dtype=bfloat16", "--max-time=0.02"]
    driver = {"CUDA_CACHE_DISABLE": "0"}
    ran = harness(*run, f"--output={tmp_path / 'run'}", HARNESS_CACHE=str(tmp_path / "first"), **driver)
    assert ran.returncode == 0, ran.stderr
    found = harness(*asked, HARNESS_CACHE=str(tmp_path / "second"), **driver)
    assert found.returncode == 0, found.stderr


@one_test(
    ("arguments", "words"),
    [
        (["chunkd", *OPS], "no op is named 'chunkd'"),
        ([], "no op is named name one, or --scenario NAME alone for all of its ops that have plans"),
        (["--scenario=models", "--variant=tuned"], "no op is named name one"),
        (["chunked", *OPS, "--variant=eagle"], "op 'chunked' has no variant 'eagle'"),
        (
            ["chunked", *OPS, "--variant=eager", "--sizes=M=1,N=1"],
            "variant 'eager' of op 'chunked' has no plans to search with plans: tuned",
        ),
        (["copy"], "no variant of op 'copy' has plans to search 'harness list ops' says which ops have plans"),
        (["chunked", *OPS, "--dtype=float8"], "op 'chunked' has no dtype 'float8'"),
        (
            ["chunked", *OPS],
            "no bundled scenario is named 'chunked' name sizes, --sizes M=1024,N=1024, or --scenario FILE",
        ),
        (["add_rms_norm", "--arch=sm_90", "--dry-run"], "or --scenario few_rows or llm_kernels or FILE"),
        (["chunked", *OPS, "--sizes=M=1"], "N is missing; op 'chunked' has the sizes M, N"),
        (["chunked", *OPS, "--sizes=M"], "--sizes M: aren't sizes"),
        (["chunked", *OPS, "--sizes=M=0,N=1"], "M can't be 0; op 'chunked' has the sizes M, N give each size once"),
        (["chunked", *OPS, "--sizes=M=1,N=1e6"], "N can't be 1e6; op 'chunked'"),
        (["chunked", *OPS, "--sizes=M=1,N=1,K=1"], "there is no K; op 'chunked'"),
        (["chunked", *OPS, "--sizes=M=1,N=1,M=2"], "M is given twice; op 'chunked'"),
        (["chunked", *OPS, "--sizes=K=1"], "there is no K"),
        (["chunked", *OPS, "--sizes=M=9223372036854775808,N=1"], "op 'chunked' can't have this shape: "),
        (
            ["window_partition", "--arch=sm_90", "--dry-run", "--sizes=B=1,H=7,W=9,C=96,window=7,shift=0"],
            "op 'window_partition' can't have this shape: ",
        ),
        (
            ["nchw_to_nhwc", "--arch=sm_90", "--dry-run", "--sizes=N=1,C=8,H=2,W=2,direction=up"],
            "direction of op 'nchw_to_nhwc' can't be 'up' allowed: to_nhwc, to_nchw",
        ),
        (
            ["softmax"],
            "softmax/tuned doesn't run on 'cpu', only on: cuda 'harness env' says what a GPU lacks here; --dry-run",
        ),
        (["int8_linear"], "int8_linear/fused doesn't run on 'cpu'"),
        (
            ["softmax", "--scenario=rms_norm", "--arch=sm_90", "--dry-run"],
            "these scenarios have no sizes for op 'softmax'",
        ),
        (["softmax", "--arch=sm_90"], "--arch is for --dry-run"),
        (["softmax", "--arch=sm_70", "--dry-run"], "nothing is known of the architecture 'sm_70'"),
        (["softmax", "--output=table.csv"], "a table is a .json file"),
        (["softmax", "--budget=soon"], "isn't a time; write 90s, 10m or 1.5h"),
    ],
    ids=lambda value: " ".join(value[:1] + value[3:]) if isinstance(value, list) else "",
)
def test_what_cannot_be_searched_is_refused(arguments: list[str], words: str) -> None:
    result = invoke("tune", "--device=cpu", *arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())
