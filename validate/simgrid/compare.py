#!/usr/bin/env python3
"""Compares fabricast with SimGrid: predicted time, processor time and memory of all_reduce on one switch.

    apt-get install g++ libsimgrid-dev
    cargo build --release
    python3 validate/simgrid/compare.py [--fabricast target/release/fabricast] [--runs 3] [--only ring,tree]

Every rank is a host with one GPU, connected to one switch by a link of 50 GB/s in each direction and 500 ns. fabricast
runs with the profile `ideal` (no software cost). SimGrid runs rings as one actor per rank, and trees as one actor per
connection that sends the transfers of fabricast's own schedule file (`fabricast schedule generate`); see replay.cpp. Both
simulate on one core. Prints two Markdown tables: predicted times, and the lowest processor time (user and system) among
the runs with its peak memory. Columns:

    fabricast             every operation simulated (`--no-fold`)
    fabricast folded      the same without `--no-fold`
    SimGrid               corrections for TCP off, rates of all flows updated at every event (`network/optim:Full`)
    SimGrid pipelined     the same, latencies as in fabricast: that of a message passes while the previous one of its
                          connection transfers its bytes (trees only: in a ring no message follows another)
    SimGrid lazy          as the first, with SimGrid's default `network/optim:Lazy`
    SimGrid defaults      SimGrid as it comes (model LV08)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

BANDWIDTH = 50e9
LATENCY = 500e-9
RANKS = (64, 256, 1024)
RING_BYTES = 1 << 20
TREE_BYTES = 64 << 20
TREE_CHUNK = 4 << 20

# SimGrid's model without its corrections for TCP: factors of 1, no window, no load of acknowledgements on the reverse
# direction. The precision resolves times below a picosecond.
CORRECTIONS_OFF = (
    "network/model:CM02",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "surf/precision:1e-15",
)
FULL_UPDATE = "network/optim:Full"
# Settings that change no prediction.
QUIET = ("--log=root.thres:error", "--cfg=contexts/stack-size:64")


COLUMNS = ("fabricast", "fabricast folded", "SimGrid", "SimGrid pipelined", "SimGrid lazy", "SimGrid defaults")


@dataclass
class Run:
    """Prediction of a simulator, and the processor time and peak memory of its process."""

    predicted_us: float
    processor_s: float
    memory_mb: float


def write_fabric(path: Path, ranks: int) -> None:
    last = ranks - 1
    path.write_text(f"""name = "switch{ranks}"

[[node]]
id = "gpu[0-{last}]"
kind = "gpu"
host = "h[0-{last}]"
compute_capability = 90

[[node]]
id = "sw"
kind = "switch"

[[link]]
a = "gpu[0-{last}]"
b = "sw"
kind = "ethernet"
bandwidth = "{BANDWIDTH / 1e9:g} GB/s"
latency = "{LATENCY * 1e9:g} ns"
""")


def walk(value: int | list[int], step: int) -> int:
    """Returns the value of a walk at a step: `base + ((start + step·i) mod modulus)·stride`."""
    if isinstance(value, int):
        return value
    base, start, increment, modulus, stride = value
    position = start + increment * step
    return base + (position % modulus if modulus else position) * stride


def chunk_sizes(layout: list[dict]) -> list[int]:
    """Returns the bytes of every chunk of a schedule."""
    sizes = []
    for segment in layout:
        size, rest = divmod(segment["bytes"], segment["parts"])
        assert rest == 0, "chunks of a segment differ in size"
        sizes += [size] * segment["parts"]
    return sizes


def flatten(schedule: dict) -> list[str]:
    """Returns the transfers of a schedule in the format of replay.cpp.

    Operations that move no data between ranks have no cost in the profile `ideal`: a transfer depends on the transfers
    before them.
    """
    programs = schedule["programs"]
    sizes = chunk_sizes(schedule["layout"])

    transfers: dict[tuple[int, int, int], int] = {}
    for rank, runs in enumerate(programs):
        for index, run in enumerate(runs):
            is_put = run["kind"] in ("put", "put_reduce", "put_reduce_input")
            assert is_put or run["kind"] in ("reduce", "copy"), run["kind"]
            for step in range(run["len"] if is_put else 0):
                transfers[rank, index, step] = len(transfers)

    resolved: dict[tuple[int, int, int], frozenset[int]] = {}

    def depends_on(operation: tuple[int, int, int]) -> frozenset[int]:
        """Returns the transfers that an operation waits for."""
        rank, index, step = operation
        found: set[int] = set()
        for other_rank, other_run, start, stride in programs[rank][index]["after"]:
            other = other_rank, other_run, start + step * stride
            if not 0 <= other[2] < programs[other_rank][other_run]["len"]:
                continue
            if other in transfers:
                found.add(transfers[other])
            else:
                if other not in resolved:
                    resolved[other] = depends_on(other)
                found |= resolved[other]
        return frozenset(found)

    operations = list(transfers)
    dependencies = [sorted(depends_on(operation)) for operation in operations]
    depths = longest_chains(dependencies)
    # Messages of one connection are sent in the order in which they can be: by the longest chain before them.
    order = sorted(range(len(operations)), key=lambda number: (depths[number], number))
    position = {number: index for index, number in enumerate(order)}
    latest: dict[tuple[int, int, int], int] = {}
    lines = []
    for index, number in enumerate(order):
        rank, run_index, step = operations[number]
        run = programs[rank][run_index]
        peer = walk(run["peer"], step)
        first = walk(run["src"][1], step)
        size = sum(sizes[first:first + run["span"]])
        connection = rank, run["channel"], peer
        previous = latest.get(connection, -1)
        latest[connection] = index
        awaited = sorted(position[dependency] for dependency in dependencies[number])
        lines.append(" ".join(str(field) for field in (rank, peer, size, previous, len(awaited), *awaited)))
    return [str(len(programs)), str(len(lines)), *lines]


def longest_chains(dependencies: list[list[int]]) -> list[int]:
    """Returns the number of transfers in the longest chain before each transfer."""
    dependents: list[list[int]] = [[] for _ in dependencies]
    remaining = [len(awaited) for awaited in dependencies]
    for number, awaited in enumerate(dependencies):
        for dependency in awaited:
            dependents[dependency].append(number)
    depths = [0] * len(dependencies)
    ready = [number for number, count in enumerate(remaining) if count == 0]
    for number in ready:
        for dependent in dependents[number]:
            depths[dependent] = max(depths[dependent], depths[number] + 1)
            remaining[dependent] -= 1
            if remaining[dependent] == 0:
                ready.append(dependent)
    assert len(ready) == len(dependencies), "dependencies form a cycle"
    return depths


def measure(command: list[str], runs: int) -> Run:
    """Runs a command whose JSON has `time_us`; returns the run of the lowest processor time."""
    best = None
    for _ in range(runs):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with exit code {process.returncode}")
        predicted = json.loads(output)["time_us"]
        run = Run(predicted, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)
        if best is not None and best.predicted_us != run.predicted_us:
            sys.exit(f"two runs of {' '.join(command)} differ: {best.predicted_us} and {run.predicted_us}")
        if best is None or run.processor_s < best.processor_s:
            best = run
    return best


class Comparison:
    """Builds and runs both simulators in a temporary folder."""

    def __init__(self, fabricast: Path, runs: int, folder: Path):
        self.fabricast = str(fabricast.resolve())
        self.runs = runs
        self.folder = folder
        self.predictions: list[str] = []
        self.costs: list[str] = []
        self.replay = str(folder / "replay")
        source = Path(__file__).with_name("replay.cpp")
        subprocess.run(["g++", "-O3", "-std=c++17", "-o", self.replay, str(source), "-lsimgrid"], check=True)

    def call(self, algorithm: str, ranks: int, size: int, chunk: int | None) -> list[str]:
        fabric = self.folder / f"switch{ranks}.toml"
        write_fabric(fabric, ranks)
        call = ["--profile", "ideal", "--threads", "1", "-q", "--fabric", str(fabric), "--collective", "all_reduce"]
        call += ["--algorithm", algorithm, "--protocol", "simple", "--channels", "1", "--bytes", str(size)]
        return call + (["--chunk", str(chunk)] if chunk else [])

    def simulate(self, call: list[str], *options: str) -> Run:
        return measure([self.fabricast, "simulate", *call, *options, "--format", "json"], self.runs)

    def simgrid(self, *arguments: str, settings: tuple[str, ...]) -> Run:
        options = [f"--cfg={setting}" for setting in settings]
        return measure([self.replay, *arguments, *QUIET, *options], self.runs)

    def ring(self, ranks: int) -> None:
        call = self.call("ring", ranks, RING_BYTES, None)
        arguments = ["ring", str(ranks), str(RING_BYTES / ranks), str(BANDWIDTH), str(LATENCY)]
        transfers = 2 * (ranks - 1) * ranks
        self.rows(f"ring, {ranks:,} ranks, {RING_BYTES >> 20} MiB, {transfers:,} transfers", call,
                  self.simgrid(*arguments, settings=(*CORRECTIONS_OFF, FULL_UPDATE)), None,
                  self.simgrid(*arguments, settings=CORRECTIONS_OFF), self.simgrid(*arguments, settings=()))

    def tree(self, ranks: int, chunk: int | None) -> None:
        call = self.call("tree", ranks, TREE_BYTES, chunk)
        schedule = self.folder / "schedule.json"
        command = [self.fabricast, "schedule", "generate", *call, "--force", "-o", str(schedule)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = flatten(json.loads(schedule.read_text()))
        transfers = self.folder / "transfers"
        transfers.write_text("\n".join(lines) + "\n")
        arguments = ["schedule", str(transfers), str(BANDWIDTH), str(LATENCY)]
        title = f"tree, {ranks:,} ranks, {TREE_BYTES >> 20} MiB"
        title += f" in chunks of {chunk >> 20} MiB" if chunk else ""
        full = (*CORRECTIONS_OFF, FULL_UPDATE)
        self.rows(f"{title}, {int(lines[1]):,} transfers", call,
                  self.simgrid(*arguments, "serial", settings=full),
                  self.simgrid(*arguments, "pipelined", settings=full),
                  self.simgrid(*arguments, "serial", settings=CORRECTIONS_OFF),
                  self.simgrid(*arguments, "serial", settings=()))

    def rows(self, title: str, call: list[str], *others: Run | None) -> None:
        exact = self.simulate(call, "--no-fold")
        runs = [exact, self.simulate(call), *others]
        times = [describe_prediction(run, exact) for run in runs]
        costs = [f"{run.processor_s:.3f} s, {run.memory_mb:.0f} MB" if run else "–" for run in runs]
        self.predictions.append(" | ".join([title, *times]))
        self.costs.append(" | ".join([title, *costs]))
        print(f"{title}: done", file=sys.stderr, flush=True)

    def print_tables(self) -> None:
        for heading, rows in (("predicted time, µs", self.predictions), ("processor time and peak memory", self.costs)):
            print("| " + " | ".join([heading, *COLUMNS]) + " |")
            print("|" + "---|" * (len(COLUMNS) + 1))
            for row in rows:
                print(f"| {row} |")
            print()


def describe_prediction(run: Run | None, exact: Run) -> str:
    """Returns a predicted time, and its difference from fabricast's."""
    if run is None:
        return "–"
    difference = run.predicted_us - exact.predicted_us
    text = f"{run.predicted_us:.6f}"
    # Half a picosecond is the resolution of fabricast's times.
    if abs(difference) < 5e-7:
        return text
    if abs(difference) < 1e-3:
        return f"{text} ({difference * 1e6:+.0f} ps)"
    return f"{text} ({difference / exact.predicted_us * 100:+.2f} %)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabricast", type=Path, default=Path("target/release/fabricast"))
    parser.add_argument("--runs", type=int, default=3, help="runs of each case; the one of the lowest processor time counts")
    parser.add_argument("--only", default="ring,tree", help="cases, comma-separated: ring, tree")
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="numbers of ranks, comma-separated")
    arguments = parser.parse_args()
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    if not arguments.fabricast.is_file():
        parser.error(f"{arguments.fabricast} is missing: build it with `cargo build --release`, or name it by --fabricast")
    # One core for both. Dependencies through operations that move no data are resolved recursively.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    sys.setrecursionlimit(100_000)
    only = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(arguments.fabricast, arguments.runs, Path(folder))
        for ranks in map(int, arguments.ranks.split(",")):
            if "ring" in only:
                comparison.ring(ranks)
            if "tree" in only:
                comparison.tree(ranks, None)
                comparison.tree(ranks, TREE_CHUNK)
        comparison.print_tables()


if __name__ == "__main__":
    main()
