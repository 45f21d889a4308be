"""Operations that follow each other in one module's forward, and run by one kernel of ours.

The forward is traced by torch.fx with the modules inside as they are; where the pattern is found, the same forward
with our function in its place becomes the module's. Only a forward whose every argument must be given is traced: what
depends on an argument that may be left out would be decided by the trace. `_traceable` says what else a trace lacks.

Ours gets the modules whose place it takes. Where one of them has become another one since, such as an adapter's, or has
got a hook, the modules are called.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from harness.collection.models.bert import BertOperators
from harness.collection.models.llama import LlamaOperators
from harness.collection.models.resnet import ResNetOperators
from harness.collection.models.swin import SwinOperators
from harness.collection.nn import _traceable
from harness.collection.nn._bert_operators import bert_operators
from harness.collection.nn._dropout import bias_dropout_residual, dropout_add
from harness.collection.nn._llama_operators import llama_operators
from harness.collection.nn._modules import BatchNormAddReLU
from harness.collection.nn._patched_modules import Found, is_watched, swap, untouchable
from harness.collection.nn._resnet_operators import resnet_operators
from harness.collection.nn._swin_operators import swin_operators

_OPERATORS: dict[type, Callable[[], Any]] = {
    SwinOperators: swin_operators,
    LlamaOperators: llama_operators,
    BertOperators: bert_operators,
    ResNetOperators: resnet_operators,
}
_RELUS = (functional.relu, torch.relu)
_ADDS = (operator.add, torch.add, "add")
_ADDS_IN_PLACE = (operator.iadd, "add_")
_FORWARDS: dict[Any, Callable[..., Any]] = {}
"""Forwards by their code: blocks that are alike share one, and so one class, which a compiler compiles once."""


def operators(model: nn.Module) -> Iterator[Found]:
    """Give the models of harness.collection.models our operators, if they have torch's."""
    made: dict[type, Any] = {}
    for name, module in list(model.named_modules()):
        given = getattr(module, "operators", None)
        make = _OPERATORS.get(type(given))
        if make and given == cast(Any, type(given))():
            module.operators = made.setdefault(type(given), make())
            yield name, type(module).__name__, "nn's operators", _undo_operators(module, given)


def _undo_operators(module: Any, given: Any) -> Callable[[], None]:
    def undo() -> None:
        module.operators = given

    return undo


# ---- Functions of ours in the place of several modules.


def bn_add_relu(norm: Any, relu: Any, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """Batch norm, the addition of a residual if there is one, and ReLU. relu: its module; None for the function."""
    fits = x.ndim == 4 and (residual is None or (residual.dtype == x.dtype and residual.shape == x.shape))
    if not (fits and is_plain(norm, nn.BatchNorm2d) and (relu is None or is_plain(relu, nn.ReLU))):
        y = norm(x)
        return (relu or functional.relu)(y if residual is None else y + residual)
    return BatchNormAddReLU.forward(norm, x, residual)


def dropout_and_add(dropped: Any, x: Tensor, residual: Tensor) -> Tensor:
    """Dropout of x, and the addition of a residual."""
    if residual.shape != x.shape or residual.dtype != x.dtype or not is_plain(dropped, nn.Dropout):
        return dropped(x) + residual
    return dropout_add(x, residual, dropped.p, dropped.training)


def dense_dropout_add(dense: Any, dropped: Any, x: Tensor, residual: Tensor) -> Tensor:
    """A linear layer, dropout, and the addition of a residual, which is rounded to the type of the product."""
    if not (is_plain(dense, nn.Linear) and is_plain(dropped, nn.Dropout)) or dense.bias is None:
        return dropout_and_add(dropped, dense(x), residual)
    product = functional.linear(x, dense.weight)
    if residual.shape != product.shape:
        return dropped(product + dense.bias.to(product.dtype)) + residual
    return bias_dropout_residual(product, dense.bias, residual.to(product.dtype), dropped.p, dropped.training)


def is_plain(module: Any, kind: type) -> bool:
    """Whether a module is torch's or ours of this kind, with its own forward, and nobody watches it."""
    own = type(module)
    is_kind = own is kind or (own.__base__ is kind and getattr(own, "is_ours", False))
    return is_kind and not is_watched(module) and "forward" not in module.__dict__


# ---- Where they fit.


class _Tracer(fx.Tracer):
    """Traces one module's forward: every module inside is called as it is."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 - torch calls it so
        return True


def blocks(model: nn.Module) -> Iterator[Found]:
    """Swap what fits in each module's forward; say why where it might have fitted, and doesn't."""
    for name, module in list(model.named_modules()):
        children = [*module.children()]
        pairs = {nn.BatchNorm2d: "batch norm and ReLU", nn.Dropout: "dropout and addition"}
        present = [told for kind, told in pairs.items() if any(type(child) is kind for child in children)]
        is_ours = getattr(type(module), "is_ours", False)
        if not present or is_ours or isinstance(module, nn.ModuleList | nn.ModuleDict):
            continue
        was = type(module).__name__
        why = untouchable(module) or _why_not_traced(module) or _traceable.why_not(module)
        if why:
            yield name, f"{' and '.join(present)} in {was}", why, None
            continue
        try:
            graph, found = _rewritten(module)
        except Exception as error:  # torch.fx raises many kinds for what it can't trace
            told = str(error) if isinstance(error, _OtherwiseError) else type(error).__name__
            yield name, f"{' and '.join(present)} in {was}", f"torch.fx can't trace it ({told})", None
            continue
        if found:
            forward = _forward(graph)
            if type(module).forward is nn.Sequential.forward:
                forward = _of_these(tuple(module._modules), forward)
            undo = swap(module, forward)
            for now in sorted(set(found)):
                yield name, was, f"nn.{now}", undo


def _why_not_traced(module: nn.Module) -> str:
    """Why a forward isn't traced; '' if it is."""
    given = [*inspect.signature(type(module).forward).parameters.values()][1:]
    if any(one.kind not in (one.POSITIONAL_OR_KEYWORD, one.POSITIONAL_ONLY) for one in given):
        return "its forward takes any number of arguments"
    return "" if all(one.default is one.empty for one in given) else "its forward has arguments that may be left out"


class _OtherwiseError(Exception):
    """A forward depends on more than its input."""


def _rewritten(module: nn.Module) -> tuple[Any, list[str]]:
    """The module's forward as a graph with ours in it, and what of ours is in it."""
    before = module.training
    graphs = []
    try:
        for training in (not before, before):
            module.training = training
            graphs.append(_Tracer().trace(module))
    finally:
        module.training = before
    if str(graphs[0]) != str(graphs[1]):
        raise _OtherwiseError("it does other things in training")
    graph = graphs[1]
    found = [name for node in list(graph.nodes) if (name := _relu(graph, module, node) or _add(graph, module, node))]
    return graph, found


def _relu(graph: Any, module: nn.Module, node: Any) -> str:
    """Put ours in the place of batch norm and ReLU, if the node is such a ReLU."""
    is_module = node.op == "call_module" and type(module.get_submodule(node.target)) is nn.ReLU
    if not (is_module or (node.op == "call_function" and node.target in _RELUS)) or _watched(module, node):
        return ""
    before = node.args[0]
    terms = before.args[:2] if _is_add(before) and len(before.users) == 1 else (before,)
    norm = next((one for one in terms if _is(module, one, nn.BatchNorm2d) and len(one.users) == 1), None)
    if len(terms) == 2 and not _keeps(before, norm):
        return ""
    if norm is None or module.get_submodule(norm.target).momentum is None:
        return ""
    residual = next((one for one in terms if one is not norm), None)
    if len(terms) == 2 and not isinstance(residual, fx.Node):
        return ""
    relu = node.target if is_module else None
    _put(graph, node, bn_add_relu, (norm.target, relu), (norm.args[0], *([] if residual is None else [residual])))
    return "batch_norm_add_relu"


def _add(graph: Any, module: nn.Module, node: Any) -> str:
    """Put ours in the place of dropout and an addition, and of a linear layer before them."""
    if not _is_add(node):
        return ""
    terms = node.args[:2]
    dropped = next((one for one in terms if _is(module, one, nn.Dropout) and len(one.users) == 1), None)
    residual = next((one for one in terms if one is not dropped), None)
    if dropped is None or residual is None or not _keeps(node, dropped) or module.get_submodule(dropped.target).inplace:
        return ""
    dense = dropped.args[0]
    if _is(module, dense, nn.Linear) and len(dense.users) == 1 and module.get_submodule(dense.target).bias is not None:
        _put(graph, node, dense_dropout_add, (dense.target, dropped.target), (dense.args[0], residual))
        return "bias_dropout_residual"
    _put(graph, node, dropout_and_add, (dropped.target,), (dense, residual))
    return "dropout_add"


def _is_add(node: Any) -> bool:
    if not isinstance(node, fx.Node) or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return False
    is_call = node.op in ("call_function", "call_method")
    return is_call and node.target in (*_ADDS, *_ADDS_IN_PLACE) and len(node.args) == 2


def _keeps(node: Any, fresh: Any) -> bool:
    """Whether an addition changes nothing but `fresh`, which nothing else has. The other term may have other names."""
    return node.target not in _ADDS_IN_PLACE or node.args[0] is fresh


def _is(module: nn.Module, node: Any, kind: type) -> bool:
    """Whether a node calls a module of exactly this class that nobody watches."""
    called = isinstance(node, fx.Node) and node.op == "call_module" and len(node.args) == 1 and not node.kwargs
    return called and type(module.get_submodule(node.target)) is kind and not _watched(module, node)


def _watched(module: nn.Module, node: Any) -> bool:
    """Whether the module that a node calls has hooks, which nobody would call any more."""
    inner = module.get_submodule(node.target) if node.op == "call_module" else None
    return inner is not None and is_watched(inner)


def _put(
    graph: Any, node: Any, ours: Callable[..., Any], targets: tuple[str | None, ...], given: tuple[Any, ...]
) -> None:
    with graph.inserting_before(node):
        inner = [target and graph.get_attr(target) for target in targets]
        made = graph.call_function(ours, (*inner, *given))
    node.replace_all_uses_with(made)
    # What only the replaced nodes used is called no more: the nodes between them and what ours is given.
    unused = [node]
    for one in unused:
        inputs = one.all_input_nodes
        graph.erase_node(one)
        unused += [other for other in inputs if not other.users and other not in given]


def _forward(graph: Any) -> Callable[..., Any]:
    """The function that torch.fx writes for a graph."""
    code = graph.python_code("self")
    key = code.src, tuple(sorted((name, id(value)) for name, value in code.globals.items()))
    if key not in _FORWARDS:
        names = dict(code.globals)
        exec(code.src, names)
        _FORWARDS[key] = names["forward"]
    return _FORWARDS[key]


@cache
def _of_these(names: tuple[str, ...], forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of a sequence that had these modules. One that was cut since, or has grown, has torch's."""

    def of_these(self: Any, input: Any) -> Any:
        return forward(self, input) if tuple(self._modules) == names else nn.Sequential.forward(self, input)

    return of_these
