"""The global variables of a user's file, which each training has for itself.

A step may keep an average of weights, a scheduler or a count in a global variable. Several trainings run in one process
here: a rung's, its twin's and the reference's. Each must find what it left itself, as in a program of its own.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from typing import Any

_COPIED = (dict, list, set, deque, OrderedDict, defaultdict)
"""What each training has a copy of, and objects of plain classes of the file. Other objects, such as a loader, are the
same for all trainings."""
_LONGEST = 1000
"""Items of such a container; a longer one is data, which nobody changes."""

Variables = dict[str, Any]


class FileState:
    """The global variables of a file, as one training after the other has them.

    Names that begin with two underscores aren't the user's: torch.compile keeps code in a file's variables.
    """

    def __init__(self, variables: Variables) -> None:
        """Begin with what the file has once it was loaded. variables: of its module, which are changed in place."""
        _FILES.add(str(variables.get("__name__")))
        self._variables = variables
        self._first = _copied(self._users())
        # Those of batch(), which goes on from call to call, whichever training asks.
        self.shared = self._present = self._users()

    def fresh(self) -> Variables:
        """Variables for another training."""
        return _copied(self._first)

    def enter(self, own: Variables) -> None:
        """Let the file have these variables from now on. What it changes in them stays in them."""
        if own is self._present:
            return
        left = self._users()
        self._present.clear()
        self._present.update(left)
        # First new values, then away with the others: threads of a loader may look some up meanwhile.
        self._variables.update(own)
        for name in left.keys() - own.keys():
            del self._variables[name]
        self._present = own

    def numbers(self) -> dict[str, float]:
        """The variables that are numbers now, and the numbers in dicts."""
        users = self._users()
        inside = {
            f"{name}[{key!r}]": x for name, one in users.items() if isinstance(one, dict) for key, x in one.items()
        }
        return {name: one for name, one in (users | inside).items() if isinstance(one, int | float)}

    def _users(self) -> Variables:
        return {name: one for name, one in self._variables.items() if not name.startswith("__")}


def _copied(variables: Variables) -> Variables:
    """The variables, with copies of containers and of the file's objects; what has two names has them afterwards."""
    copies: dict[int, Any] = {}
    return {name: copies.setdefault(id(one), _copy(one)) for name, one in variables.items()}


def _copy(one: Any) -> Any:
    """A copy of a container, or of an object of a plain class of the file with its containers; else the object."""
    if type(one) in _COPIED:
        return copy.copy(one) if len(one) <= _LONGEST else one
    if not hasattr(one, "__dict__") or isinstance(one, type) or not _is_files(type(one)):
        return one
    made = copy.copy(one)
    vars(made).update({name: _copy(value) for name, value in vars(one).items() if type(value) in _COPIED})
    return made


def _is_files(kind: type) -> bool:
    """Whether a class is a plain one of a user's file: of no library, and not based on one's, as data sets are."""
    return all(base is object or base.__module__ in _FILES for base in kind.__mro__)


_FILES: set[str] = set()
"""Names of the modules of users' files."""
