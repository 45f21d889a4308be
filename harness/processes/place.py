"""Where a process stands among torchrun's processes, and the secret by which they know each other."""

from __future__ import annotations

import argparse
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import MachineError, UsageError
from harness.processes import python

SECRET = "HARNESS_SECRET"
"""The environment variable with the secret that the processes of several hosts share."""
_FEWEST = 32  # characters of a secret
_INSTEAD = f"remove it, or give {SECRET} a random text of {_FEWEST} characters or more"
_SET_BY_TORCHRUN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
_NUMBERS = tuple(name for name in _SET_BY_TORCHRUN if name != "MASTER_ADDR")
_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among torchrun's processes, where the leader listens, and what this process may start.

    host: the number of its host. one_host: whether all processes are there. root: the folder whose `harness` its
    ranks import, plugins: files with more ops. Both come from this process's own command, and from nobody else.
    """

    rank: int
    local_rank: int
    size: int
    host: int
    one_host: bool
    address: str
    port: int
    secret: bytes = field(repr=False)
    root: Path
    plugins: tuple[Path, ...] = ()

    @classmethod
    def from_environment(cls) -> Place:
        """The place that torchrun describes.

        What torchrun has set is removed from the environment, and so is the secret: processes that are started later
        aren't torchrun's. Raises UsageError without a secret that several hosts need.
        """
        given = {name: os.environ.pop(name, "") for name in _SET_BY_TORCHRUN}
        for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
            del os.environ[name]
        if bad := [name for name in _NUMBERS if not (given[name].isascii() and given[name].isdigit())]:
            raise UsageError(
                f"{bad[0]} is '{given[bad[0]]}', where torchrun sets a number",
                "start the harness by torchrun, or remove TORCHELASTIC_RUN_ID from the environment",
            )
        rank, size, local_rank, local_size, host, port = (int(given[name]) for name in _NUMBERS)
        one_host = local_size == size
        return cls(
            rank=rank,
            local_rank=local_rank,
            size=size,
            host=host,
            one_host=one_host,
            address="127.0.0.1" if one_host else given["MASTER_ADDR"],
            port=port + 1 if port < _HIGHEST_PORT else port - 1,
            secret=_secret(one_host) if size > 1 else b"",
            root=python.own_root(),
            plugins=plugins_of(sys.argv[1:]),
        )


def plugins_of(arguments: Sequence[str]) -> tuple[Path, ...]:
    """The files that a command names with --ops."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ops", type=Path, action="append", nargs="?", default=[])
    found, _ = parser.parse_known_args(arguments)
    return tuple(file for file in found.ops if file)


def is_private(folder: Path) -> bool:
    """Whether a path is a folder, not a link to one, that nobody but this user can enter or change."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_own(found)


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _secret(one_host: bool) -> bytes:
    """What all processes of the run know, and nobody else: from the environment, or on one host from a file."""
    given = os.environ.pop(SECRET, "")
    if not given and one_host:
        folder = Path(tempfile.gettempdir()) / f"harness-{os.geteuid()}"
        try:
            return _kept(folder)
        except OSError as error:
            raise MachineError(f"{folder} can't keep a secret of torchrun's processes: {error}", _INSTEAD) from error
    if len(given) < _FEWEST:
        found = f"{SECRET} has {len(given)} characters" if given else f"on several hosts the harness needs {SECRET}"
        raise UsageError(
            f"{found}: the secret by which torchrun's processes know each other",
            f"give it the same random text on each host, {_FEWEST} characters or more, such as 'openssl rand -hex 32' "
            "prints; the jobs of 'harness launch' make one",
        )
    return given.encode(errors="surrogateescape")


def _kept(folder: Path) -> bytes:
    """The secret in a private folder of this user, where the first process puts it.

    Raises MachineError if the folder or its file may be another user's.
    """
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    if not is_private(folder):
        raise MachineError(f"{folder} isn't a folder that this user alone can enter", _INSTEAD)
    file = folder / "secret"
    if not file.exists():
        # A file that is complete before it has its name, whichever process comes first.
        with tempfile.NamedTemporaryFile(dir=folder) as draft, suppress(FileExistsError):
            draft.write(secrets.token_hex().encode())
            draft.flush()
            os.link(draft.name, file)
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
        secret = opened.read(2 * _FEWEST)
        if not _is_own(os.fstat(opened.fileno())) or len(secret) < _FEWEST:
            raise MachineError(f"{file} isn't a secret that this user alone can read", _INSTEAD)
    return secret
