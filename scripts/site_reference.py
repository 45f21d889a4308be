"""The reference pages of the site that come from docstrings: what Python calls, and what a plug-in uses.

Docstrings of this project are written as Markdown, so the pages use directives of Sphinx's Python domain, whose content
MyST reads as Markdown; autodoc would read it as reStructuredText. The functions of `harness.nn` are operators of torch,
which only an import of torch makes, so that page needs torch. The package depends on torch anyway; no GPU is needed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from sphinx.util.inspect import stringify_signature

_CODE = re.compile(r"(`+[^`]*`+|^ {4}.*$)", re.MULTILINE)


@dataclass(frozen=True)
class Reference:
    """One page: the module whose docstring begins it, and the modules whose public names stand on it."""

    page: str
    title: str
    module: str
    names_of: tuple[str, ...]


PAGES = (
    Reference("python", "Python: `import harness as hb`", "harness.api", ("harness", "harness.api")),
    Reference("ops", "The door for ops: `harness.ops`", "harness.ops", ("harness.ops",)),
    Reference("nn", "Kernels in a model: `harness.nn`", "harness.collection.nn", ("harness.nn",)),
)


def page(reference: Reference) -> str:
    """The text of a reference page."""
    parts = [f"# {reference.title}", prose(inspect.getdoc(import_module(reference.module)) or "")]
    seen: set[str] = set()
    for name in reference.names_of:
        module = import_module(name)
        parts.append(f"```{{py:module}} {name}\n```")
        public = [each for each in module.__all__ if each not in seen]
        seen.update(public)
        parts += [_documented(module, each) for each in public]
    return "\n\n".join(parts) + "\n"


def of_names(module: str, names: tuple[str, ...]) -> str:
    """The documentation of some functions and classes of a module."""
    found = import_module(module)
    return "\n\n".join([f"```{{py:currentmodule}} {module}\n```", *(_documented(found, name) for name in names)])


def _documented(module: ModuleType, name: str) -> str:
    found = getattr(module, name)
    if inspect.isclass(found):
        kind = "exception" if issubclass(found, BaseException) else "class"
        members = "\n\n".join(_members(found)) if found.__module__.startswith("harness") else ""
        return directive(kind, f"{name}{signature(found)}", f"{_doc(found)}\n\n{members}", 6)
    if callable(found) and getattr(found, "__doc__", None) and not _is_alias(found):
        return directive("function", f"{name}{signature(found)}", _doc(found), 5)
    return directive("data", name, f"`{found!r}`".replace("\n", " "), 5)


def _is_alias(found: object) -> bool:
    """Whether it is a type alias, such as Callable[[int], int], whose docstring is of something else."""
    return hasattr(found, "__origin__") or type(found).__module__ == "typing"


def _members(found: type) -> Iterator[str]:
    """The public methods and properties that a class defines itself."""
    for name, member in vars(found).items():
        if name.startswith("_"):
            continue
        of = getattr(member, "__func__", member)
        text = inspect.getdoc(of) if inspect.isfunction(of) or isinstance(of, property) else None
        if isinstance(member, property):
            yield directive("property", name, prose(text or ""), 4)
        elif inspect.isfunction(of):
            kind = {staticmethod: "staticmethod", classmethod: "classmethod"}.get(type(member), "method")
            yield directive(kind, f"{name}{signature(of, bound=kind != 'staticmethod')}", prose(text or ""), 4)


def signature(found: Any, *, bound: bool = False) -> str:
    """The signature as its source has it. bound: without the first parameter, which is `self` or the class."""
    try:
        parts = inspect.signature(found)
    except ValueError:
        return ""
    kept = list(parts.parameters.values())[1 if bound else 0 :]
    written = stringify_signature(parts.replace(parameters=[_written(each) for each in kept]))
    return re.sub(r" -> None$", "", " ".join(written.split()))


def _written(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose default can be written: no address of an object, no mark of a dataclass."""
    default = parameter.default
    if default is parameter.empty or not repr(default).startswith("<"):
        return parameter
    return parameter.replace(default=...)


def _doc(found: Any) -> str:
    """The docstring that a thing has itself, not one of a class that it inherits from."""
    own = found.__doc__ if not inspect.isclass(found) else vars(found).get("__doc__")
    return prose(inspect.cleandoc(own or ""))


def prose(text: str) -> str:
    """A docstring as Markdown: what stands in angle brackets outside of code is no HTML."""
    parts = _CODE.split(text)
    return "".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def directive(kind: str, title: str, content: str, fence: int) -> str:
    """A directive of the Python domain. fence: longer than the fences of what it holds."""
    marks = ":" * fence
    return f"{marks}{{py:{kind}}} {title}\n\n{content.strip()}\n{marks}"
