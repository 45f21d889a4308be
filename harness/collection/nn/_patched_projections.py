"""Linear layers that a forward calls with one input, as attention does for queries, keys and values, as one product.

Three products of 768 columns leave multiprocessors idle at the end of each, and so do their gradients. Only in compiled
code under autocast: there the cast to halves writes the weights into one matrix, so that this costs nothing.

The source of the forward is changed, and nothing else: before the first of these statements stands one that calls
`one_product`, and what it gives stands in the place of the calls. State kept between the calls, or a mode of torch,
would stop the compiler where a checkpoint is around the module.
"""

from __future__ import annotations

import ast
import copy
import inspect
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

from harness.collection.nn._patched_blocks import is_plain
from harness.collection.nn._patched_compiled import autocast_halves
from harness.collection.nn._patched_modules import HALVES, HOOKS, Found, swap, untouchable
from harness.collection.nn._traceable import source_of

_MAYBE = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)
_OURS = "_one_product"


class _Group(NamedTuple):
    """Calls `own.name(argument)` in the source of a forward. first: the place of the first one's statement."""

    own: str
    argument: str
    first: int
    names: tuple[str, ...]


def projections(model: nn.Module) -> Iterator[Found]:
    """Swap forwards that call such layers; say why some stay."""
    for name, module in list(model.named_modules()):
        kind: Any = type(module)
        group = _called_with_one_input(kind.forward)
        if group is None or not all(type(module._modules.get(one)) is nn.Linear for one in group.names):
            continue
        was = f"{kind.__name__} with {', '.join(group.names)}"
        if why := untouchable(module) or _why_not(module, group):
            yield name, was, why, None
        else:
            yield name, was, "one product", swap(module, _rewritten(kind.forward, group))


def one_product(input: Tensor, *layers: Any) -> tuple[Tensor, ...]:
    """What linear layers give for one input: parts of one product, or a product each."""
    halves = autocast_halves(input.device.type) if torch.compiler.is_compiling() else None
    fits = halves is not None and (input.dtype == torch.float32 or input.dtype in HALVES)
    fits = fits and all(is_plain(one, nn.Linear) and _is_float32(one.weight) for one in layers)
    if not fits or len({one.bias is None for one in layers}) > 1:
        return tuple(one(input) for one in layers)
    weight = torch.cat([one.weight.to(halves) for one in layers])
    bias = None if layers[0].bias is None else torch.cat([one.bias.to(halves) for one in layers])
    y = functional.linear(input, weight, bias)
    # Not Tensor.split: it is of Python, and torch's cache of compiled code takes no graph with it. The parts don't
    # overlap, and of an unsafe split the forward may change them in place.
    made: tuple[Tensor, ...] = torch.unsafe_split_with_sizes(y, [len(one.weight) for one in layers], -1)
    return made


def _is_float32(weight: Any) -> bool:
    """Whether a weight is torch's own, in float32: no DTensor, nothing quantised."""
    return type(weight) is nn.Parameter and weight.dtype == torch.float32


# ---- Which layers they are.


@cache
def _called_with_one_input(wrapped: Any) -> _Group | None:
    """What a forward calls with the same argument, in statements that follow each other.

    Each is called once, whatever the arguments are, and used for nothing else. Of several such groups the first.
    """
    forward: Any = inspect.unwrap(wrapped)
    tree = source_of(forward)
    if tree is None or not _is_all(wrapped, tree) or not tree.args.args:
        return None
    own, *arguments = (one.arg for one in (*tree.args.posonlyargs, *tree.args.args))
    nodes = [*ast.walk(tree)]
    fixed = {*arguments} - {one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    used = [one.attr for one in nodes if isinstance(one, ast.Attribute) and _is_name(one.value, own)]
    groups: list[_Group] = []
    for place, statement in enumerate(tree.body):
        calls = [(child, given) for child, given in _calls(statement, own) if used.count(child) == 1]
        names, given = tuple(child for child, _ in calls), {given for _, given in calls}
        argument = given.pop() if len(given) == 1 and given <= fixed else ""
        if groups and argument and groups[-1].argument == argument:
            groups[-1] = groups[-1]._replace(names=groups[-1].names + names)
        else:
            groups.append(_Group(own, argument, place, names))
    return next((one for one in groups if one.argument and len(one.names) > 1), None)


def _is_all(forward: Any, tree: ast.FunctionDef) -> bool:
    """Whether the source of a forward alone is what runs: it shows all wrappers, and no class has made other names."""
    if inspect.unwrap(forward).__code__.co_freevars:
        return False
    wrappers = 0
    while hasattr(forward, "__wrapped__"):
        forward, wrappers = forward.__wrapped__, wrappers + 1
    alone = compile(ast.Module([tree], []), "", "exec").co_consts
    codes = (one for one in alone if isinstance(one, types.CodeType) and one.co_name == tree.name)
    # Only names: codes that do the same differ, since a compiler knows which names of a file are imported.
    same = any(_names_of(one) == _names_of(forward.__code__) for one in codes)
    return same and wrappers <= len(tree.decorator_list)


def _names_of(code: types.CodeType) -> Any:
    return (
        code.co_names,
        code.co_varnames,
        [_names_of(one) for one in code.co_consts if isinstance(one, types.CodeType)],
    )


def _calls(statement: ast.stmt, own: str) -> list[tuple[str, str]]:
    """What a statement always calls as `self.child(argument)`, in order: the child and the argument."""
    nodes = [*ast.walk(statement)]
    stores = any(isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) for one in nodes)  # in the argument
    if stores or not isinstance(statement, ast.Assign | ast.Return) or any(isinstance(one, _MAYBE) for one in nodes):
        return []
    calls: list[Any] = sorted((one for one in nodes if _is_call(one, own)), key=_place)
    return [(one.func.attr, one.args[0].id) for one in calls]


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_call(node: ast.AST, own: str) -> bool:
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return False
    is_child = isinstance(node.func, ast.Attribute) and _is_name(node.func.value, own)
    return is_child and isinstance(node.args[0], ast.Name)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _why_not(module: Any, group: _Group) -> str:
    """Why they aren't joined, by a try of both forwards, the new one with parts of one tensor; '' if they are."""
    layers = [module._modules[one] for one in group.names]
    if len({(one.in_features, one.bias is None, one.weight.dtype, one.weight.device) for one in layers}) > 1:
        return "their inputs, biases or types differ"
    forward: Any = type(module).forward
    given = layers[0].weight
    device = given.device
    sizes = [one.out_features for one in layers]
    x, y = _spread(given, layers[0].in_features), _spread(given, sum(sizes))
    try:
        made = []
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            parts = y.split(sizes, -1)
            for one, gives in (forward, [part.contiguous() for part in parts]), (_rewritten(forward, group), parts):
                tried = _without_trace(module, dict(zip(layers, gives, strict=True)))
                _generator(device).manual_seed(1)
                with torch.autocast(device.type, enabled=False):
                    made.append(_pytree.tree_leaves(one(tried, x)))
        torch.testing.assert_close(*made, check_stride=True)  # a caller may ask for a view
    except Exception as error:  # whatever else somebody's forward wants, or it can't take parts
        return f"its forward can't be tried with parts of one product: {type(error).__name__}"
    return ""


def _without_trace(module: nn.Module, gives: dict[nn.Module, Tensor]) -> Any:
    """A copy with the same weights and no hooks, in which layers give these parts. The module sees no call of it."""
    same = {id(one): one for one in module.parameters()}
    made = copy.deepcopy(module, {**same, **{id(layer): _Gives(part) for layer, part in gives.items()}})
    for one in made.modules():
        vars(one).update(training=False, **{name: {} for name in HOOKS})
    return made


def _spread(like: Tensor, size: int) -> Tensor:
    """Numbers from -1 to 1, as two times three rows."""
    return torch.linspace(-1, 1, 6 * size, device=like.device).to(like.dtype).view(2, 3, size)


def _generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator


class _Gives(nn.Module):
    """In the place of a layer in a try."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.y = y

    def forward(self, _input: Tensor) -> Tensor:
        return self.y


# ---- The forward with one call.


@cache
def _rewritten(wrapped: Any, group: _Group) -> Any:
    """A forward, decorators and all, in which `one_product` makes what these layers give."""
    forward: Any = inspect.unwrap(wrapped)
    tree: Any = copy.deepcopy(source_of(forward))  # it is shared
    own, argument, first, names = group
    targets = ", ".join(f"{_OURS}_{name}" for name in names)
    layers = ", ".join(f"{own}.{name}" for name in names)
    # An import, since a compiler looks for global names in the module that the forward is from.
    made = f"from {__name__} import one_product as {_OURS}\n{targets} = {_OURS}({argument}, {layers})"
    tree = _Replaced(group).visit(tree)
    tree.body[first:first] = [ast.copy_location(one, tree.body[first]) for one in ast.parse(made).body]
    for one in ast.walk(tree):
        if isinstance(one, ast.arg):
            one.annotation = None
    tree.returns = None
    ast.increment_lineno(ast.fix_missing_locations(tree), forward.__code__.co_firstlineno - 1)
    known: dict[str, Any] = {}
    exec(compile(ast.Module([tree], []), forward.__code__.co_filename, "exec"), forward.__globals__, known)
    rewritten = known[tree.name]
    rewritten.is_rewritten = True
    return rewritten


class _Replaced(ast.NodeTransformer):
    """Puts names in the place of calls."""

    def __init__(self, group: _Group) -> None:
        self._group = group

    def visit_Call(self, node: Any) -> ast.AST:
        if _is_call(node, self._group.own) and node.func.attr in self._group.names:
            return ast.copy_location(ast.Name(f"{_OURS}_{node.func.attr}", ast.Load()), node)
        return self.generic_visit(node)
