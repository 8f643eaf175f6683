#!/usr/bin/env python3
"""Measures links to other hosts beside other networking libraries, over loopback or, as root with
`--veth`, between two network namespaces joined by a veth pair. Prints rows of JSON:

    bench/peers/install.sh network && bench/peers/network.py >bench/results/network-NAME.jsonl

Run it after `make build`; HAMLYN names another program than target/release/hamlyn. Peers take
turns, round after round, each end on the same two processors. The raw cache line and the least
message are measured before and after all cells of one size. `--markdown FILE..` instead prints a
table of recorded rows, with the median of each cell.

There are two manners, in the column `manner`: "one at a time" (half of a round trip of messages of
that size, and for a bandwidth its bytes in that time), the only one of fi_pingpong; and "one after
another" (messages one way without a pause, until the receiver has answered the last).
"""

import argparse
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import run

HAMLYN = pathlib.Path(os.environ.get("HAMLYN", run.HAMLYN))
FABRIC_2 = run.BUILD / "mpich/lib/mpich/libfabric.so.1"
SIZES = [4096, 65536, 1 << 20, 4 << 20]
ONE, MANY = "one at a time", "one after another"
CELLS = [(ONE, 16), *((ONE, size) for size in SIZES), *((MANY, size) for size in SIZES)]
# Messages of a run: some tenths of a second.
COUNTS = {16: 20_000, 4096: 10_000, 65536: 4_000, 1 << 20: 400, 4 << 20: 100}

Cell = tuple[str, int]


class Hosts:
    """Where the ends are: the loopback of this host."""

    name, far, far_device = "loopback", "127.0.0.1", "lo"


class Namespaces(Hosts):
    """Two network namespaces, one for each processor."""

    name, far, far_device = "veth", "10.78.0.1", "hv0"

    def __init__(self, cores: list[int]) -> None:
        self.of = {core: f"hn{os.getpid()}-{core}" for core in cores}
        alone = run.on_core
        run.on_core = lambda core, command: [*self.enter(core), *alone(core, command)]

    def enter(self, core: int) -> list[str]:
        return ["ip", "netns", "exec", self.of[core]]

    def __enter__(self) -> "Namespaces":
        near, far = self.of.values()
        steps = [f"ip netns add {near}", f"ip netns add {far}"]
        steps += [f"ip link add hv0 netns {far} type veth peer name hv0 netns {near}"]
        for name, address in ((far, self.far), (near, "10.78.0.2")):
            steps += [f"ip -n {name} addr add {address}/24 dev hv0"]
            steps += [f"ip -n {name} link set {device} up" for device in ("lo", "hv0")]
        for step in steps:
            subprocess.run(step.split(), check=True)
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.of.values():
            subprocess.run(["ip", "netns", "del", name], check=False)


hosts = Hosts()


def fi_pingpong(provider: str, library: pathlib.Path | None) -> Callable:
    def measure(cell: Cell, cores: list[int]) -> float | None:
        manner, size = cell
        if manner != ONE:
            return None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        env = {"LD_LIBRARY_PATH": str(library.parent)} if library else {}
        words = ["fi_pingpong", "-p", provider, "-e", "rdm", "-S", size, "-I", COUNTS[size]]
        server = run.start(run.on_core(cores[1], [*words, "-B", port]), env)
        run.wait_for_listener(port, server)
        client = run.on_core(cores[0], [*words, "-P", port, hosts.far])
        columns = run.finish([server, run.start(client, env)]).splitlines()[-1].split()
        return float(columns[6]) * 1e3

    return measure


def hamlyn(over: str, provider: str = "", library: pathlib.Path | None = None) -> Callable:
    def measure(cell: Cell, cores: list[int]) -> float:
        manner, size = cell
        test = "latency" if manner == ONE else "bandwidth"
        words = [HAMLYN, "perf", test, "--size", size, "--count", COUNTS[size]]
        words += ["--runs", 1, "--json", "--cores", ",".join(map(str, cores))]
        env = {"HAMLYN_FABRIC_PROVIDER": provider} if provider else {}
        if library:
            env["HAMLYN_FABRIC_LIBRARY"] = str(library)
        if isinstance(hosts, Namespaces):
            return between(words, over, cell, cores, env)
        words += ["--over", over]
        return of_row(run.finish([run.start(words, env)]), cell)

    return measure


def of_row(text: str, cell: Cell) -> float:
    """A mean, as fi_pingpong's is."""
    row = json.loads(text)
    manner, size = cell
    return row["one_way_ns"]["mean"] if manner == ONE else size / row["bytes_per_s"] * 1e9


def between(words: list, over: str, cell: Cell, cores: list[int], env: dict) -> float:
    """To an end that serves in the other namespace."""
    with tempfile.TemporaryDirectory(prefix="peers-") as directory:
        secret = f"{directory}/secret"
        subprocess.run([HAMLYN, "keys", secret], check=True, stdout=subprocess.DEVNULL)
        env = env | {"HAMLYN_SECRET": secret, "HAMLYN_DIR": directory, "HAMLYN_LOCAL": "tls"}
        if over == "fabric":
            env["HAMLYN_FABRIC"] = "trusted"
        serve = [HAMLYN, "perf", "serve", "peers", "--mode", "polled"]
        listen = {"HAMLYN_LISTEN": f"{hosts.far}:7000"}
        server = run.start(run.on_core(cores[1], serve), env | listen)
        run.wait_for_listener(7000, server)
        words = [*hosts.enter(cores[0]), *words, "--to", f"hamlyn://{hosts.far}:7000/peers"]
        client = run.start(words, env)
        # The one that serves goes on until it is ended.
        text, said = client.communicate(timeout=run.RUN_SECONDS_MAX)
        run.end_what_lives()
        if client.returncode:
            raise run.Failed(f"{words}: {said.strip()[-300:]}")
        return of_row(text, cell)


def program(start: Callable) -> Callable:
    """One that keeps to peer.h."""

    def measure(cell: Cell, cores: list[int]) -> float:
        manner, size = cell
        metric = "latency" if manner == ONE else "bandwidth"
        window = 1 if manner == ONE or size <= 4096 else 16
        value = start((metric, size), COUNTS[size], cores, window)
        return value if manner == ONE else size / value * 1e9

    return measure


def ucx(cell: tuple, count: int, cores: list[int], window: int) -> float:
    library = str(run.ucx() / "lib")
    env = {"LD_LIBRARY_PATH": library, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": hosts.far_device}
    return run.pair([run.BIN / "ucx_tag"], cell, count, cores, env, window)


def openssl(cell: tuple, count: int, cores: list[int], window: int) -> float:
    env = {"PEER_ADDRESS": hosts.far}
    return run.pair([run.BIN / "openssl"], cell, count, cores, env, window)


def tonic(cell: tuple, count: int, cores: list[int], window: int) -> float:
    env = {"PEER_HOST": hosts.far, "PEER_ADDRESS": "{directory}"}
    return run.pair([run.BIN / "tonic"], cell, count, cores, env, window)


def cipher(cell: Cell, cores: list[int]) -> float | None:
    """The cost of encryption alone, in the records that TLS makes, on one core."""
    manner, size = cell
    if manner != MANY:
        return None
    words = ["openssl", "speed", "-mr", "-evp", "aes-256-gcm"]
    words += ["-bytes", min(size, 16384), "-seconds", 1]
    said = run.finish([run.start(run.on_core(cores[0], words), {})])
    bytes_per_s = float(said.strip().splitlines()[-1].split(":")[-1])
    return size / bytes_per_s * 1e9


MPICH = {
    "MPIR_CVAR_POLLS_BEFORE_YIELD": "0",
    "MPIR_CVAR_NOLOCAL": "1",
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "lo",
}


def mpich(cell: tuple, count: int, cores: list[int], window: int) -> float:
    words = [run.BUILD / "mpich/bin/mpiexec"]
    for role, core in (("initiate", cores[0]), ("respond", cores[1])):
        words += ["-n", 1, *run.on_core(core, [run.BIN / "mpich", role])]
        words += [*run.plan(cell, count, window), ":"]
    return run.figure(run.finish([run.start(words[:-1], MPICH)]), cell)


PEERS = {
    "fi_pingpong, net of 1.17": fi_pingpong("net", None),
    "Hamlyn over fabric, net of 1.17": hamlyn("fabric", "net"),
    "fi_pingpong, tcp;ofi_rxm of 1.17": fi_pingpong("tcp;ofi_rxm", None),
    "Hamlyn over fabric, tcp;ofi_rxm of 1.17": hamlyn("fabric", "tcp;ofi_rxm"),
    "fi_pingpong, tcp of 2.x": fi_pingpong("tcp", FABRIC_2),
    "Hamlyn over fabric, tcp of 2.x": hamlyn("fabric", "tcp", FABRIC_2),
    "Hamlyn over TLS": hamlyn("tls"),
    "OpenSSL, TLS 1.3 over TCP": program(openssl),
    "tonic over TLS": program(tonic),
    "AES-256-GCM of OpenSSL on one core": cipher,
    "UCX over tcp": program(ucx),
    "MPICH over ofi, tcp of 2.x": program(mpich),
}


def version(name: str) -> str:
    """The version of a peer; for Hamlyn (whose own is its row's commit) that of the library below."""
    if name.startswith("tonic"):
        lock = (run.HERE / "tonic/Cargo.lock").read_text()
        return re.search(r'name = "tonic"\nversion = "(.*)"', lock)[1]
    if name.startswith("UCX"):
        return run.ucx_version()
    if name.startswith("MPICH"):
        said = run.output_of([run.BUILD / "mpich/bin/pip", "show", "mpich"])
        return re.search(r"^Version: (.*)$", said, re.M)[1]
    if "OpenSSL" in name:
        return run.output_of(["openssl", "version"]).split()[1]
    if "TLS" in name:
        lock = (run.ROOT / "Cargo.lock").read_text()
        return "rustls " + re.search(r'name = "rustls"\nversion = "(.*)"', lock)[1]
    env = {"LD_LIBRARY_PATH": str(FABRIC_2.parent)} if "2.x" in name else {}
    said = run.output_of(["fi_info", "--version"], env)
    return "libfabric " + re.search(r"^libfabric: (.*)$", said, re.M)[1]


def table(files: list[str]) -> None:
    cells: dict[tuple, list[float]] = {}
    for file in files:
        for line in pathlib.Path(file).read_text().splitlines():
            row = json.loads(line)
            cells.setdefault((row["peer"], row["manner"], row["size"]), []).append(row["ns"])
    names = [f"{manner}, {size}" for manner, size in CELLS]
    print("|", " | ".join(["", *names]), "|")
    print("|", " | ".join(["---"] * (len(names) + 1)), "|")
    for peer in PEERS:
        texts = []
        for manner, size in CELLS:
            values = cells.get((peer, manner, size))
            if not values:
                texts.append("")
            elif size == 16:
                texts.append(f"{statistics.median(values) / 1e3:.1f} us")
            else:
                texts.append(f"{size / statistics.median(values):.2f} GB/s")
        print("|", " | ".join([peer, *texts]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8, help="no run begins after these")
    parser.add_argument("--cores", default="0,1", help="of the initiator and of the responder")
    parser.add_argument("--peer", action="append", help="only those whose name contains this")
    parser.add_argument("--size", action="append", type=int, choices=[16, *SIZES])
    parser.add_argument("--veth", action="store_true", help="between two network namespaces")
    parser.add_argument("--markdown", nargs="+", metavar="FILE", help="print their table instead")
    arguments = parser.parse_args()
    if arguments.markdown:
        table(arguments.markdown)
        return
    cores = [int(core) for core in arguments.cores.split(",")]
    if not arguments.veth:
        measure_all(arguments, cores)
        return
    global hosts
    with Namespaces(cores) as hosts:
        # Its launcher is one process, which has one network.
        PEERS.pop("MPICH over ofi, tcp of 2.x")
        measure_all(arguments, cores)


def measure_all(arguments: argparse.Namespace, cores: list[int]) -> None:
    machine = run.machine()
    parts = arguments.peer or [""]
    peers = {name: peer for name, peer in PEERS.items() if any(part in name for part in parts)}
    versions = {name: version(name) for name in peers}
    until = time.monotonic() + 60 * arguments.minutes
    for number in range(1, arguments.rounds + 1):
        for cell in CELLS:
            if arguments.size and cell[1] not in arguments.size:
                continue
            if time.monotonic() > until:
                return
            before = run.limits(run.SIZES[0], cores)
            rows = {name: ns for name, peer in peers.items() if (ns := tried(name, peer, cell, cores))}
            after = run.limits(run.SIZES[0], cores)
            for name, ns in rows.items():
                row = {"peer": name, "version": versions[name], "manner": cell[0], "size": cell[1]}
                row |= {"ns": ns, "count": COUNTS[cell[1]], "round": number, "over": hosts.name}
                row |= {"raw_before_ns": before.raw_ns, "raw_after_ns": after.raw_ns}
                least = run.mean(before.least, after.least)
                row |= {"least_one_way_ns": least["least_one_way_ns"]}
                print(json.dumps(row | machine), flush=True)


def tried(name: str, measure: Callable, cell: Cell, cores: list[int]) -> float | None:
    try:
        return measure(cell, cores)
    except (run.Failed, OSError, ValueError, KeyError, IndexError) as error:
        run.end_what_lives()
        print(f"{name}, {cell}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    main()
