"""The kernels in a user's model: the short name of `harness.collection.nn`, whose docstring tells what is there."""

from harness.collection.nn import *  # noqa: F403 - it has an __all__
from harness.collection.nn import __all__  # noqa: F401
