#!/usr/bin/env python3
"""Measures Hamlyn and its peers in turn, on the same two processors, and prints rows of JSON.

    bench/peers/install.sh && bench/peers/run.py >bench/results/peers-NAME.jsonl

README.md beside this file describes the measured quantities, and the setup of each peer with its
reasons.

Rounds go over all cells (a peer, a metric, a size) one after another, so that a disturbance of the
machine affects all alike. The raw cache line is measured before and after each run, like in
`hamlyn perf`; a run during which it changed by more than a quarter is discarded and repeated, a few
times. The program does not wait for a particular length of the line: each row has its own, and
`table.py` compares those that agree. No round begins after `--minutes`.
"""

import argparse
import atexit
import contextlib
import dataclasses
import glob
import itertools
import json
import math
import os
import pathlib
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = HERE / "build"
BIN = BUILD / "bin"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
HAMLYN = TARGET / "release" / "hamlyn"

# Longer than any run on a quiet machine: a run that takes more is thrown away.
RUN_SECONDS_MAX = 15
ATTEMPTS_MAX = 3

SIZES = [16, 64, 256, 1024]
LATENCY = [("latency", size) for size in [*SIZES, 4096]]
# At 4 KiB the bandwidth says it.
RATE = [("rate", size) for size in SIZES]
BANDWIDTH = [("bandwidth", 4096), ("bandwidth", 65536), ("bandwidth", 1 << 20)]
CELLS = [*LATENCY, *RATE, *BANDWIDTH]
UNITS = {"latency": "ns", "rate": "messages/s", "bandwidth": "bytes/s"}

Cell = tuple[str, int]


class Failed(Exception):
    """A run that gave no figure; the text says why."""


@dataclasses.dataclass
class Peer:
    name: str
    version: str
    settings: str
    # How a receiver gets a message: "copy" or "view", or its own way to copy. It reads each line of
    # a view.
    receives: str
    # From a cell, the number of messages and the processors, to nanoseconds, messages or bytes.
    run: Callable[[Cell, int, list[int]], float]
    # Messages of a run, so that it takes about a second on near processors.
    counts: dict[Cell, int]


# ---- processes

# Started and not yet finished; they end with this program, for any reason.
live: list[subprocess.Popen] = []


@atexit.register
def end_what_lives() -> None:
    while live:
        process = live.pop()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def on_core(core: int, command: list) -> list[str]:
    return ["taskset", "-c", str(core), *map(str, command)]


def start(command: list, env: dict[str, str], fds: tuple[int, ...] = ()) -> subprocess.Popen:
    """In a group of its own, so that nothing it starts outlives `finish`."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=fds,
        start_new_session=True,
    )
    live.append(process)
    return process


def finish(processes: list[subprocess.Popen]) -> str:
    """The output of the last of them, when all have ended well."""
    deadline = time.monotonic() + RUN_SECONDS_MAX
    try:
        outputs = []
        for process in reversed(processes):
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if process.returncode:
                raise Failed(f"{process.args}: {process.returncode}: {(err or out).strip()[-300:]}")
            outputs.append(out)
        return outputs[0]
    except subprocess.TimeoutExpired:
        raise Failed(f"{processes[-1].args}: took more than {RUN_SECONDS_MAX} s") from None
    finally:
        end_what_lives()


def figure(output: str, cell: Cell) -> float:
    """Of the line that peer.h tells of."""
    result = json.loads(output.strip().splitlines()[-1])
    metric, size = cell
    if metric == "latency":
        return quantile(result["round_trips_ns"], 0.5) / 2
    rate = result["count"] / result["seconds"]
    return rate if metric == "rate" else rate * size


def quantile(histogram: list[list[int]], part: float) -> float:
    """As `hamlyn perf` has it: time stamp counters advance in steps, so each value stands for the
    range up to the middle between it and its neighbours, and is interpolated in its range."""
    rank = part * sum(count for _, count in histogram)
    below = 0
    for i, (value, count) in enumerate(histogram):
        if below + count >= rank:
            before = (histogram[i - 1][0] + value) / 2 if i else None
            after = (histogram[i + 1][0] + value) / 2 if i + 1 < len(histogram) else None
            low = before if before is not None else value if after is None else 2 * value - after
            high = after if after is not None else value if before is None else 2 * value - before
            return low + (high - low) * (rank - below) / count
        below += count
    raise Failed("no round trip was timed")


def plan(cell: Cell, count: int, window: int = 1) -> list[str]:
    metric, size = cell
    test = "latency" if metric == "latency" else "stream"
    return [test, str(size), str(count), str(window)]


def pair(command: list, cell: Cell, count: int, cores: list[int], env: dict, window: int) -> float:
    """The two roles of a program that keeps to peer.h."""
    ours, theirs = socket.socketpair()
    processes = []
    with ours, theirs, tempfile.TemporaryDirectory(prefix="peers-") as directory:
        name = os.path.basename(directory)
        for role, core, end in (("respond", cores[1], theirs), ("initiate", cores[0], ours)):
            settings = env | {
                "PEER_ADDRESS": env.get("PEER_ADDRESS", "").format(directory=directory, name=name),
                "PEER_SOCKET": str(end.fileno()),
            }
            words = on_core(core, [*command, role, *plan(cell, count, window)])
            processes.append(start(words, settings, (end.fileno(),)))
        # An end that loses the other one must see it.
        ours.close()
        theirs.close()
        return figure(finish(processes), cell)


# ---- Hamlyn: commands that print a row of `hamlyn perf`; further interfaces are further rows


def hamlyn(command: list[str]) -> Callable[[Cell, int, list[int]], float]:
    def run(cell: Cell, count: int, cores: list[int]) -> float:
        metric, size = cell
        short = {1 << 10: "KiB", 1 << 20: "MiB"}
        unit = max((unit for unit in short if unit <= size), default=1)
        name = f"{metric}-{size // unit}{short.get(unit, '')}"
        words = [HAMLYN, "perf", *(w.format(metric=metric, size=size, name=name) for w in command)]
        words += ["--count", count, "--runs", 1, "--json"]
        # It pins its two ends itself, to the two processors that it may use.
        both = ",".join(map(str, cores))
        row = json.loads(finish([start(["taskset", "-c", both, *words], {})]))
        if metric == "latency":
            return row["one_way_ns"]["p50"]
        return row["messages_per_s" if metric == "rate" else "bytes_per_s"]

    return run


def hamlyns() -> list[Peer]:
    version = output_of([HAMLYN, "--version"]).split()[-1]
    raw = cell_counts(300_000, 20_000_000, 2_000_000, 400_000, 30_000)
    # A tagged write is at most a packet; a stream's records take an aperture from 64 KiB up.
    tagged = cell_counts(300_000, 20_000_000, 2_000_000)
    stream = cell_counts(300_000, 20_000_000, 2_000_000, 200_000, 15_000)
    aperture = {BANDWIDTH[1]: 200_000, BANDWIDTH[2]: 15_000}

    def protocol(name: str) -> list[str]:
        return ["protocols", "--only", name + "-{name}"]

    # Name, settings, how a receiver gets a message, the arguments of `hamlyn perf`, the cells.
    commands = [
        ("Hamlyn", "raw interface, polled", "copy", ["{metric}", "--size", "{size}"], raw),
        ("Hamlyn, tagged", "tagged remote write, polled", "copy", protocol("tagged"), tagged),
        ("Hamlyn, stream", "stream, polled; flushed", "copy", protocol("stream"), stream),
        (
            "Hamlyn, stream through an aperture",
            "aperture of 1 MiB, or of four records; read 4 KiB at a time",
            "copy, 4 KiB at a time",
            protocol("stream-aperture"),
            aperture,
        ),
    ]
    measured = [
        Peer(name, version, settings, receives, hamlyn(words), counts)
        for name, settings, receives, words, counts in commands
    ]
    return [*measured, hamlyn_c(version)]


def hamlyn_c(version: str) -> Peer:
    def run(cell: Cell, count: int, cores: list[int]) -> float:
        return pair([BIN / "hamlyn_c"], cell, count, cores, {"PEER_ADDRESS": "{directory}"}, 1024)

    counts = cell_counts(300_000, 15_000_000)
    return Peer("Hamlyn, C", version, "h_send_msg, h_recv_block, polled", "copy", run, counts)


# ---- the peers


def by_cell(latency: int, rate: int, *bandwidth: int) -> dict[Cell, int]:
    """One value for all latencies, one for all rates, one for each bandwidth."""
    return (
        dict.fromkeys(LATENCY, latency)
        | dict.fromkeys(RATE, rate)
        | dict(zip(BANDWIDTH, bandwidth, strict=False))
    )


def cell_counts(latency: int, rate: int, *bandwidth: int) -> dict[Cell, int]:
    """Messages of a run: so many of 16 bytes, and fewer of longer ones, which take longer."""
    counts = by_cell(latency, rate, *bandwidth)
    for cell in [*LATENCY, *RATE]:
        counts[cell] //= math.isqrt(cell[1] // 16)
    return counts


def ucx_tag(name: str, transports: str) -> Peer:
    env = {"LD_LIBRARY_PATH": str(ucx() / "lib"), "UCX_TLS": transports}
    windows = by_cell(1, 1, 1, 16, 16)

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        return pair([BIN / "ucx_tag"], cell, count, cores, env, windows[cell])

    counts = cell_counts(300_000, 15_000_000, 2_000_000, 200_000, 15_000)
    return Peer(name, ucx_version(), f"UCX_TLS={transports}, tagged messages", "copy", run, counts)


# What an element of its queue holds beside a header.
UCT_SHORT_MAX = 64


def uct() -> Peer:
    def options(metric: str, size: int) -> list[str]:
        test = "am_lat" if metric == "latency" else "am_bw"
        return ["-t", test, "-D", "short" if size <= UCT_SHORT_MAX else "bcopy"]

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {"LD_LIBRARY_PATH": str(ucx() / "lib")}
        tool = [BIN / "ucx_perftest", "-p", port, "-x", "posix", "-d", "memory"]
        server = start(on_core(cores[1], tool), env)
        wait_for_listener(port, server)
        size = ["-s", cell[1], "-n", count, "-w", count // 10, "-f", "-v"]
        client = start(on_core(cores[0], [*tool, "127.0.0.1", *options(*cell), *size]), env)
        names, values = finish([server, client]).strip().splitlines()[-2:]
        row = dict(zip(names.split(","), values.split(","), strict=True))
        if cell[0] == "latency":
            return float(row["50.0_percentile_lat"]) * 1e3
        rate = float(row["overall_mr"])
        return rate if cell[0] == "rate" else rate * cell[1]

    counts = cell_counts(300_000, 15_000_000, 2_000_000)
    settings = "ucx_perftest -x posix -d memory, active messages"
    return Peer("UCX, lower layer (UCT)", ucx_version(), settings, "view", run, counts)


def wait_for_listener(port: int, process: subprocess.Popen) -> None:
    """Without connecting, which the server would take for its client."""
    wanted = f":{port:04X} "
    for _ in range(500):
        net = pathlib.Path(f"/proc/{process.pid}/net")
        try:
            lines = [*(net / "tcp").open(), *(net / "tcp6").open()]
        except OSError:
            lines = []
        if any(wanted in line.split("rem_")[0][:50] and " 0A " in line for line in lines):
            return
        if process.poll() is not None:
            break
        time.sleep(0.01)
    raise Failed(f"{process.args} does not listen at port {port}")


def mpi(name: str, program: str, env: dict, options: list, windows: dict, counts: dict) -> Peer:
    version = output_of([BUILD / program / "bin" / "pip", "show", program])
    version = re.search(r"^Version: (.*)$", version, re.M)[1]

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        words = [BUILD / program / "bin" / "mpiexec", *options]
        for role, core in (("initiate", cores[0]), ("respond", cores[1])):
            words += ["-n", 1, *on_core(core, [BIN / program, role])]
            words += [*plan(cell, count, windows[cell]), ":"]
        return figure(finish([start(words[:-1], env)]), cell)

    settings = " ".join(f"{k}={v}" for k, v in env.items() if "ROOT" not in k)
    return Peer(name, version, settings, "copy", run, counts)


def mpich(name: str, env: dict) -> Peer:
    # The default yields after some polls, which costs a system call in every wait.
    env = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "0"} | env
    counts = cell_counts(200_000, 5_000_000, 1_500_000, 250_000, 20_000)
    return mpi(name, "mpich", env, [], by_cell(1, 64, 1, 64, 64), counts)


def open_mpi(name: str, env: dict) -> Peer:
    # It refuses to run as root unless told; its own binding would undo taskset's.
    env = env | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"OMPI_MCA_mpi_yield_when_idle": "0"}
    options = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    counts = cell_counts(300_000, 10_000_000, 1_500_000, 250_000, 20_000)
    return mpi(name, "openmpi", env, options, by_cell(1, 64, 1, 64, 64), counts)


def iceoryx2() -> Peer:
    env = {"PEER_ADDRESS": "{name}"}
    windows = by_cell(8, 512, 64, 16, 8)
    lock = (HERE / "iceoryx2" / "Cargo.lock").read_text()
    version = re.search(r'name = "iceoryx2"\nversion = "(.*)"', lock)[1]

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        return pair([BIN / "iceoryx2"], cell, count, cores, env, windows[cell])

    counts = cell_counts(200_000, 5_000_000, 2_000_000, 400_000, 30_000)
    return Peer("iceoryx2", version, "publish and subscribe, busy polling", "view", run, counts)


def zeromq() -> Peer:
    windows = by_cell(1000, 1000, 1000, 64, 16)

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        env = {"PEER_ADDRESS": "ipc://{directory}/socket", "PEER_WAIT": "sleep"}
        return pair([BIN / "zeromq"], cell, count, cores, env, windows[cell])

    version = output_of(["dpkg-query", "-W", "-f", "${Version}", "libzmq3-dev"])
    counts = cell_counts(20_000, 5_000_000, 500_000, 60_000, 4_000)
    return Peer("ZeroMQ", version, "pair over ipc, blocking calls", "copy", run, counts)


def aeron() -> Peer:
    jar = glob.glob(str(BUILD / "aeron" / "aeron-all-*.jar"))[0]
    version = re.search(r"aeron-all-(.*)\.jar", jar)[1]
    options = [
        "-XX:+UseParallelGC",
        "-Xms512m",
        "-Xmx512m",
        "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "-Dagrona.disable.bounds.checks=true",
        "-Daeron.pre.touch.mapped.memory=true",
    ]
    # A message is at most an eighth of the log's term. A fragment of 4 KiB is a whole message.
    channels = {
        **dict.fromkeys(LATENCY, "aeron:ipc?term-length=64k|mtu=8k"),
        **dict.fromkeys(RATE, "aeron:ipc?term-length=256k|mtu=8k"),
        BANDWIDTH[0]: "aeron:ipc?term-length=256k|mtu=8k",
        BANDWIDTH[1]: "aeron:ipc?term-length=1m|mtu=32k",
        BANDWIDTH[2]: "aeron:ipc?term-length=8m|mtu=32k",
    }

    def run(cell: Cell, count: int, cores: list[int]) -> float:
        with tempfile.TemporaryDirectory(prefix="peers-", dir="/dev/shm") as directory:
            options_here = [f"-Daeron.dir={directory}/aeron", f"-Dpeer.channel={channels[cell]}"]
            words = ["java", *options, *options_here, "-cp", f"{BUILD / 'aeron'}:{jar}", "Peer"]
            processes = []
            # Each pins its own thread that measures.
            for role, core in (("respond", cores[1]), ("initiate", cores[0])):
                both = ",".join(map(str, cores))
                role_words = ["taskset", "-c", both, *words, role, *plan(cell, count, 64)]
                processes.append(start(role_words, {"PEER_CORE": str(core)}))
            return figure(finish(processes), cell)

    counts = cell_counts(500_000, 30_000_000, 1_000_000, 100_000, 6_000)
    settings = "ipc, exclusive publication, driver invoked by the initiator"
    return Peer("Aeron", version, settings, "view", run, counts)


def ucx() -> pathlib.Path:
    return pathlib.Path(glob.glob(str(BUILD / "ucx/lib/python*/site-packages/libucx"))[0])


def ucx_version() -> str:
    tool = [ucx() / "bin" / "ucx_info", "-v"]
    text = output_of(tool, {"LD_LIBRARY_PATH": str(ucx() / "lib")})
    return re.search(r"Library version: (\S+)", text)[1]


def peers() -> list[Peer]:
    over_ucx = {"UCX_TLS": "posix,cma,self"}
    return [
        *hamlyns(),
        ucx_tag("UCX", "posix,self"),
        ucx_tag("UCX with cma", "posix,cma,self"),
        uct(),
        mpich("MPICH", {}),
        mpich(
            "MPICH over UCX",
            {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"} | over_ucx,
        ),
        open_mpi("Open MPI", {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "sm,self"}),
        open_mpi(
            "Open MPI over UCX",
            {
                "OMPI_MCA_pml": "ucx",
                "OMPI_MCA_pml_ucx_tls": "any",
                "OMPI_MCA_pml_ucx_devices": "any",
            }
            | over_ucx,
        ),
        iceoryx2(),
        zeromq(),
        aeron(),
    ]


# ---- the machine


def output_of(command: list, env: dict[str, str] | None = None) -> str:
    words = [str(word) for word in command]
    env = os.environ | (env or {})
    return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout.strip()


def agree(a: float, b: float) -> bool:
    """Whether two raw lines differ by at most a quarter of the shorter one, so that what was
    measured beside them compares: tools/src/perf/placement.rs."""
    return abs(a - b) <= min(a, b) / 4


def placement_of(ns: float) -> str:
    """A word for the raw line, which decides nothing: tools/src/perf/placement.rs."""
    if ns < 46:
        return "shared"
    return "near" if ns <= 66 else "far" if ns > 200 else "other"


@dataclasses.dataclass
class Limits:
    """The limits beside a run, measured like in `hamlyn perf`."""

    # The raw cache line's time one way, in nanoseconds.
    raw_ns: float
    # The least checked message of the same length, nanoseconds one way and messages a second, of
    # lengths that are one packet.
    least: dict[str, float]


def mean(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: (before[name] + after[name]) / 2 for name in before}


def limits(size: int, cores: list[int]) -> Limits:
    """Failed, if they could not be measured."""
    both = ",".join(map(str, cores))
    words = ["taskset", "-c", both, HAMLYN, "perf", "latency", "--size", size, "--count", 500]
    row = json.loads(finish([start([*words, "--runs", 1, "--json"], {})]))
    least = {name: row[name] for name in ("least_one_way_ns", "least_per_s") if name in row}
    return Limits(row["raw_line_one_way_ns"], least)


def machine() -> dict[str, str]:
    text = pathlib.Path("/proc/cpuinfo").read_text()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*: (.*)$", text, re.M)
        return found[1] if found else "unknown"

    gcc = output_of(["gcc", "--version"]).splitlines()[0]
    git = ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12"]
    return {
        "machine": f"{field('model name')}, family {field('cpu family')}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "compiler": f"{output_of(['rustc', '--version'])}; {gcc}",
        "commit": output_of(git),
        "date": time.strftime("%F", time.gmtime()),
    }


# ---- the rounds


def measure(peer: Peer, cell: Cell, arguments: argparse.Namespace) -> dict | None:
    """A row, or None with a word on standard error."""
    count = max(100, peer.counts[cell] // arguments.fraction)
    where = f"{peer.name}, {cell[0]} of {cell[1]} bytes"
    for _ in range(ATTEMPTS_MAX):
        try:
            before = limits(cell[1], arguments.cores)
            value = peer.run(cell, count, arguments.cores)
            after = limits(cell[1], arguments.cores)
        except (Failed, ValueError, KeyError, IndexError) as error:
            end_what_lives()
            print(f"peers: {where}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if agree(before.raw_ns, after.raw_ns):
            return {
                "peer": peer.name,
                "version": peer.version,
                "settings": peer.settings,
                "receives": peer.receives,
                "metric": cell[0],
                "size": cell[1],
                "value": value,
                "unit": UNITS[cell[0]],
                "count": count,
                "raw_before_ns": before.raw_ns,
                "raw_after_ns": after.raw_ns,
                **mean(before.least, after.least),
                "placement": placement_of((before.raw_ns + after.raw_ns) / 2),
            }
        moved = f"the raw line went from {before.raw_ns:.0f} to {after.raw_ns:.0f} ns"
        print(f"peers: {where}: {moved}, and the run is thrown away", file=sys.stderr)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=20, help="no round begins after these")
    parser.add_argument("--cores", default="0,1", help="of the initiator and of the responder")
    parser.add_argument("--peer", action="append", help="only those whose name contains this")
    parser.add_argument("--metric", action="append", choices=list(UNITS))
    parser.add_argument("--size", action="append", type=int, help="only messages of these bytes")
    parser.add_argument(
        "--fraction", type=int, default=1, help="the messages of each run are divided by this"
    )
    arguments = parser.parse_args()
    # Ended like an interruption, so that nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peers: terminated"))
    arguments.cores = [int(core) for core in arguments.cores.split(",")]

    chosen = [
        peer
        for peer in peers()
        if not arguments.peer or any(part in peer.name for part in arguments.peer)
    ]
    here = machine()
    begin = time.monotonic()
    for round_number in itertools.count(1):
        cells = [(peer, cell) for cell in CELLS for peer in chosen if cell in peer.counts]
        for peer, cell in cells:
            if arguments.metric and cell[0] not in arguments.metric:
                continue
            if arguments.size and cell[1] not in arguments.size:
                continue
            row = measure(peer, cell, arguments)
            if row:
                print(json.dumps(row | {"round": round_number} | here), flush=True)
        minutes = (time.monotonic() - begin) / 60
        print(f"peers: round {round_number} done after {minutes:.1f} minutes", file=sys.stderr)
        if round_number >= arguments.rounds or minutes > arguments.minutes:
            break


if __name__ == "__main__":
    main()
