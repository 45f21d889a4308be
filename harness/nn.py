"""The kernels in a user's model: all of `harness.collection.nn`, whose docstring tells what is there, and `patch`."""

from harness.collection.nn import *  # noqa: F403 - it has an __all__
from harness.collection.nn import __all__ as _functions
from harness.collection.nn._patch import Patched, patch

__all__ = [*_functions, "Patched", "patch"]  # noqa: PLE0604 - the other names are strings, too
