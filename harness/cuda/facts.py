"""What the compiler makes of a kernel for an architecture: registers, spills, shared memory. Needs no GPU."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from harness import kept
from harness.cuda import compile as compiler
from harness.model import KernelFacts

_ENTRY = "Compiling entry function '"


def kernel_facts(file: Path, entry: str, macros: Mapping[str, str | int], arch: str) -> KernelFacts:
    """Facts of the kernel `entry` of `file`, compiled for `arch`, such as 'sm_90'. Kept in the cache folder.

    Raises CompileError with the compiler's log, and where the file has no such kernel.
    """
    name = f"facts/{_key(file, macros, arch)}.json"
    known = _opened(kept.read(name))
    if known is None:
        _, log = compiler.compile_verbose(file, macros, arch)
        known = {found.name: found for found in parsed(log)}
        kept.write(name, json.dumps([asdict(found) for found in known.values()]).encode())
    if entry not in known:
        from harness.errors import CompileError

        raise CompileError(f"{file.name} has no kernel '{entry}'", f"it has: {', '.join(known)}")
    return known[entry]


def _key(file: Path, macros: Mapping[str, str | int], arch: str) -> str:
    """What facts are kept under: a hash of the source, its headers, the macros and the compiler."""
    from cuda.core.utils import make_program_cache_key

    key = make_program_cache_key(
        code=file.read_text(),
        code_type="c++",
        options=compiler._options(file, macros, arch),
        target_type="cubin",
        extra_digest=compiler._headers_digest(file.parent),
    )
    return hashlib.sha256(key).hexdigest()


def _opened(text: bytes | None) -> dict[str, KernelFacts] | None:
    try:
        return None if text is None else {each["name"]: KernelFacts(**each) for each in json.loads(text)}
    except (ValueError, TypeError, KeyError):
        return None


def parsed(log: str) -> list[KernelFacts]:
    """The facts of each kernel in the log of ptxas -v. local: a thread's stack, or its spills if they are more."""
    found = []
    for part in log.split(_ENTRY)[1:]:
        [registers] = re.findall(r"Used (\d+) registers", part)
        [*shared] = re.findall(r"(\d+) bytes smem", part)
        # A function that the kernel calls has a line of its own.
        frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        local = max((int(size) for frame in frames for size in frame), default=0)
        found.append(KernelFacts(part.partition("'")[0], int(registers), local, sum(map(int, shared))))
    return found
