#!/usr/bin/env python3
"""Runs the programs and the commands of README.md and of the pages that continue it, and the
programs of python/README.md, exactly as printed there.

    scripts/readme.py HAMLYN TARGET [PYTHON]    the built command; a folder to compile in; a Python
                                                that has numpy and the package

The programs in Rust become a package of their own, which the pages' `cargo new` and `cargo add`
make. Exit status 1: a block is gone, does not compile, or does not do what its page claims.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60
PAGES = ["README.md", "docs/guide.md", "docs/two-hosts.md", "docs/jobs.md", "docs/own-protocol.md"]


def programs(text: str, ending: str, fence: str, wanted: set[str]) -> dict[str, str]:
    """The block behind each `<!-- program: NAME -->` of a text."""
    found = dict(re.findall(rf"<!-- program: (\w+)\.{ending} -->\n```{fence}\n(.*?)```", text, re.S))
    # Those in Python are all of the page's blocks.
    if set(found) != wanted or (ending == "py" and len(found) != text.count(f"```{fence}\n")):
        raise SystemExit(f"the pages have the programs {sorted(found)}, and these are tried: {wanted}")
    return found


def compiled(readme: str, sources: dict[str, str], target: Path) -> Path:
    """Builds them in a package that the pages' commands make; returns the folder of the programs."""
    commands = re.findall(r"`(cargo (?:new|add) [^`]*)`", readme)
    if not commands or not commands[0].startswith("cargo new shout && cd shout && "):
        raise SystemExit(f"the pages have, to make a package, {commands}")
    commands[0] = commands[0].removeprefix("cargo new shout && cd shout && ")
    cargo = {"CARGO_TARGET_DIR": str(target / "target"), "CARGO_TERM_QUIET": "true"}
    environment = {**os.environ, **cargo}
    # Artifacts of another folder are of no use.
    shutil.rmtree(target / "target", ignore_errors=True)
    # Not in the folder of the library, whose workspace would have it.
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "hamlyn").symlink_to(ROOT)
        package = Path(work) / "shout"
        subprocess.run(["cargo", "new", "--quiet", package], check=True)
        for command in commands:
            subprocess.run(["sh", "-ec", command], cwd=package, env=environment, check=True)
        (package / "src/bin").mkdir()
        for name, source in sources.items():
            (package / f"src/bin/{name}.rs").write_text(source)
        subprocess.run(["cargo", "build", "--quiet"], cwd=package, env=environment, check=True)
    return target / "target/debug"


def ran(command: list[str], environment: dict[str, str]) -> str:
    """Runs it to its end; returns its output."""
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def pair(serves: list[str], asks: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """Runs both at once; returns both outputs. One that serves for ever is ended after the other."""
    with subprocess.Popen(serves, env=environment, stdout=subprocess.PIPE, text=True) as there:
        try:
            printed = ran(asks, environment)
            end = time.monotonic() + 2
            while there.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
        finally:
            there.kill()
        return there.communicate()[0], printed


def drained(serves: list[str], asks: list[str], environment: dict[str, str]) -> str:
    """Runs both, and ends the one that serves by SIGTERM; returns both outputs."""
    with subprocess.Popen(serves, env=environment, stdout=subprocess.PIPE, text=True) as there:
        try:
            printed = ran(asks, environment)
            there.terminate()
            last, _ = there.communicate(timeout=LIMIT_S)
        finally:
            there.kill()
    if there.returncode != 0:
        raise SystemExit(f"{serves} ended by SIGTERM with {there.returncode}")
    return f"{printed}{last}"


def job(readme: str, environment: dict[str, str]) -> str:
    """The commands of docs/jobs.md that compile and start a job, run in the folder of the project."""
    block = re.search(r"<!-- commands: job -->\n```sh\n(.*?)```", readme, re.S)
    if block is None:
        raise SystemExit("docs/jobs.md has no commands that start a job")
    # The block says where cargo puts the program.
    own = {name: value for name, value in environment.items() if name != "CARGO_TARGET_DIR"}
    command = ["sh", "-ec", block[1]]
    # It compiles, too.
    ran = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=10 * LIMIT_S
    )
    if ran.returncode != 0:
        raise SystemExit(f"the commands of a job ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def two_hosts(readme: str, work: Path, environment: dict[str, str]) -> str:
    """The commands of docs/two-hosts.md, with this host as both: whether the file came."""
    (work / "copy").unlink()
    shown = re.search(r"<!-- commands: two hosts -->\n```sh\n(.*?)```", readme, re.S)
    lines = shown[1].splitlines() if shown else []
    if [line[:4] for line in lines] != ["# on", "haml", "HAML", "# on", "scp ", "HAML"]:
        raise SystemExit(f"docs/two-hosts.md has the commands {lines}")
    there, here = work / "a.example", work / "b.example"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for host in there, here:
        host.mkdir(mode=0o700)
    (work / "original").rename(here / "original")
    local = {"scp ": "cp ", "a.example:demo": f"{there}/demo"}
    local |= dict.fromkeys(["0.0.0.0:7000", "a.example:7000"], f"127.0.0.1:{port}")

    def on(host: Path, command: str) -> list[str]:
        for word, instead in local.items():
            command = command.replace(word, instead)
        # The killed process must be the command: it begins with assignments, which `exec` does not
        # take.
        return ["sh", "-c", f"cd {host} && export HAMLYN_DIR={host}/own && exec env {command}"]

    for host, command in (there, lines[1]), (here, lines[4]):
        subprocess.run(on(host, command), env=environment, check=True, timeout=LIMIT_S)
    pair(on(there, lines[2]), on(here, lines[5]), environment)
    same = (there / "copy").read_bytes() == (here / "original").read_bytes()
    return "identical" if same else "differ"


PUBLISHES = """
import sys, time, hamlyn
with hamlyn.Manager(listen=sys.argv[1], secret=sys.argv[2]) as manager:
    publisher = hamlyn.Publisher(manager)
    publisher.serve("ticks")
    for tick in range(1 << 62):
        publisher.publish(tick.to_bytes(8, "little"))
        time.sleep(0.01)
"""
"""The program `ticks` of docs/guide.md for a host of its own: that program has no feature `tls`."""


def relayed(
    readme: str, work: Path, python: str, watch: list[str], environment: dict[str, str]
) -> str:
    """The relay of docs/guide.md, with this host as both; returns the output of a subscriber."""
    shown = re.findall(r"^(hamlyn relay hamlyn://a\.example:7000/ticks .*?) +#", readme, re.M)
    if len(shown) != 1:
        raise SystemExit(f"docs/guide.md has, for a relay, {shown}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    secret = str(work / "relayed.secret")
    subprocess.run(["hamlyn", "keys", secret], env=environment, check=True, timeout=LIMIT_S)
    there, here = ({**environment, "HAMLYN_DIR": str(work / name)} for name in ("there", "here"))
    here["HAMLYN_SECRET"] = secret
    for host in there, here:
        Path(host["HAMLYN_DIR"]).mkdir(mode=0o700)
    publishes = [python, "-c", PUBLISHES, place, secret]
    relay = ["sh", "-c", f"exec {shown[0].replace('a.example:7000', place)}"]
    with subprocess.Popen(publishes, env=there) as publisher:
        try:
            return pair(relay, watch, here)[1]
        finally:
            publisher.kill()


def installed(readme: str, work: Path, target: Path, environment: dict[str, str]) -> str:
    """The guide's way to install the command alone, into a folder; returns its version."""
    shown = re.findall(r"`(cargo install [^`]*)`", readme)
    if len(shown) != 1:
        raise SystemExit(f"docs/guide.md has, to install the command, {shown}")
    # Its own build is the release build, which another step makes. Here it only matters whether it works: as
    # the tests have it, most of which has been compiled.
    quickly = {"CARGO_TARGET_DIR": str(target.parent), "CARGO_INSTALL_ROOT": str(work / "cargo")}
    own = {**environment, **quickly}
    command = ["sh", "-ec", f"{shown[0]} --profile dev --quiet"]
    done = subprocess.run(
        command, cwd=ROOT, env=own, capture_output=True, text=True, timeout=15 * LIMIT_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{shown[0]} ended with {done.returncode}: {done.stderr}")
    return ran([str(work / "cargo/bin/hamlyn"), "--version"], environment)


def main() -> int:
    hamlyn, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    readme = "".join((ROOT / page).read_text() for page in PAGES)
    wanted = {"server", "client", "echo", "receiver", "sender", "prices", "order", "ticks", "watch"}
    wanted.add("knock")
    built = compiled(readme, programs(readme, "rs", "rust,no_run", wanted), target)
    wrong = []

    def expect(what: str, text: str, wanted: str) -> None:
        print(f"   {what}: {text.strip()!r}")
        if wanted not in text:
            wrong.append(f"{what}: {wanted!r} is not in {text!r}")

    with tempfile.TemporaryDirectory() as work:
        environment = {
            **os.environ,
            "HAMLYN_DIR": f"{work}/own",
            "PATH": f"{hamlyn.parent}:{os.environ['PATH']}",
        }
        run = lambda name, *arguments: [str(built / name), *arguments]  # noqa: E731
        _, said = pair(run("server"), run("client"), environment)
        expect("the first service", said, "HELLO FROM ANOTHER PROCESS")
        expect("a protocol of one's own", ran(run("knock"), environment), "knock 3")
        said = drained(run("prices"), run("order"), environment)
        expect("values", said, "lamp: 5997 cents")
        expect("a server that SIGTERM drains", said, "drained, 0 requests without a reply")
        failed = subprocess.run(
            run("order"), env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        expect("an error, as a sentence", failed.stderr, ": nothing is called prices: the directory")
        _, said = pair(run("ticks"), run("watch"), environment)
        expect("one to many", said, ", missed 0 so far")
        said, _ = pair(run("receiver"), run("sender"), environment)
        expect("one message", said, "hello from another process")
        here, said = pair(run("echo"), run("echo", "ask"), environment)
        expect("the echo", said, "hello")
        expect("who it is", here, f" of user {os.geteuid()} is here")
        # Between two terminals.
        commands = re.findall(r"^(hamlyn (?:recv|send) demo.*?) +#", readme, re.M)
        if len(commands) != 2:
            raise SystemExit(f"README.md has the commands {commands}")
        (Path(work) / "original").write_bytes(os.urandom(3_000_000))
        shell = lambda command: ["sh", "-c", f"cd {work} && exec {command}"]  # noqa: E731
        pair(shell(commands[0]), shell(commands[1]), environment)
        same = (Path(work) / "copy").read_bytes() == (Path(work) / "original").read_bytes()
        expect("hamlyn recv, hamlyn send", "identical" if same else "differ", "identical")
        if len(sys.argv) > 3:
            wanted = {"receiver", "sender", "pipeline", "upper", "ask", "reverse", "mirror", "patient"}
            page = (ROOT / "python/README.md").read_text()
            for name, source in programs(page, "py", "python", wanted).items():
                (Path(work) / f"{name}.py").write_text(source)
            # Not as its own folder: the programs are no package.
            run = lambda name: [sys.argv[3], f"{work}/{name}.py"]  # noqa: E731
            said, _ = pair(run("receiver"), run("sender"), environment)
            expect("Python: a mean of random numbers", f"{float(said):.1f}", "0.5")
            shouts = [str(built / "server")]
            _, said = pair(shouts, run("patient"), environment)
            expect("Python: a client that connects again", said, "WHOEVER YOU ARE")
            said = drained(run("upper"), run("ask"), environment)
            expect("Python: asyncio", said, "AS OVER A SOCKET")
            said = drained(run("reverse"), run("mirror"), environment)
            expect("Python: an error of a server of requests", said, "ApplicationError(")
            expect("Python: a server that SIGTERM drains", said, "0 requests without an answer")
            said = ran(run("pipeline"), environment)
            expect("Python: three processes", said, "20 arrays of float32 and shape (480, 639)")
            said = relayed(readme, Path(work), sys.argv[3], [str(built / "watch")], environment)
            expect("a relay", said, "tick ")
        said = installed(readme, Path(work), target, environment)
        expect("the command, installed by cargo", said, "hamlyn ")
        said = job(readme, environment)
        expect("the ranks of a job", said, "4 ranks, 3 rounds: every block is what it should be")
        expect("two hosts", two_hosts(readme, Path(work), environment), "identical")
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
