"""Which code makes the numbers: a hash over what a result depends on, and what git says of it."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import paths

_PACKAGE = Path(__file__).resolve().parent
_KERNEL_SUFFIXES = frozenset({".cu", ".cuh", ".h", ".hpp"})
_GIT_TIMEOUT = 10


def digest(plugins: Sequence[Path] = (), root: Path | None = None) -> str:
    """SHA-256 over the names and contents of the package's Python files, the kernels, and plug-ins with theirs.

    root: a checkout of another revision, in place of this installation.
    """
    package, kernels = (root / "harness", root / "kernels") if root else (_PACKAGE, paths.data("kernels"))
    total = hashlib.sha256()
    for name, path in sorted(_files(package, kernels, plugins)):
        content = path.read_bytes()
        # Names and lengths keep apart what would otherwise run together.
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def revision() -> tuple[str, bool]:
    """The git commit that the package lies in and whether its code differs from that.

    ('', False) where there is no git, no checkout, or the package isn't part of the one around it.
    """
    # A package installed below somebody's project must not be given that project's revision.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "", False
    code = [_PACKAGE, paths.data("kernels")]
    changes = _git("status", "--porcelain", "--", *map(str, code))
    return (_git("rev-parse", "HEAD") or "").strip(), bool(changes)


def _files(package: Path, kernels: Path, plugins: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for path in package.rglob("*.py"):
        yield f"harness/{path.relative_to(package).as_posix()}", path
    for path in kernels.rglob("*"):
        if path.suffix in _KERNEL_SUFFIXES:
            yield f"kernels/{path.relative_to(kernels).as_posix()}", path
    for plugin in plugins:
        yield f"plugin/{plugin.name}", plugin
        for path in plugin.absolute().parent.iterdir():
            if path.suffix in _KERNEL_SUFFIXES:
                yield f"plugin/{plugin.name}/{path.name}", path


def _git(*arguments: str) -> str | None:
    """What git prints, or None if it can't be run or fails. Never waits for another git's lock."""
    command = ["git", "--no-optional-locks", "-C", str(_PACKAGE), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT).stdout
    except (OSError, subprocess.SubprocessError):
        return None
