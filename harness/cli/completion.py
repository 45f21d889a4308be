"""What a shell may complete. Quick: nothing here imports torch or reads more than names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def scenarios(incomplete: str) -> Iterator[str]:
    """Bundled scenarios, then files and folders."""
    yield from _beginning(bundled_scenarios(), incomplete)
    folder = Path(incomplete).parent
    for path in sorted(folder.glob("*")):
        if path.is_dir() or path.suffix == ".yaml":
            yield from _beginning([f"{path}/" if path.is_dir() else str(path)], incomplete)


def ops(incomplete: str) -> Iterator[str]:
    """Bundled ops."""
    return _beginning(installed_ops(), incomplete)


def variants(incomplete: str) -> Iterator[str]:
    """The variants of all bundled ops, after the commas of the names that are there already."""
    from harness.ops import Catalogue

    named, comma, last = incomplete.rpartition(",")
    every = sorted({name for op in Catalogue().values() for name in op.variants})
    return (f"{named}{comma}{name}" for name in _beginning(every, last))


def devices(incomplete: str) -> Iterator[str]:
    """Kinds of device."""
    from harness.devices import OTHER_NAMES, kinds

    return _beginning([*kinds(), *OTHER_NAMES], incomplete)


def formats(incomplete: str) -> Iterator[str]:
    """Report formats."""
    from harness.report import every_format

    return _beginning(every_format(), incomplete)


def cases(incomplete: str) -> Iterator[str]:
    """Ids of the cases of the runs in reports/."""
    import json

    ids: dict[str, None] = {}
    for file in sorted(Path("reports").rglob("run.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            scenarios = json.loads(file.read_bytes())["scenarios"]
            ids |= dict.fromkeys(case for scenario in scenarios for case in scenario["cases"])
    return _beginning(ids, incomplete)


def bundled_scenarios() -> list[str]:
    """Names of the bundled scenarios; none is read."""
    from harness.paths import data

    return sorted(file.stem for file in data("scenarios").glob("*.yaml"))


def installed_ops() -> list[str]:
    """Names of the ops of installed packages. Their files tell, unless a package of somebody else brings ops."""
    from harness import discover

    names = discover.names_of_files("harness.ops")
    if names is None:
        from harness.ops import Catalogue

        names = list(Catalogue())
    return names


def _beginning(names: Iterable[str], start: str) -> Iterator[str]:
    return (name for name in names if name.startswith(start))
