"""Where the files of a report end up: in a folder that may be somebody else's, whole or not at all."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.errors import MachineError


def placed(folder: Path, write: Callable[[Path], list[Path]]) -> list[Path]:
    """Let `write` write files into a folder of their own, then move them into `folder`. Gives their paths there.

    So the report is there whole or not at all, and nothing is written through a link, which may point anywhere where
    the folder is somebody else's. `folder` itself may be a link: the user has named it. Makes the folder. Raises
    UsageError for a link, and MachineError if the folder can't be written.
    """
    from harness.store.files import refuse_link

    with into(folder), TemporaryDirectory(prefix=".report-", dir=folder) as draft:
        made = [path.relative_to(draft) for path in write(Path(draft))]
        for link in sorted({folder / part for file in made for part in (file, *file.parents) if part.name}):
            refuse_link(link)
        for file in made:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (Path(draft) / file).replace(folder / file)
    return [folder / file for file in made]


@contextmanager
def into(folder: Path) -> Iterator[None]:
    """Make the folder, and turn errors of writing inside the context into a MachineError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        message = f"can't write the report: {error.filename or folder}: {error.strerror or error}"
        advice = "free some space, or choose a folder that can be written"
        if (folder / "run.json").is_file():
            again = f"harness report {shlex.quote(str(folder))}"
            advice = f"the results are kept; free some space or correct the permissions, then: {again}"
        raise MachineError(message, advice) from error
