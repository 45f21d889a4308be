"""Starts a module of a certain harness: a script that other processes of ours run as `python -P start.py MODULE ...`.

Neither `python -m` nor PYTHONPATH would do. `-m` takes the first harness on the path, which may be another one, or a
folder of that name in the working folder. PYTHONPATH can't name a folder with a colon. So this script imports the
package by the path of its folder. It uses nothing of the package, which may be older than the script.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys

VARIABLE = "HARNESS_IMPORTS"
"""The environment variable that tells where modules come from, as JSON.

root: the folder with the package. path: folders of all other modules, where null stands for `root`. refused: a folder
with another harness, or "".
"""


def main() -> None:
    """Run the module that the command line names, with the rest of the command line."""
    imports = json.loads(os.environ.pop(VARIABLE))
    root, refused = imports["root"], imports["refused"]
    path = [entry or root for entry in imports["path"]]
    more = [entry for entry in sys.path if entry not in path and os.path.realpath(entry) != refused]
    sys.path[:] = path + more
    import_package(os.path.join(root, "harness"))  # noqa: PTH118 - pathlib would be loaded before the package
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def import_package(folder: str) -> None:
    """Import the package in a folder, unless it is imported already."""
    if getattr(sys.modules.get("harness"), "__path__", None) == [folder]:
        return
    file = os.path.join(folder, "__init__.py")  # noqa: PTH118
    spec = importlib.util.spec_from_file_location("harness", file, submodule_search_locations=[folder])
    assert spec
    assert spec.loader
    sys.modules["harness"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    main()
