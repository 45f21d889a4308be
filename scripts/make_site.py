"""Build the site: the pages of this repository, a reference from docstrings and the catalogue, and every committed run.

    python scripts/make_site.py                  # into site/
    python scripts/make_site.py --runs prelu     # with one run; --runs none leaves out all of them

Sphinx is strict: a warning ends the build with exit code 1, and so does a link inside the site that leads nowhere. This
needs the extra `docs`, and no GPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import site_catalogue
import site_commands
import site_links
import site_reference
import site_runs
import site_sources
from site_pages import REPORT, ROOT, RUNS, Pages

SITE = ROOT / "site"
SOURCE = ".source"
"""The folder of staged pages, beside the site's. It is left there, since warnings name its files."""
TREE = (
    ("How to", ("docs/gate", "docs/judge", "harness/explain/index", "docs/notebook", "docs/own-ops", "docs/models",
                "examples/index", "scenarios/index")),
    ("What a number is", ("harness/index", "harness/gate/index", "harness/devices/index",
                          "reports/h200/trust")),
    ("Results", ("reports/index", "reports/training", "reports/scaling", "reports/h200/rows", "reports/h200/verdicts",
                 "reports/h200/audit", "reports/h200/host", "reports/h200/peak/peak", "reports/h200/index",
                 "kernels/index")),
    ("Reference", ("reference/python", "reference/ops", "reference/nn", "reference/pytest", "reference/commands/index",
                   "reference/catalogue/index", "reference/metrics")),
    ("Project", ("CONTRIBUTING", "CHANGELOG", "SECURITY")),
)  # fmt: skip
"""The chapters of the site."""
METRICS = ("Metric", "add", "fact", "found")
"""What a plug-in calls to add a metric."""


def stage(folder: Path, runs: frozenset[str]) -> Pages:
    """Write all pages into a folder for Sphinx. Gives where they are."""
    told = site_runs.render(runs, folder)
    pages = Pages(folder, runs)
    pages.stage()
    pages.write(RUNS / "index.md", site_runs.listed(told))
    for reference in site_reference.PAGES:
        pages.write(f"reference/{reference.page}.md", site_reference.page(reference))
    pages.write(
        "reference/metrics.md", f"{site_catalogue.metrics()}\n{site_reference.of_names('harness.metrics', METRICS)}"
    )
    pages.write("reference/pytest.md", site_commands.of_pytest())
    commands = site_commands.commands()
    for name, text in commands.items():
        under = toctree("", [each for each in commands if each != name]) if name == site_commands.INDEX else ""
        pages.write(f"reference/commands/{name}.md", f"{text}\n{under}")
    site_catalogue.write(pages)
    start = folder / "index.md"
    start.write_text(f"{start.read_text(encoding='utf-8')}\n{chapters(pages)}\n", encoding="utf-8")
    return pages


def chapters(pages: Pages) -> str:
    """The site's navigation: its chapters, and the pages that no chapter names."""
    named = {name for _, names in TREE for name in names}
    every = {place.with_suffix("").as_posix() for path, place in pages.of_page.items() if path.name != REPORT}
    others = sorted(every - named - {"index"})
    return "\n\n".join(toctree(title, names) for title, names in (*TREE, ("More", others)) if names)


def toctree(title: str, names: Sequence[str]) -> str:
    """A hidden list of pages, for the site's navigation."""
    caption = [f":caption: {title}"] if title else []
    return "\n".join(["```{toctree}", ":hidden:", *caption, "", *names, "```"])


def build(site: Path, runs: frozenset[str]) -> list[str]:
    """Build the site in a folder, anew, and leave the staged pages beside it. Gives what is wrong, if anything is."""
    source = site.with_name(f"{site.name}{SOURCE}")
    for folder in (site, source):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    pages = stage(source, runs)
    if not strict(source, site):
        return ["Sphinx has warnings, which stand above"]
    site_sources.write(site, pages)
    for name in runs:
        shutil.copyfile(source / RUNS / name / site_runs.PAGE, site / RUNS / name / site_runs.PAGE)
    return [f"a link leads nowhere: {link}" for link in site_links.broken(site)]


def strict(source: Path, site: Path) -> bool:
    """Whether Sphinx makes a site of the staged pages without a warning."""
    options = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet", f"--jobs={os.cpu_count() or 1}"]
    places = [f"--conf-dir={ROOT / 'docs'}", f"--doctree-dir={source / '.doctrees'}", str(source), str(site)]
    return subprocess.run([sys.executable, "-m", "sphinx", *options, *places], check=False).returncode == 0


def main(arguments: Sequence[str]) -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = site_runs.names()
    parser.add_argument("--runs", default="all", metavar="NAMES", help="all, none, or names of runs with commas")
    parser.add_argument("--output", type=Path, default=SITE, metavar="FOLDER", help="default: site/")
    given = parser.parse_args(arguments)
    runs = {"all": every, "none": []}.get(given.runs, given.runs.split(","))
    if unknown := set(runs) - set(every):
        parser.error(f"no committed run is named {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    if given.output.resolve() != SITE and _holds_something_else(given.output):
        parser.error(f"{given.output} holds something else than a site; name a new folder, or an empty one")
    started = time.monotonic()
    problems = build(given.output.resolve(), frozenset(runs))
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{given.output}: {len(runs)} runs, {time.monotonic() - started:.0f} s")
    return 1 if problems else 0


def _holds_something_else(folder: Path) -> bool:
    """Whether a folder, which a build would delete, holds what no build has made."""
    return folder.exists() and any(folder.iterdir()) and not (folder / "objects.inv").exists()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
