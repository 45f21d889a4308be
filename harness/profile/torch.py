"""The profiler of torch: when each kernel ran, what share of the time kernels and families took, and what was idle."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import MachineError, UsageError
from harness.families import FAMILIES
from harness.model import Attachment, KernelProfile
from harness.processes import python
from harness.profile import _merged, _ranks, _request, _timeline, _trace
from harness.profile._remedies import remedies
from harness.profile._script import OWN, RANK
from harness.profile._skew import OfRank, Skew, skew
from harness.profile._steps import Window
from harness.profile._stragglers import Lateness, verdict
from harness.profile._timeline import SHORT_GAP, Timeline
from harness.profile._trace import EmptyTraceError

__all__ = [
    "A_FILE_A_CASE", "FAMILIES", "MERGED", "OF_RANKS", "RANKS", "SHORT_GAP", "SUFFIXES", "SUMMARY", "EmptyTraceError",
    "RanksProfile", "ScriptProfile", "Timeline", "commands", "failure", "imported", "merge", "of_ranks", "of_script",
    "read", "refuse", "remedies", "timeline", "trace_of", "traces",
]  # fmt: skip

SUMMARY = "shares of the time by kernel and by family; needs nothing else"
A_FILE_A_CASE = RANKS = True
SUFFIXES = (".json.gz", ".json")
TRACE = "trace.json.gz"
"""The name of the trace of a user's script, in the folder that it is written to."""
TRACE_OF_RANK = f"trace.rank{RANK}.json.gz"
"""The name of the trace of one of several ranks."""
MERGED = "ranks.json.gz"
"""The name of the traces of all ranks in one file."""
MOST_KERNELS = 40
"""The most kernels of a case that are kept one by one, the longest kernels: a step of training has hundreds."""
WINDOW = Window(wait=10, active=5)
"""The usual steps of a program that are recorded."""
_BATCHED = ("aten::bmm", "aten::baddbmm")
_LEAST = 0.01
"""The least share of the busy time of a kernel whose time in each call is kept."""
OF_RANKS: Mapping[str, Callable[[OfRank], float]] = {
    "rank": lambda rank: float(rank.rank),
    "rank_step": lambda rank: rank.step,
    "rank_computing": lambda rank: rank.computing,
    "rank_waiting": lambda rank: rank.waiting,
    "rank_sending": lambda rank: rank.sending,
    "rank_idle": lambda rank: rank.idle,
    "rank_last": lambda rank: float(rank.last),
    "rank_margin": lambda rank: rank.margin,
    "rank_cost": lambda rank: statistics.fmean(rank.costs) if rank.costs else 0.0,
}
"""What is kept of each rank of a case: `_skew.OfRank` says what each is. Its costs are a mean over calls."""
_SET_BY_US = ("PYTHONPATH", "PYTHONSAFEPATH")
_WORDS = ("python", "python3", "torchrun")
_SWITCHES = re.compile(r"-[bBdOquv]+|-[WX].+")
"""Options of Python that a program keeps."""
_WITH_VALUE = ("-W", "-X")
"""Options of Python that a program keeps, and whose value may be the next word."""
_TORCHRUN = "torch.distributed.run"


@dataclass(frozen=True, slots=True)
class RanksProfile:
    """What several ranks did, the lowest first: the trace of each, its timeline, how they wait, and who is late."""

    traces: tuple[Path, ...]
    timelines: tuple[Timeline, ...]
    skew: Skew
    verdict: Lateness


@dataclass(frozen=True, slots=True)
class ScriptProfile:
    """What a user's script did. traces: the files for Perfetto, one of each rank. exit_code: the script's."""

    traces: tuple[Path, ...]
    exit_code: int


# ---- The cases of a plan.


def refuse() -> None:
    """Raise MachineError if torch is missing. Its profiler works on every machine, with a GPU and without."""
    if importlib.util.find_spec("torch") is None:
        raise MachineError("torch isn't installed, and the timeline needs its profiler", "pip install torch")


def commands(target: Sequence[str], base: Path) -> list[list[str]]:  # noqa: ARG001 - the request names the traces
    """The target itself, which records each case by `_record.recording` into the file that `trace_of` names."""
    return [[*target]]


def trace_of(base: Path, number: int, rank: int | None = None) -> Path:
    """The trace of a case. number: the case's, counted from 1. rank: where it has several."""
    of_rank = "" if rank is None else f".rank{rank}"
    return base.with_name(f"{base.name}-{number}{of_rank}{SUFFIXES[0]}")


def failure(output: str) -> MachineError | None:
    """What the profiler's complaints about its access to the GPU mean; None for any other output."""
    if "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in output:
        return MachineError(
            "the driver doesn't let users profile this GPU",
            "run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
        )
    if "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in output:
        return MachineError("another profiler listens to the GPU", "end it, then run this again")
    return None


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
    """One attachment a case; values are of a call, shares of the time from the first kernel to the last one's end.

    Values: kernels (launches), time (seconds in which any kernel ran), idle (share), gap (median seconds between
    kernels), host (share in which the device waits for the host), family_<name> (shares), and batched (share of the
    products of batches, as attention has them, where the trace tells which operator launched a kernel). Kernels are
    listed up to MOST_KERNELS, the longest kernels. Series, where each call launched the same kernels: time, batched and
    family_<name> of each call, and kernel.<name>, the seconds in each call of a kernel that takes a hundredth or more.

    Of several ranks these are the lowest recorded rank's, and the series have what `OF_RANKS` names, an element a rank.
    The notes say which rank holds the others up. The traces of all ranks as one are the last file.
    """
    return [_of_case(case, base, number, calls) for number, case in enumerate(cases, 1) if case]


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The figures of a trace that was made elsewhere: by our command, whose request lies beside it, or by any program.

    The trace of a program is about the only one of `cases`, or about none (''); its figures are of the whole trace.
    """
    number = re.search(r"-([0-9]{1,9})(?:\.rank[0-9]{1,6})?\.json", file.name)
    if (request := _request.beside(file)) and number:
        if not 1 <= int(number[1]) <= len(request.jobs):
            have = f"the request beside it has {len(request.jobs)} cases"
            raise UsageError(f"{file}: is of case {int(number[1])}, {have}", "give the file the name that it had")
        case = request.jobs[int(number[1]) - 1].case.id
        found = replace(_attachment(case, file, request.calls), files=())
        return [found] if case in cases or not cases else []
    if len(cases) > 1:
        raise UsageError(f"{file}: doesn't tell which of {len(cases)} cases it is about", "choose one by --only")
    return [replace(_attachment(case, file, 1), files=()) for case in (*cases, "")[:1]]


def timeline(trace: Path) -> Timeline:
    """What the devices of a trace did. Raises UsageError for a file that isn't a trace, and for an empty one."""
    return _timeline.timeline(_trace.read(trace))


def _of_case(case: str, base: Path, number: int, calls: int) -> Attachment:
    """What the trace of a case tells, or the traces of its ranks."""
    found = base.parent.glob(f"{base.name}-{number}.rank[0-9]*{SUFFIXES[0]}")  # without the merged one
    every = sorted(found, key=lambda path: (len(path.name), path.name))
    if not every:
        return _attachment(case, trace_of(base, number), calls)
    first = _attachment(case, every[0], calls)
    if len(every) == 1:
        told = f"{every[0].name} is of the only rank that was recorded, so nothing is known of how ranks wait."
        return replace(first, notes=(told,))
    ranks = of_ranks(every, advice="")
    merged = base.with_name(f"{base.name}-{number}.{MERGED}")
    _merge(ranks, merged)
    series = ((name, tuple(map(figure, ranks.skew.ranks))) for name, figure in OF_RANKS.items())
    return replace(
        first,
        files=(*map(str, every), str(merged)),
        series=(*first.series, *series),
        notes=tuple(_notes(ranks)),
    )


def _notes(found: RanksProfile) -> Iterator[str]:
    """What the traces of ranks say of stragglers, and what they don't tell."""
    yield found.verdict.told
    yield from (f"Rank {one.rank}: {one.why}. {one.advice}." for one in found.verdict.stragglers)
    yield from (f"{text[:1].upper()}{text[1:]}." for text in found.skew.left_out)


def _attachment(case: str, file: Path, calls: int) -> Attachment:
    trace = _trace.read(file)
    found = _timeline.timeline(trace)
    values = (
        ("kernels", found.count / calls),
        ("time", found.busy / calls),
        ("idle", found.idle_share),
        ("gap", found.gap),
        ("host", found.host_share),
        *_shares(trace, found),
    )
    kernels = tuple(
        KernelProfile(kernel.name, kernel.count / calls, (("time", kernel.seconds / kernel.count), *kernel.figures))
        for kernel in found.kernels[:MOST_KERNELS]
    )
    return Attachment(case, "torch", values, (str(file),), kernels, tuple(_of_calls(trace, found, calls)))


def _shares(trace: _trace.Trace, found: Timeline) -> Iterator[tuple[str, float]]:
    """The share of each family, and of the products of batches."""
    yield from ((f"family_{family.name}", family.share) for family in found.families)
    if (batched := _timeline.of_operators(trace, _BATCHED)) is not None:
        yield "batched", batched


def _of_calls(trace: _trace.Trace, whole: Timeline, calls: int) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Figures of each call by name; none where calls can't be told apart."""
    parts = [(part, _timeline.timeline(part)) for part in _timeline.calls(trace, calls)]
    if len(parts) < 2:
        return
    shares = [dict(_shares(*part)) for part in parts]
    times = [{kernel.name: kernel.seconds for kernel in found.kernels} for _, found in parts]
    yield "time", tuple(found.busy for _, found in parts)
    names = dict.fromkeys(name for own in shares for name in own)
    yield from ((name, tuple(own.get(name, 0.0) for own in shares)) for name in names)
    for kernel in whole.kernels[:MOST_KERNELS]:
        if kernel.seconds >= _LEAST * whole.busy:
            yield f"kernel.{kernel.name}", tuple(own.get(kernel.name, 0.0) for own in times)


# ---- A user's own script.


def of_script(
    arguments: Sequence[str], folder: Path, window: Window = WINDOW, ranks: Sequence[int] = ()
) -> ScriptProfile:
    """Run `python script.py ...`, `python -m module ...` or `torchrun ...` under the profiler, with traces in `folder`.

    The script has the console: its input and output, and Ctrl-C. window: of steps of its optimizer. ranks: which of the
    ranks that torchrun starts are recorded; all if empty. Raises UsageError for a command that isn't one of Python's,
    one of another Python's, and ranks of a single process; MachineError if the script ended without a trace.
    """
    words, several, options = _words(arguments)
    if ranks and not several:
        raise UsageError("--ranks is for several ranks, and this program is one process", "leave --ranks out")
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / TRACE, *traces(folder)):
        old.unlink(missing_ok=True)
    trace = folder.resolve() / (TRACE_OF_RANK if several else TRACE)
    module = "harness.profile._torchrun" if several else "harness.profile._script"
    own = json.dumps({name: os.environ.get(name) for name in _SET_BY_US})
    first, *rest = python.command(module, [str(trace), ",".join(map(str, ranks)), *map(str, window), *words])
    started = [first, *options, *rest]
    code = _exit_code(started, {**python.environment(), OWN: own})
    if not (found := traces(folder) if several else [path for path in [folder / TRACE] if path.exists()]):
        raise MachineError(
            f"{' '.join(arguments)}: ended with exit code {code} and left no trace",
            "the profiler writes the trace at the end, so the script must neither be killed nor call os._exit, "
            "nor begin a profiler in a thread of its own"
            + (f", and one of the ranks {', '.join(map(str, ranks))} must be started" if ranks else ""),
        )
    return ScriptProfile(tuple(found), code)


def traces(folder: Path) -> list[Path]:
    """The traces of ranks in a folder, by the numbers of the ranks."""
    named = TRACE_OF_RANK.replace(RANK, "*")
    return sorted(folder.glob(named), key=lambda path: (len(path.name), path.name))


def of_ranks(paths: Sequence[Path], **words: str) -> RanksProfile:
    """What the traces of several ranks tell together; they are of the same steps of one program.

    words: as `_stragglers.verdict` takes them. Raises UsageError for a file that isn't a trace, for one that doesn't
    tell its rank, and for two of one rank.
    """
    every = _ranks.read(paths)
    lines = tuple(_timeline.timeline(one.trace) for one in every)
    found = skew(every)
    return RanksProfile(tuple(one.path for one in every), lines, found, verdict(found, lines, **words))


def merge(found: RanksProfile, folder: Path) -> Path:
    """Write the traces of the ranks as one for Perfetto, on the clock of the lowest rank. Gives its path."""
    file = folder / MERGED
    folder.mkdir(parents=True, exist_ok=True)
    _merge(found, file)
    return file


def _merge(found: RanksProfile, file: Path) -> None:
    ranks = found.skew.ranks
    _merged.write(found.traces, [rank.rank for rank in ranks], [rank.clock.ahead for rank in ranks], file)


def _words(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """The arguments without the Python or torchrun at their front, whether torchrun starts them, and Python's options.

    The Python must be the one that runs the harness.
    """
    words, options = list(arguments), list[str]()
    example = "write: harness profile torch -- python train.py"
    several = bool(words) and Path(words[0]).name == "torchrun"
    if words and (several or Path(words[0]).name.startswith("python")):
        first = Path(words.pop(0))
        if str(first) not in _WORDS and first.absolute().parent != Path(sys.executable).parent:
            raise UsageError(
                f"{first} is of another Python than {sys.executable}, which runs the harness",
                f"install the harness for that Python, or {example}",
            )
        while not several and words and (words[0] in _WITH_VALUE or _SWITCHES.fullmatch(words[0])):
            count = 2 if words[0] in _WITH_VALUE else 1
            options, words = [*options, *words[:count]], words[count:]
    if words[:2] == ["-m", _TORCHRUN]:
        return words[2:], True, options
    if several or (words[:1] == ["-m"] and len(words) > 1):
        return words, several, options
    if not words or words[0].startswith("-") or Path(words[0]).suffix != ".py":
        advice = f"{example} (or: python -m module; torchrun --nproc-per-node 2 train.py)"
        raise UsageError(f"'{' '.join(arguments)}' is no script of Python's", advice)
    if not Path(words[0]).is_file():
        raise UsageError(f"{words[0]}: no such file", "name the script as it is seen from the working folder")
    return words, False, options


def _exit_code(started: Sequence[str], environment: dict[str, str]) -> int:
    """Run a command that has the console. Ctrl-C reaches it too, so only the command ends by it, after its trace."""
    with subprocess.Popen(started, env=environment) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
            except BaseException:  # SIGTERM, which reaches this process alone
                process.terminate()
                raise
