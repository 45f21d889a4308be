"""AdamW: one kernel updates all parameters of a type and group. Everything that changes in a step is on the device."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter, is_
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from harness.collection.nn._kernels import capturing, of_lists, on
from harness.collection.nn._operators import are_distributed
from harness.collection.nn._pieces import PieceLayout, PieceTable, table_for
from harness.collection.nn._unscale import are_dense, is_dense, type_of
from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.lists import adamw
from harness.collection.ops.lists._tables import BLOCK

# To map these over a list takes less time than a loop.
_is_contiguous, _form = Tensor.is_contiguous, attrgetter("dtype", "layout")
_OPTIONS = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
_STATE = ("exp_avg", "exp_avg_sq", "master")
_TABLES = 64  # that an optimizer keeps: one for each set of parameters that had gradients together, the last ones


@dataclass(frozen=True, slots=True)
class _Batch:
    """Parameters of a group that are updated together: of one type and device, and at the same step.

    weights: the parameters, or their masters in float32, which `copies` (the parameters) are rounded from.
    """

    weights: list[Tensor]
    grads: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    copies: list[Tensor]
    step: Tensor

    @property
    def lists(self) -> tuple[list[Tensor], ...]:
        """The lists in the order of the kernel's table."""
        return self.weights, self.grads, self.means, self.squares, self.copies


class _Known:
    """The batch of all parameters of a group, at their last step. The next step most likely has the same ones."""

    def __init__(self, params: list[Tensor], states: list[dict[str, Any]], batch: _Batch) -> None:
        self._params, self._states, self._dtype = params, states, params[0].dtype
        self._batch = replace(batch, grads=[])  # gradients are freed where users say so

    def again(self, params: list[Tensor], grads: list[Tensor], states: list[dict[str, Any] | None]) -> _Batch | None:
        """The batch of a step; None if anything is not as it was, or if gradients don't lie as the parameters do."""
        if not (_same(params, self._params) and _same(states, self._states) and self._stands()):
            return None
        if {*map(_form, grads)} != {(self._dtype, torch.strided)}:
            return None
        if not (all(map(_is_contiguous, params)) and all(map(_is_contiguous, grads))):
            return None
        return replace(self._batch, grads=grads)

    def _stands(self) -> bool:
        """Whether the states have the tensors that they had."""
        batch, states = self._batch, self._states
        lists = ("exp_avg", batch.means), ("exp_avg_sq", batch.squares), ("step", [batch.step] * len(states))
        masters = [("master", batch.weights)] if batch.copies else []
        return all(_same([own[name] for own in states], tensors) for name, tensors in (*lists, *masters))


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter, 2019) with the arguments of torch.optim.AdamW, but for amsgrad and differentiable.

    lr: learning rate, a number or a tensor of one element; a graph keeps the rate that it was captured with. A rate on
    the GPU is read when it has changed, for which the host waits. betas, eps, weight_decay, maximize: as in torch.
    foreach, fused, capturable: accepted, and without meaning, since steps are always fused and can always be captured.
    The state has torch's names, so either may load what the other has saved. Parameters in halves have masters in
    float32, and moments in float32: torch has neither. Of distributed parameters (FSDP2) each rank updates its shards.

    With a GradScaler (ours or torch's) a step with an overflow is skipped on the device, so the host doesn't wait for
    the flag. As torch's fused optimizers do, a step reads `grad_scale` and `found_inf`, where a scaler leaves the scale
    and the flag. It divides gradients by the scale in float32, so that gradients in halves lose nothing; what the
    parameters have as `grad` stays as it was. The number of the step lies on the device, too: capture a whole step once
    step() has been called outside of the graph. Parameters of a CPU or in float64 are updated by torch's operators.
    Raises ValueError for settings out of range, and for amsgrad and differentiable, also of a saved AdamW;
    RuntimeError for foreach together with fused, sparse gradients, complex parameters, gradients of another type than
    the parameter's, and a graph that is captured with a rate on the GPU.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = nn.AdamW([weight], lr=0.5, weight_decay=0.0)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> weight
    tensor([0.5000, 0.5000], requires_grad=True)
    """

    _step_supports_amp_scaling = True

    def __init__(  # noqa: PLR0913, PLR0917 - torch's arguments in torch's order
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        self._tables: dict[Any, PieceTable] = {}
        self._known: dict[int, _Known] = {}
        self._rates: dict[int, tuple[Tensor, int, float]] = {}
        numbers = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options = dict(zip(_OPTIONS, (amsgrad, maximize, foreach, capturable, differentiable, fused), strict=True))
        # Torch's name for the decay of AdamW, where its Adam has another one.
        super().__init__(params, {**numbers, **options, "decoupled_weight_decay": True})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own, as torch does. Raises what the class raises for settings."""
        check_settings({**self.defaults, **param_group})
        super().add_param_group(param_group)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; return what `closure`, which is called first, gives."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        scale: Tensor | None = getattr(self, "grad_scale", None)
        for group in self.param_groups:
            params, known, settings = group["params"], self._known.get(id(group)), self._settings(group)
            grads = [param.grad for param in params]
            if NoneType in {*map(type, grads)}:
                params = [param for param in params if param.grad is not None]
                grads = [param.grad for param in params]
            again = known and known.again(params, grads, list(map(self.state.get, params)))
            for batch in [again] if again else self._batches(group, params):
                device = batch.step.device
                skip, divisor = (None if one is None else one.to(device, torch.float32) for one in (found_inf, scale))
                if group["maximize"]:
                    sign = torch.full((), -1.0, dtype=torch.float32, device=device)
                    divisor = sign if divisor is None else -divisor
                self._update(settings, batch, skip, divisor)
        return loss

    def _settings(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with its rate as a number. A rate on a GPU is read again if it was written since."""
        rate = group["lr"]
        if not isinstance(rate, Tensor):
            return group
        known = self._rates.get(id(group))
        if rate.is_cuda and capturing():
            raise RuntimeError(
                "lr is a tensor on the GPU, and a graph of harness.nn.AdamW can't follow it: give a number and capture "
                "again when it changes, or use torch.optim.AdamW(fused=True, capturable=True)"
            )
        if known is None or known[0] is not rate or known[1] != rate._version:
            known = self._rates[id(group)] = rate, rate._version, float(rate)
        return {**group, "lr": known[2]}

    def state_dict(self) -> dict[str, Any]:
        """Everything to be saved. Here each parameter has a number of the step of its own, as torch wants it."""
        packed: dict[str, Any] = super().state_dict()
        apart = {name: {**own, "step": own["step"].clone()} for name, own in packed["state"].items()}
        return packed | {"state": apart}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what state_dict() of this class or of torch.optim.AdamW gave; moments of halves stay float32."""
        super().load_state_dict(state_dict)
        names = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        own = chain.from_iterable(group["params"] for group in self.param_groups)
        for name, param in zip(names, own, strict=True):
            given = state_dict["state"].get(name, {})
            for key in _STATE:
                if key in given:
                    self.state[param][key] = _as_state(param, given[key])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._tables, self._known, self._rates = {}, {}, {}
        for group in self.param_groups:
            for option in _OPTIONS:
                group.setdefault(option, self.defaults.get(option))
            check_settings(group)
            shared: dict[Any, Tensor] = {}
            for param in group["params"]:
                if param in self.state:
                    own = self.state[param]
                    number = float(own["step"])
                    key = param.device, param.dtype, number
                    own["step"] = shared.setdefault(key, _number_of_step(param, number))

    # ---- What is updated together.

    def _batches(self, group: dict[str, Any], params: list[Tensor]) -> Iterator[_Batch]:
        self._begin(params)
        self._known.pop(id(group), None)
        members = Counter(id(self.state[param]["step"]) for param in group["params"] if param in self.state)
        together: dict[int, list[Tensor]] = {}
        for param in params:
            together.setdefault(id(self.state[param]["step"]), []).append(param)
        for key, some in together.items():
            step = self.state[some[0]]["step"]
            if len(some) < members[key]:
                # The other parameters have no gradient this time, so their number stays.
                step = step.clone()
                for param in some:
                    self.state[param]["step"] = step
            batch = self._batch(some, step)
            if are_distributed(some):
                yield _of_this_rank(batch)
                continue
            if len(some) == len(params) and all(map(_is_contiguous, params)):
                self._known[id(group)] = _Known(params, [self.state[param] for param in params], batch)
            yield batch

    def _begin(self, params: list[Tensor]) -> None:
        """Make the state of parameters that have none. Parameters of one device and type count their steps together."""
        steps: dict[Any, Tensor] = {}
        for param in params:
            _check(param)
            own = self.state[param]
            if not own:
                key = param.device, param.dtype
                own["step"] = steps.setdefault(key, _number_of_step(param, 0.0))
                for name in ("exp_avg", "exp_avg_sq"):
                    own[name] = torch.zeros_like(param, dtype=_wide(param))
            if param.dtype != _wide(param) and "master" not in own:
                own["master"] = param.detach().to(_wide(param))
            if own["exp_avg"].stride() != param.stride() and is_dense(param):
                # Kernels go through memory, and the parameter has got another order since the last step.
                own.update({name: _as_state(param, own[name]) for name in _STATE if name in own})

    def _batch(self, params: list[Tensor], step: Tensor) -> _Batch:
        states = [self.state[param] for param in params]
        has_masters = params[0].dtype != _wide(params[0])
        return _Batch(
            weights=[own["master"] for own in states] if has_masters else params,
            grads=[_as_laid_out(param, param.grad) for param in params if param.grad is not None],
            means=[own["exp_avg"] for own in states],
            squares=[own["exp_avg_sq"] for own in states],
            copies=params if has_masters else [],
            step=step,
        )

    # ---- Updates. skip: 1 if nothing shall change. scale: what gradients are to be divided by. Both are on the device
    #      of the parameters.

    def _update(self, group: dict[str, Any], batch: _Batch, skip: Tensor | None, scale: Tensor | None) -> None:
        first = batch.weights[0]
        if first.is_cuda and first.dtype == torch.float32 and are_dense(batch.copies or batch.weights):
            with on(first.device):
                self._by_kernel(group, batch, skip, scale)
        elif skip is None or not bool(skip):
            batch.step.add_(1)
            _by_torch(group, batch, scale)

    def _by_kernel(self, group: dict[str, Any], batch: _Batch, skip: Tensor | None, scale: Tensor | None) -> None:
        table = self._table(batch)
        for column, tensors in enumerate(batch.lists):
            if tensors:
                table.point(column, tensors)
        wanted = None if skip is None else skip.view(()) == 0
        table.only_if(wanted)
        batch.step.add_(1 if wanted is None else wanted)
        macros: dict[str, str | int] = {
            "SCALAR": CUDA_TYPE[type_of(batch.grads[0])],
            "COPY": int(bool(batch.copies)),
            "FOURS": adamw.ELEMENTS // 4,
            # Without a scale it is the kernel that the catalogue measures.
            **({} if scale is None else {"SCALED": 1}),
        }
        kernel, layout = of_lists(adamw.OP, macros), table.layout
        kernel(layout.blocks, BLOCK, table.rows, batch.step, ctypes.c_uint32(layout.whole), *_numbers(group), scale)
        # A backward that comes later must not take these parameters for the parameters that its forward had.
        increment_version(batch.copies or batch.weights)

    def _table(self, batch: _Batch) -> PieceTable:
        """The table of these parameters."""
        counts = list(map(Tensor.numel, batch.weights))
        # A parameter may be freed, and another one get its id; or it may get memory of another size.
        key = tuple(map(id, batch.weights)), tuple(counts)
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= _TABLES:
                del self._tables[next(iter(self._tables))]
            layout = PieceLayout(counts, [0] * len(counts), BLOCK * adamw.ELEMENTS, batch.step.device, shift=0)
            table = self._tables[key] = layout.table(len(batch.lists))
        return table_for(table.layout, len(batch.lists), lambda: table)


def _of_this_rank(batch: _Batch) -> _Batch:
    """What this rank has of the tensors of a batch."""
    lists = [[one.to_local() if are_distributed((one,)) else one for one in each] for each in batch.lists]
    weights, grads, means, squares, copies = lists
    return _Batch(weights, grads, means, squares, copies, batch.step)


def _check(param: Tensor) -> None:
    """Raise RuntimeError for a parameter or a gradient that steps can't be made with."""
    grad = param.grad
    if grad is not None and grad.is_sparse:
        raise RuntimeError("harness.nn.AdamW takes no sparse gradients; make them dense, or use torch's SparseAdam")
    if param.is_complex():
        raise RuntimeError("harness.nn.AdamW takes no complex parameters; use torch's AdamW for them")
    if grad is not None and grad.dtype != param.dtype:
        raise RuntimeError(f"a parameter in {param.dtype} has a gradient in {grad.dtype}; make them alike")


def check_settings(group: dict[str, Any]) -> None:
    """Raise ValueError or RuntimeError for settings that AdamW doesn't take."""
    for name in ("lr", "eps", "weight_decay"):
        number = group[name]
        if name == "lr" and isinstance(number, Tensor) and number.numel() == 1:
            number = float(number)
        if not isinstance(number, int | float) or not number >= 0:
            raise ValueError(f"{name} is {number!r}; it must be a number of 0 or more")
    if not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in group["betas"]):
        raise ValueError(f"betas are {group['betas']}; each must be a number of at least 0, and less than 1")
    for name in ("amsgrad", "differentiable"):
        if group[name]:
            raise ValueError(f"harness.nn.AdamW has no {name}: leave it out, or use torch.optim.AdamW")
    if group["foreach"] and group["fused"]:
        raise RuntimeError("foreach and fused can't both be True, as in torch: leave one out")


def _wide(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _number_of_step(param: Tensor, number: float) -> Tensor:
    """The number of a step as the kernel reads it: float32, whatever torch's default type is."""
    return torch.full((), number, dtype=torch.float32, device=param.device)


def _as_laid_out(param: Tensor, tensor: Tensor) -> Tensor:
    """The tensor with its elements in the order of the parameter's memory, and on the ranks of the parameter."""
    if are_distributed((param, tensor)) and tensor.placements != param.placements:
        tensor = tensor.redistribute(placements=param.placements)
    if tensor.stride() == param.stride():
        return tensor
    return torch.empty_like(param, dtype=tensor.dtype).copy_(tensor)


def _as_state(param: Tensor, given: Tensor) -> Tensor:
    """A copy of a saved tensor of the state, as this class has it."""
    return torch.empty_like(param, dtype=_wide(param)).copy_(given)


def _numbers(group: dict[str, Any]) -> list[ctypes.c_float]:
    """The kernel's settings: rate, decay, the betas as float32 and their logarithms, epsilon."""
    rate, betas = group["lr"], [ctypes.c_float(beta).value for beta in group["betas"]]
    logarithms = [math.log(beta) if beta else -math.inf for beta in betas]
    numbers = rate, rate * group["weight_decay"], *betas, *logarithms, group["eps"]
    return [ctypes.c_float(number) for number in numbers]


def _by_torch(group: dict[str, Any], batch: _Batch, scale: Tensor | None) -> None:
    """The same by torch's operators, tensor by tensor. The host waits for the number of the step."""
    rate, (beta1, beta2), step = group["lr"], group["betas"], float(batch.step)
    first, second = 1 - beta1**step, math.sqrt(1 - beta2**step)
    for weight, given, mean, square in zip(*batch.lists[:4], strict=True):
        grad = given.to(weight.dtype) if scale is None else given.to(weight.dtype) / scale
        weight.mul_(1 - rate * group["weight_decay"])
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        weight.addcdiv_(mean, (square.sqrt() / second).add_(group["eps"]), value=-rate / first)
    for copy, weight in zip(batch.copies, batch.weights, strict=False):
        copy.copy_(weight)
