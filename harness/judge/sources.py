"""What a file of Python defines at its top, read without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from harness import foreign
from harness.errors import UsageError

_MOST_BYTES = 16 << 20
_WRAPPED = (
    "name a file of Python; a library or a source in C++ is called from one, by ctypes or torch.utils.cpp_extension"
)


@dataclass(frozen=True, slots=True)
class Source:
    """The names that a file defines. functions: the parameters of each. adds: it adds variants to ops.

    A kernel of Triton is a name, but no function: it is launched over a grid, not called with tensors.
    """

    file: Path
    names: frozenset[str] = frozenset()
    functions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    adds: bool = False

    @property
    def public(self) -> list[str]:
        """Functions whose names don't start with '_'."""
        return [name for name in self.functions if not name.startswith("_")]


def read(file: Path) -> Source:
    """Read a file. Raises UsageError for what isn't Python."""
    try:
        tree = ast.parse(foreign.read(file, _MOST_BYTES), str(file))
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror or error}", "name a file of Python") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{file}: isn't valid Python: {error}", _WRAPPED) from None
    names: set[str] = set()
    functions: dict[str, tuple[str, ...]] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=decorators) if any(map(_makes_a_kernel, decorators)):
                names.add(name)
            case ast.FunctionDef(name=name, args=args):
                names.add(name)
                functions[name] = tuple(one.arg for one in (*args.posonlyargs, *args.args))
            case ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                names |= {alias.asname or alias.name for alias in imported}
    return Source(file, frozenset(names), functions, any(map(_adds_a_variant, ast.walk(tree))))


def _makes_a_kernel(decorator: ast.expr) -> bool:
    """Whether it is Triton's `jit`, with or without arguments, or `jit` of Gluon, which comes with Triton."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(named) in ("triton.jit", "jit", "gluon.jit")


def _adds_a_variant(node: ast.AST) -> bool:
    """Whether it is a call such as OP.variant(...) or compiled_variants(...)."""
    match node:
        case ast.Call(func=ast.Attribute(attr="variant")) | ast.Call(func=ast.Name(id="compiled_variants")):
            return True
    return False
