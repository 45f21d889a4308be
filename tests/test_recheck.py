"""The check of the timed calls, on a device whose graphs keep the memory of their outputs, as a GPU's do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.devices import Batch
from harness.devices.cpu import Cpu
from harness.measure import Sampler, measure
from harness.model import Cache, Case, Job, Measurement, Timer, Timing
from harness.ops import Context, Launch, Op, Tensor, Tensors
from harness.rotation import Call

PASSES = 3
pytestmark = pytest.mark.usefixtures("one_thread", "short_timing")
CASE = Case("twice", "candidate", "float32", (("N", 4096),), device="cpu")


class Graphs(Cpu):
    """A processor with graphs: a replay makes each call again, into the memory that its outputs had at the capture."""

    cache_bytes = 2**15

    def batch(self, calls: Sequence[Any], *, timer: Timer, seconds: float, **_: Any) -> Batch:
        assert timer == "graph"
        nodes = [(call, call()) for _ in range(PASSES if seconds else 1) for call in calls]

        def replay() -> None:
            for call, output in nodes:
                made = call.launch(call.tensors)
                if isinstance(output, torch.Tensor) and output is not made:
                    with torch.inference_mode():  # a graph asks for no mode
                        output.copy_(made)

        def run(count: int) -> list[float]:
            samples = []
            for _ in range(count):
                begin = time.perf_counter()
                replay()
                samples.append((time.perf_counter() - begin) / len(nodes))
            return samples

        return Batch(run, len(nodes), "graph", run(1)[0] * len(nodes), replay=replay)


def measured(
    launch: Callable[[Tensors], Any],
    *,
    inplace: bool = False,
    returns: bool = False,
    device: Cpu | None = None,
    cache: Cache = "cold",
) -> Measurement:
    sheet = Op(
        "twice",
        "y = 2 x, or x = 2 x",
        {"N": "elements"},
        inputs=(Tensor("x", ("N",), inplace=inplace),),
        outputs=() if inplace else (Tensor("y", ("N",)),),
        dtypes=("float32",),
        reference=lambda _, t: {"x" if inplace else "y": t.x.double() * 2},
    )

    @sheet.variant("candidate", "doubles", devices=("cpu",), returns=returns)
    def candidate(_: Context) -> Launch:
        return launch

    return measure(Job(replace(CASE, cache=cache), Timing(max_time=0.05)), sheet, device or Graphs())


def test_outputs_of_a_graph_are_looked_at_where_the_graph_left_them():
    """Calls that are made after the capture return tensors of their own."""
    found = measured(lambda t: t.x * 2, returns=True)
    assert (found.status, found.error, found.timer) == ("ok", None, "graph")


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_variant_may_be_in_any_mode_of_torch(mode):
    weight = torch.full((), 2.0, requires_grad=True)

    def launch(t: Tensors) -> torch.Tensor:
        with mode():
            return t.x * weight

    found = measured(launch, returns=True)
    assert (found.status, found.error) == ("ok", None)


def test_results_that_a_graph_keeps_are_found():
    kept: list[torch.Tensor] = []

    def launch(t: Tensors) -> torch.Tensor:
        if not kept:
            kept.append(t.x * 2)
        return kept[0].clone()

    assert measured(launch, returns=True).status == "wrong"


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_calls_that_go_on_from_the_last_one_are_followed(cache):
    """Also where all calls are on a single set of buffers."""
    found = measured(lambda t: t.x.mul_(2), inplace=True, cache=cache)
    assert (found.status, found.error) == ("ok", None)


@pytest.mark.parametrize("skipped", [0, 1, PASSES - 1])
def test_a_call_in_a_row_that_does_nothing_is_found(skipped):
    """Each replay has as many calls on a set; one of them is left out, from the second replay on."""
    made: dict[int, int] = {}

    def launch(t: Tensors) -> None:
        number = made[id(t)] = made.get(id(t), 0) + 1
        if number <= 2 * PASSES or number % PASSES != skipped:
            t.x.mul_(2)

    found = measured(launch, inplace=True)
    assert found.status == "wrong"
    assert "(found in the timed calls" in found.error


def test_a_call_that_is_always_wrong_after_others_on_the_same_buffers_is_found():
    """Another set, which gets as many calls, has the same values then."""
    made: dict[int, int] = {}

    def launch(t: Tensors) -> None:
        number = made[id(t)] = made.get(id(t), 0) + 1
        t.x.mul_(2 if number % PASSES else 3)

    found = measured(launch, inplace=True)
    assert found.status == "wrong"
    assert f"call {PASSES} on the same buffers: x: " in found.error


@pytest.mark.parametrize("every", [1, 2])
def test_work_that_is_done_after_the_call_is_found(every):
    """The first call is right, since its outputs are looked at when the device has done all that there is.

    A thread may be in time for some calls: here only every second call is late.
    """
    late: list[Callable[[], Any]] = []
    made = itertools.count()

    class Later(Graphs):
        def batch(self, calls: Sequence[Any], *, timer: Timer, **_: Any) -> Batch:
            return Batch(lambda n: [1e-6] * n, len(calls), "launch", 1e-6 * len(calls))

        def synchronize(self) -> None:
            while late:
                late.pop(0)()

    def launch(t: Tensors) -> None:
        late.append(lambda: t.y.copy_(t.x * 2))
        if next(made) % every:
            late.pop()()

    found = measured(launch, device=Later())
    assert found.status == "wrong"
    assert "outputs change after the call has returned" in found.error


@pytest.mark.parametrize("shares", [False, True])
def test_calls_of_a_graph_that_share_their_work_are_found(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    """Each set is called several times while the graph is made. Work is told by a clock of its own, 100 us a call."""
    monkeypatch.setattr("harness.measure._RECHECK_SHARE", 100.0)
    now = [0.0]
    kept: dict[int, torch.Tensor] = {}

    class Working(Graphs):
        clock = SimpleNamespace(mark=lambda: now[0], between=lambda marks: [marks[1] - marks[0]])

        def batch(self, calls: Sequence[Any], *, timer: Timer, **asked: Any) -> Batch:
            kept.clear()
            passes = PASSES if asked["seconds"] else 1
            nodes = [(call, launch(call.tensors)) for _ in range(passes) for call in calls]

            def replay() -> None:
                for _, node in nodes:
                    node()

            def run(count: int) -> list[float]:
                begin = now[0]
                for _ in range(count):
                    replay()
                return [(now[0] - begin) / count / len(nodes)] * count

            return Batch(run, len(nodes), "graph", run(1)[0] * len(nodes), replay=replay)

    def launch(t: Tensors) -> Callable[[], None]:
        """The node that a graph gets of a call."""
        is_done = shares and id(t) in kept
        kept[id(t)] = t.x

        def node() -> None:
            now[0] += 1e-6 if is_done else 1e-4
            if not is_done:
                t.y.copy_(t.x * 2)

        return node

    found = measured(lambda t: launch(t)(), device=Working())
    assert found.status == ("wrong" if shares else "ok"), found.error
    assert ("its calls share their work" in str(found.error)) is shares


def test_a_call_knows_what_it_returned_last():
    call = Call(lambda t: t.x + 1, Tensors(x=1))
    assert call.returned is None
    assert (call(), call.returned) == (2, 2)


@pytest.mark.parametrize(("fault", "told"), [("input", "the input x was changed"), ("type", "float64")])
def test_a_late_change_of_an_input_or_of_the_result_s_form_is_found(monkeypatch, fault, told):
    """Until the samples are taken all calls are right."""
    is_late: list[bool] = []
    sampled = Sampler.finish
    monkeypatch.setattr(Sampler, "finish", lambda *given: is_late.append(True) or sampled(*given))

    def launch(t: Tensors) -> torch.Tensor:
        y = t.x * 2
        if is_late and fault == "type":
            return y.double()
        if is_late:
            t.x.add_(1.0)
        return y

    found = measured(launch, returns=True, device=Cpu())
    assert found.status == "wrong"
    assert told in found.error
    assert "(found in the timed calls" in found.error
