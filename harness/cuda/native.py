"""The launcher in C, compiled for this Python when it is first needed. Without a C compiler, Python does its work.

Nothing needs it: without it a launch takes the host longer. It is kept in the cache folder, by the hash of its source
and the version of Python, as compiled kernels are. Where the cache folder can't be used there is none.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from harness import kept, paths
from harness.errors import MachineError

SOURCE = Path(__file__).with_name("launcher.c")
"""The source. It includes the header of its name."""
_OPTIONS = ("-O2", "-shared", "-fPIC")
_SECONDS = 60  # that the compiler may take


@cache
def launcher() -> ModuleType | None:
    """The module, ready to launch; None where it can't be built."""
    from harness.cuda import launch

    try:
        module, driver = built(), ctypes.CDLL("libcuda.so.1")
    except (MachineError, OSError):
        return None
    address = ctypes.cast(driver.cuLaunchKernelEx, ctypes.c_void_p).value
    module.begin(address, launch.recover, launch.refuse)
    return module


def built() -> ModuleType:
    """The module, compiled unless it was before. Raises MachineError, with what is missing, where it can't be."""
    sources = SOURCE.read_bytes() + SOURCE.with_suffix(".h").read_bytes()
    digest = hashlib.sha256(sources + sys.version.encode() + os.uname().machine.encode()).hexdigest()[:16]
    library = kept.place(f"native/launcher-{digest}.so")
    if library is None:
        message = f"the launcher in C can't be kept: {paths.cache()} isn't a folder that this user alone can write"
        raise MachineError(message, "name a folder of your own in HARNESS_CACHE")
    if not library.is_file() or kept.distrust(library):
        _compile(library)
    loader = ExtensionFileLoader("launcher", str(library))
    spec = spec_from_loader("launcher", loader)
    assert spec, "a loader was given"
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise MachineError(f"the launcher in C can't be loaded: {error}", f"remove {library}") from error
    return module


def _compile(library: Path) -> None:
    compiler = _compiler()
    include = sysconfig.get_paths()["include"]
    if not (Path(include) / "Python.h").is_file():
        raise MachineError(f"Python's headers aren't in {include}", "install them: apt-get install python3-dev")
    try:
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            command = [*compiler, *_OPTIONS, f"-I{include}", str(SOURCE), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            if done.returncode:
                raise MachineError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")
            made.chmod(0o700)
            # Made under another name, then renamed: no other process sees a part of it.
            made.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"the launcher in C can't be compiled: {error}") from error


def _compiler() -> list[str]:
    """The command of a C compiler: $CC, or the first one that is installed."""
    if chosen := os.environ.get("CC"):
        return shlex.split(chosen)
    found = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if found is None:
        raise MachineError("no C compiler is installed (cc, gcc or clang)", "apt-get install gcc")
    return [found]
