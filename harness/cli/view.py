"""`harness view`: the page of a stored run, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.group import alone
from harness.cli.options import Ops

if TYPE_CHECKING:
    from harness.model import Run

app = alone()
EXAMPLES = "\b\nExamples:\n  harness view reports/h200/norms\n  harness view reports/before reports/after"
_PAGES = "pages"
"""The folder of pages in the cache folder."""


@app.command("view", epilog=EXAMPLES)
def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    later: Annotated[
        Path | None,
        typer.Argument(metavar="RUN2", help="Folder of a later run, whose page says what changed since RUN."),
    ] = None,
    ops: Ops = None,
) -> None:
    """Show a stored run in the browser. With two runs, the page is RUN2's and says what changed since RUN.

    The page is one file, whose path is printed. It lies in the cache folder, and the folder of the run stays as it is:
    'harness report RUN --format html' writes the same page there. The page asks for nothing on the network. This needs
    no GPU.
    """
    import webbrowser

    from harness.cli.messages import tell_losses
    from harness.cli.report import stale
    from harness.ops import Catalogue
    from harness.report.formats import html
    from harness.report.older import without_false_warnings
    from harness.report.placing import into
    from harness.report.web.document import Before

    catalogue = Catalogue(tuple(ops or ()))
    loaded = [(folder, _loaded(folder)) for folder in (run, later) if folder]
    tell_losses(*(found for _, found in loaded))
    folder, shown = loaded[-1]
    (notes,) = stale([shown], catalogue)
    before = Before(str(run), without_false_warnings(loaded[0][1])) if later else None
    place = _place(folder, run if later else None)
    with into(place):
        page = html.write(without_false_warnings(shown), place, notes, before)[0]
    typer.echo(page)
    if not webbrowser.open(page.as_uri()):
        typer.echo("no browser could be opened: open the file above in one", err=True)


def _loaded(folder: Path) -> Run:
    """The run in a folder. Raises UsageError, which names runs that lie near."""
    from harness import store
    from harness.errors import UsageError, nearest
    from harness.ops import known_cases

    try:
        return known_cases.load(folder)
    except UsageError as error:
        near = [
            str(file.parent)
            for place in dict.fromkeys((folder, folder.parent))
            for file in _headers(place, store.HEADER)
        ]
        if (folder / store.HEADER).exists() or not near:
            raise
        raise UsageError(error.message, nearest(str(folder), near)) from None


def _headers(folder: Path, name: str) -> list[Path]:
    """Files of that name in the folders of a folder."""
    return sorted(folder.glob(f"*/{name}")) if folder.is_dir() else []


def _place(folder: Path, before: Path | None) -> Path:
    """The folder of the page: the same one each time that the same runs are shown."""
    import hashlib
    import tempfile

    from harness import kept

    runs = [str(path.resolve()) for path in (folder, before) if path]
    name = f"{folder.resolve().name}-{hashlib.sha256(repr(runs).encode()).hexdigest()[:8]}"
    file = kept.place(f"{_PAGES}/{name}/page")
    if file is None:
        return Path(tempfile.mkdtemp(prefix="harness-page-"))
    return file.parent
