"""What every benchmark shares: arguments, the machine's line, rounds, medians and the last line of figures.

It never talks to a server or a database itself (that is `lab.py`). Its invariant: a figure is written only from rounds in which the
sides took turns, so a noisy machine hits both; a broken promise makes the exit status 1, a missed bar only when the run is full.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import uvloop

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Sample:
    """One side's turn in one round."""

    acknowledged: int
    seconds: float
    latencies: list[float] = field(default_factory=list)  # seconds per request
    cpu: dict[str, float] = field(default_factory=dict)  # seconds of CPU per kind of process

    @property
    def rate(self) -> float:
        return self.acknowledged / self.seconds if self.seconds > 0 else 0.0


Side = Callable[[], Awaitable[Sample]]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values don't exceed; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def thousands(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


class Report:
    """Collects figures, bars and promises; `finish` prints them and says how the process should exit."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.figures: dict[str, float] = {}
        self.bars: dict[str, tuple[float, float | None, bool]] = {}
        self.broken: list[str] = []
        self.options = options

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def figure(self, name: str, value: float) -> None:
        self.figures[name] = float(f"{value:.4g}")

    def bar(self, name: str, least: float | None, goal: float | None = None, most: bool = False) -> None:
        """Declare the bar of a figure: at least (or with `most`, at most) that much."""
        if least is not None:
            self.bars[name] = (least, goal, most)

    def promise(self, kept: bool, text: str) -> None:
        if not kept:
            self.broken.append(text)
            self.say(f"  BROKEN PROMISE: {text}")

    def finish(self) -> int:
        self.say()
        missed = []
        for name, value in self.figures.items():
            if name not in self.bars:
                self.say(f"  {name:38} {value:>12,.4g}")
                continue
            least, goal, most = self.bars[name]
            kept = value <= least if most else value >= least
            if not kept:
                missed.append(name)
            told = f"bar {'≤' if most else '≥'} {least:g}" + (f", goal {goal:g}" if goal is not None else "")
            self.say(f"  {name:38} {value:>12,.4g}   {told}   {'kept' if kept else 'MISSED'}")
        for text in self.broken:
            self.say(f"  BROKEN PROMISE: {text}")
        if missed and self.options.quick:
            self.say("  (bars hold for the full run; this was --quick)")
        if self.options.json:
            print(json.dumps({"figures": self.figures}), flush=True)
        return 1 if self.broken or (missed and not self.options.quick) else 0


def arguments(description: str, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """The options that every script takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="at most 60 s once the peers are installed")
    parser.add_argument("--json", action="store_true", help='the last line is {"figures": {name: number, …}}')
    parser.add_argument("--rounds", type=int, default=None, help=f"turns of each side (default {rounds}, quick: fewer)")
    parser.add_argument("--seconds", type=float, default=None, help=f"length of one turn (default {seconds:g}, quick: shorter)")
    parser.add_argument("--no-profile", action="store_true", help="don't keep a profile of the server in benchmarks/profiles")
    parser.set_defaults(default_rounds=rounds, default_seconds=seconds)
    return parser


def parsed(parser: argparse.ArgumentParser, quick_rounds: int, quick_seconds: float) -> argparse.Namespace:
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = quick_rounds if options.quick else options.default_rounds
    if options.seconds is None:
        options.seconds = quick_seconds if options.quick else options.default_seconds
    return options


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine_lines(database: str, peers: Sequence[str] = ()) -> list[str]:
    """What a reader must know before believing a figure."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    packages = ", ".join(f"{name} {installed(name)}" for name in ("queenmq", "asyncpg", "uvloop", "uvicorn", "httptools", "msgspec"))
    return [
        f"machine: {os.cpu_count()} × {model}, {memory:.0f} GB, {platform.system()} {platform.release()}; load {load}",
        f"versions: Python {platform.python_version()}, {database}, {packages}",
        *([f"peers: {', '.join(peers)}"] if peers else []),
    ]


async def interleave(sides: dict[str, Side], rounds: int) -> dict[str, list[Sample]]:
    """Each round gives every side one turn; the order turns round from one round to the next."""
    taken: dict[str, list[Sample]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            gc.collect()
            taken[name].append(await sides[name]())
    return taken


def ratio(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    """The median over the rounds of ours by theirs: each pair ran side by side in time."""
    return median([mine.rate / other.rate for mine, other in zip(ours, theirs, strict=True) if other.rate > 0])


def describe(name: str, samples: Sequence[Sample]) -> str:
    rates = [sample.rate for sample in samples]
    latencies = [value for sample in samples for value in sample.latencies]
    done = sum(sample.acknowledged for sample in samples)
    cpu: dict[str, float] = {}
    for sample in samples:
        for kind, seconds in sample.cpu.items():
            cpu[kind] = cpu.get(kind, 0.0) + seconds
    spent = ", ".join(f"{kind} {1e6 * seconds / max(done, 1):.1f}" for kind, seconds in cpu.items())
    return (
        f"  {name:10} {thousands(median(rates)):>10}/s  (rounds {' '.join(thousands(rate) for rate in rates)})  "
        f"p50 {1e3 * percentile(latencies, 0.5):.2f} ms  p99 {1e3 * percentile(latencies, 0.99):.2f} ms"
        + (f"  CPU µs a message: {spent}" if spent else "")
    )


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of these processes, with the children they have reaped."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(value) for value in fields[11:15])
    return total / TICKS


def children(pid: int) -> list[int]:
    """The process and everything below it, as Linux tells it; elsewhere the process alone."""
    found, todo = [], [pid]
    while todo:
        current = todo.pop()
        found.append(current)
        try:
            for task in Path(f"/proc/{current}/task").glob("*/children"):
                todo.extend(int(child) for child in task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def main(run: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run a script's coroutine on uvloop and exit with what it returns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(run())
    sys.exit(status)
