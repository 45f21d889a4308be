"""Records programs in the process that it is, and prints what is in their traces: `steps_recorded.py FOLDER`.

Such a process isn't forked from another: torch's profiler, started several times, can crash in a forked one.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

from harness.profile import torch as tool
from harness.profile._steps import Window, recording

WINDOWS = [(Window(4, 2), 9), (Window(4, 9), 7), (Window(0, 2), 5), (Window(4, 2), 3), (Window(4, 2), 0)]


def train(steps: int) -> None:
    """A product in each step of an optimizer, beside another optimizer that makes two steps each time."""
    weight, other = torch.ones(8, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    first, second = torch.optim.SGD([weight]), torch.optim.SGD([other])
    for _ in range(steps):
        weight.grad, other.grad = weight.detach() @ weight.detach(), torch.ones(8)
        first.step()
        second.step()
        second.step()


def products(trace: Path) -> int:
    return {kernel.name: kernel.count for kernel in tool.timeline(trace).kernels}.get("aten::mm", 0)


def nested(trace: Path) -> list[int]:
    """The products that a program's own profilers see, and then the products in our trace."""
    counts = []
    with recording(trace, Window(90, 5)):
        train(5)
        for _ in range(2):
            train(1)
            with torch.profiler.profile() as own:
                train(2)
            counts.append(sum(event.name == "aten::mm" for event in own.events() or ()))
        with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1)) as own:
            for _ in range(4):
                train(1)
                own.step()
        train(3)
    return [*counts, products(trace)]


def threads(folder: Path) -> list[int]:
    """The products that a profiler sees in a thread which trains, and that ours sees of the program's first thread."""
    counts = []

    def profiled() -> None:
        with torch.profiler.profile() as own:
            train(3)
        counts.append(sum(event.name == "aten::mm" for event in own.events() or ()))

    for number, target in enumerate((lambda: train(9), profiled)):
        trace = folder / f"thread{number}.json"
        with recording(trace, Window(2, 2)):
            train(1)
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        counts.append(products(trace) if trace.exists() else -1)
    return counts


def main(folder: Path) -> None:
    found = []
    for number, (window, steps) in enumerate(WINDOWS):
        with recording(folder / f"{number}.json", window):
            train(steps)
        found.append(products(folder / f"{number}.json"))
    print(json.dumps({"windows": found, "nested": nested(folder / "nested.json"), "threads": threads(folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
