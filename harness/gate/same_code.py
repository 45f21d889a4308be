"""Which code of the repository the base used as it lies in the working tree, or as it was installed.

A repository may have a package of its own, which its ops import. The package is installed once, so `import` gives
both sides the same code, and a comparison says nothing about the package. The base is asked after it has run each
variant once, since most variants import what they need when they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from harness.gate.case_lists import Cases
from harness.gate.worktree import Checkout, Repository
from harness.model import LIBRARY_ROLES, Job
from harness.ops import Op
from harness.processes.supervisor import Workers

_BRIEF = {"precision": 0.9, "max_time": 0.001}
_BUNDLED = Path(__file__).resolve().parents[1]


def same_code(
    repository: Repository, base: Checkout, cases: Cases, catalogue: Mapping[str, Op], workers: Workers
) -> tuple[str, ...]:
    """Paths of the code that wasn't compared, relative to the repository's top if it lies below; none if all was."""
    return tuple(dict.fromkeys((*_outside(repository), *_used(repository, base, cases, catalogue, workers))))


def _outside(repository: Repository) -> Iterator[str]:
    """Plug-ins of another place; and all ops, where nothing that is measured lies in the repository."""
    inside = [plugin for plugin in repository.plugins if plugin.is_relative_to(repository.top)]
    yield from (str(plugin) for plugin in repository.plugins if plugin not in inside)
    if not inside and repository.package is None:
        yield f"every op, since no file of --ops lies in {repository.top}"


def _used(
    repository: Repository, base: Checkout, cases: Cases, catalogue: Mapping[str, Op], workers: Workers
) -> list[str]:
    """Files of the working tree that the base used while it ran each variant of an op that isn't bundled."""
    used: set[str] = set()
    for job in _one_each(cases, catalogue):
        workers.survey(top=repository.top)  # a new process doesn't listen yet
        workers.measure(replace(job, timing=replace(job.timing, **_BRIEF)))
        used.update(workers.survey(top=repository.top).used)
    own = base.folder or repository.top
    return repository.belonging(sorted(file for file in used if not Path(file).is_relative_to(own)))


def _one_each(cases: Cases, catalogue: Mapping[str, Op]) -> list[Job]:
    """A case of each variant of the user's ops: the first, on one device, since only one process is asked."""
    found: dict[tuple[str, str], Job] = {}
    for job in cases.jobs["base"]:
        op = catalogue.get(job.case.op)
        if op is None or op.file is None or op.file.is_relative_to(_BUNDLED):
            continue
        variant = op.variants.get(job.case.variant)
        if variant and variant.role not in LIBRARY_ROLES:
            found.setdefault((job.case.op, job.case.variant), replace(job, case=replace(job.case, world=1)))
    return list(found.values())
