"""A case whose timed calls are checked, with a clock, buffers and a device that tests move."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from harness.devices import Batch
from harness.ranks import ALONE
from harness.recheck import Recheck

US = 1e-6


class Now:
    """The time, which passes only where a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class Rotation:
    """Sets of buffers, of which nothing is known but what was done with them. renewal: seconds that a renewal takes."""

    def __init__(self, now: Now, count: int, renewal: float) -> None:
        self.calls = [SimpleNamespace(tensors=place, returned=None) for place in range(count)]
        self.is_renewable = True
        self.done: list[tuple[str, Any]] = []
        self._now, self._renewal = now, renewal
        self.is_new = True

    def renew(self, places: Sequence[int], *, anew: bool = True) -> None:
        self.done.append(("renew" if anew else "leave", [*places]))
        self.is_new = anew
        self._now.seconds += self._renewal

    def poison(self, places: Sequence[int]) -> None:
        self.done.append(("poison", [*places]))

    def is_poisoned(self, place: int) -> bool:
        return place not in self.written

    def chosen(self, most: int) -> list[int]:
        self.done.append(("chosen", most))
        return [*range(len(self.calls))][:most]

    written: tuple[int, ...] = ()


class Device:
    """A device whose calls take what `call` says: seconds, by whether their inputs are new, and the round."""

    on_host = False

    def __init__(self, now: Now, rotation: Rotation, call: Callable[[bool, int], float]) -> None:
        self._now, self._rotation, self._call = now, rotation, call
        self.clock = self
        self.batches: list[int] = []

    def batch(self, calls: Sequence[Any], *, keep: int, seconds: float, **_: Any) -> Batch:
        assert (keep, seconds) == (len(calls), 0.0)
        self.batches.append(len(calls))
        made = {True: 0, False: 0}

        def replay() -> None:
            is_new = self._rotation.is_new
            self._now.seconds += len(calls) * self._call(is_new, made[is_new])
            made[is_new] += 1

        return Batch(lambda _: [], len(calls), "graph", 0.0, replay=replay)

    def mark(self) -> float:
        return self._now.seconds

    def between(self, marks: Sequence[float]) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(marks)]

    def synchronize(self) -> None:
        self.waited += 1

    waited = 0


class Setting:
    """A case whose calls were timed by a graph of `passes` over `sets`, each of 10 us, and its check."""

    def __init__(
        self, call: Callable[[bool, int], float], *, sets: int = 4, passes: int = 1, each: float = 10 * US, **said: Any
    ) -> None:
        self.now = Now()
        self.rotation = Rotation(self.now, sets, said.get("renewal", 0.0))
        self.device = Device(self.now, self.rotation, call)
        self.graph: Iterator[float] = iter(said.get("graph", ()))
        inputs = [SimpleNamespace(inplace=False), SimpleNamespace(inplace=said.get("inplace", False))]
        op = SimpleNamespace(inputs=inputs, outputs=(), variants={"v": SimpleNamespace(inputs=None)})
        op.recheck = None
        ctx = SimpleNamespace(op=op, case=SimpleNamespace(variant="v"), group=said.get("group", ALONE))
        count = sets * passes
        replay = self._replay if said.get("replay", True) else None
        batch = Batch(lambda _: [], count, "graph", each * count, replay=replay)
        self.recheck = Recheck(ctx, self.rotation, batch, self.device)

    def _replay(self) -> None:
        self.now.seconds += next(self.graph)

    @property
    def rounds(self) -> int:
        """How many rounds were made: of calls on new inputs, and of calls on inputs that they had seen."""
        return sum(word == "leave" for word, _ in self.rotation.done)
