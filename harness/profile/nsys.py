"""Nsight Systems: which kernels each case launches, when they ran, and what lay between them.

Options and messages are described in NVIDIA's "Nsight Systems User Guide".
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.errors import MachineError, UsageError, brief
from harness.model import Attachment
from harness.profile import CALLS, _nsys_cases, _nsys_sqlite, _request

SUMMARY = "a timeline of kernels, copies and calls (Nsight Systems)"
SUFFIXES = (".sqlite", ".nsys-rep")

_OLDEST = (2022, 4)
"""The version that came with CUDA 11.8. Earlier versions may lack --cuda-graph-trace."""
_INSTALL = (
    "it comes with the CUDA toolkit (its folder bin) and from developer.nvidia.com/nsight-systems; "
    "`harness profile torch` needs no tool"
)
_LONGEST = 600.0  # seconds that an export may take

_NEWER = "Nsight Systems must be at least as new as the driver"
_IMPORT = (
    "install the whole package of Nsight Systems, with its folder 'host'. Or convert the file on another machine, with "
    "the same version: QdstrmImporter --input-file=FILE.qdstrm, then "
    f"{_nsys_sqlite.EXPORT} FILE.nsys-rep; then give the .sqlite file to --import"
)

_FAILURES = {
    r"unrecogni[sz]ed option|illegal argument": (
        "nsys doesn't know an option: it is too old",
        f"install Nsight Systems {_OLDEST[0]}.{_OLDEST[1]} or later: {_INSTALL}",
    ),
    r"importer binary and its dependencies were not found|skipping importation|QdstrmImporter.*not found": (
        "the report wasn't finished: nsys lacks its importer, and only a .qdstrm file remains",
        _IMPORT,
    ),
    r"Importation failed|Import failed": (
        "the report wasn't finished: nsys couldn't import what it had recorded",
        f"{_NEWER}; if it is, record fewer cases at once (--only)",
    ),
    r"No CUDA events collected|does not contain CUDA (kernel|trace) data|profiling might have not been started": (
        "nsys recorded no CUDA events",
        f"check that the cases run on the GPU and that no other profiler uses it; {_NEWER}",
    ),
    r"perf_event_paranoid|paranoid level": (
        "the system doesn't let nsys use Linux's performance events",
        "allow it until the next boot: sudo sysctl kernel.perf_event_paranoid=2 (on the host of a container)",
    ),
    r"(/tmp/nvidia|nsight[_-]systems).*permission denied|permission denied.*(/tmp/nvidia|nsight[_-]systems)": (
        "nsys can't write its temporary files, perhaps because another user owns their folder",
        "set TMPDIR to a folder of your own",
    ),
    r"ERR_NVGPUCTRPERM|insufficient privilege|operation not permitted": (
        "nsys lacks a permission",
        "in a container add --cap-add=SYS_ADMIN; on the machine itself ask its administrator",
    ),
}
"""What nsys writes (a pattern, in upper or lower case): what it means, and what to do. The first one found counts."""


def refuse() -> None:
    """Raise MachineError if nsys is missing, doesn't start, or is too old."""
    if (program := shutil.which("nsys")) is None:
        raise MachineError("Nsight Systems (nsys) isn't on the PATH", _INSTALL)
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{program} doesn't run: {brief(str(error))}", _INSTALL) from None
    found = re.search(r"version (\d{4})\.(\d+)", done.stdout)
    if done.returncode or not found:
        said = brief(done.stderr or done.stdout) or f"exit code {done.returncode}"
        raise MachineError(f"{program} --version doesn't tell a version: {said}", _INSTALL)
    if (int(found[1]), int(found[2])) < _OLDEST:
        raise MachineError(
            f"{program} is version {found[1]}.{found[2]}; {_OLDEST[0]}.{_OLDEST[1]} or later is needed", _INSTALL
        )


def commands(target: Sequence[str], base: Path) -> list[list[str]]:
    """The command line that records `target` and writes BASE.nsys-rep and BASE.sqlite.

    It records the whole process, and `read` takes what lies in the ranges of cases. cudaProfilerStart and
    cudaProfilerStop don't limit it, since each pair of them would end in a report of its own
    (--capture-range-end=repeat), or only the first would count (stop).
    """
    recorded = ["--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--capture-range=none"]
    written = ["--cuda-graph-trace=node", "--force-overwrite=true", "--export=sqlite"]
    # nsys replaces %p, %h and the like in names.
    output = f"--output={str(base).replace('%', '%%')}"
    return [["nsys", "profile", *recorded, *written, output, *target]]


def failure(output: str) -> MachineError | None:
    """What a run that failed means, by what nsys wrote, and what to do; None if that isn't known."""
    for pattern, (message, advice) in _FAILURES.items():
        if re.search(pattern, output, re.IGNORECASE):
            return MachineError(message, advice)
    return None


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:
    """What the recording of our command tells about each case. All figures are of one call; times are in seconds.

    kernels: launches. time: of the kernels. span: from the first kernel's start to the last one's end. gap: the part of
    the span in which no kernel ran. copies and copy_bytes: of cudaMemcpy and the like, if there are any. host: in calls
    of the CUDA runtime and driver. A case that the recording lacks has no attachment. A CPU has no kernels: its cases
    have NVTX ranges alone.
    """
    file = base.with_name(f"{base.name}.sqlite")
    request = _request.beside(file)
    on_cpu = request is not None and request.device == "cpu"
    return recorded(file, [case for case in cases if case], calls, ranges_alone=on_cpu)


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The figures of a recording that was made elsewhere, by our command line or another.

    Without `cases`, the cases of the recording count. In a recording of another program these are its outermost NVTX
    ranges, or the whole by the id ''; then a figure is of a range. A recording without kernels tells its ranges alone.
    """
    request = _request.beside(file)
    return recorded(file, cases, request.calls if request else CALLS if cases else 0)


def recorded(file: Path, cases: Sequence[str], calls: int, *, ranges_alone: bool = True) -> list[Attachment]:
    """What a recording tells, where each range made so many calls; 0 if that isn't known: then figures are of a range.

    ranges_alone: whether a recording without kernels will do. Raises UsageError for a file that isn't a recording, and
    for one that has nothing to tell.
    """
    if file.suffix != ".nsys-rep":
        trace = _nsys_sqlite.load(file, file)
    else:
        with tempfile.TemporaryDirectory() as folder:
            export = Path(folder) / f"{file.stem}.sqlite"
            _export(file, export)
            trace = _nsys_sqlite.load(export, file)
    return _nsys_cases.attachments(trace, cases, calls, ranges_alone=ranges_alone)


def _export(report: Path, export: Path) -> None:
    """Let nsys write a report as an SQLite file."""
    advice = f"where Nsight Systems is installed, run: {_nsys_sqlite.EXPORT} {report}; then import the .sqlite file"
    if not report.is_file():
        raise UsageError(f"{report}: there is no such file", "name a report of Nsight Systems or its SQLite export")
    if (program := shutil.which("nsys")) is None:
        raise MachineError(f"{report}: only nsys can read it, which isn't on the PATH", advice)
    options = ["--type=sqlite", "--force-overwrite=true", f"--output={export}"]
    try:
        done = subprocess.run(
            [program, "export", *options, str(report)], capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{report}: nsys export doesn't run: {brief(str(error))}", advice) from None
    if done.returncode or not export.is_file():
        said = brief(done.stderr or done.stdout) or f"exit code {done.returncode}"
        raise UsageError(f"{report}: nsys can't export it: {said}", f"a newer version may: {advice}")
