#!/usr/bin/env python3
"""Checks that the simulations find bugs: plants all in a copy of the tree, and runs each alone.

    scripts/planted.py [NAME ..]     all of them, or only these

A bug replaces a text that stands once in a file: the bug where `PLANTED`, else the original text.
All are compiled at once; an environment variable selects one. Each must make a simulation fail:
that of the control plane (tests/sim_control.rs), of a node's decisions (src/engine) or of whole
nodes (src/simulated.rs). Exit status 1: a simulation has not found one, or its text has changed.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
MACHINE = "src/control/machine/"
HOSTS = "src/control/hosts/"
TRANSPORT = "src/transport/"

# name: file, original text, planted text, effect
BUGS = {
    "silent-end": (
        MACHINE + "table/leaving.rs",
        "LeaveReason::Theirs(reason),\n            ) => Report::Closed(reason),",
        "LeaveReason::Theirs(reason),\n            ) => if PLANTED { Report::Nothing } else { Report::Closed(reason) },",
        "a link ends, and the application is not told",
    ),
    "kept-account": (
        MACHINE + "table/leaving.rs",
        "            self.settle(remains);\n        }\n        Some(left)",
        "            if !PLANTED { self.settle(remains); }\n        }\n        Some(left)",
        "a connection leaves, and its user goes on paying",
    ),
    "false-credential": (
        MACHINE + "meeting.rs",
        "if let Verdict::False(why) = verdict {",
        "if let (Verdict::False(why), false) = (verdict, PLANTED) {",
        "a credential that is not its bearer's is believed",
    ),
    "unpaid-memory": (
        MACHINE + "memory.rs",
        "            Touched::NotPaid => return self.bad_memory(id),",
        "            Touched::NotPaid if PLANTED => *transfer = Transfer::Held,\n"
        "            Touched::NotPaid => return self.bad_memory(id),",
        "memory for which nobody has paid is taken",
    ),
    "no-deadline": (
        MACHINE + "table/mod.rs",
        "        self.deadlines.first().copied()",
        "        self.deadlines.first().copied().filter(|row| !PLANTED || row.0 == 0)",
        "time limits are never over",
    ),
    "unbounded-links": (
        MACHINE + "account.rs",
        "        taken < max.saturating_sub(kept)",
        "        taken < max.saturating_sub(kept).saturating_add(if PLANTED { 64 } else { 0 })",
        "more links than there may be",
    ),
    "lost-receiver": (
        MACHINE + "table/receivers.rs",
        "        self.accounts.receivers = self.accounts.receivers.saturating_sub(1);",
        "        self.accounts.receivers = self.accounts.receivers.saturating_sub(if PLANTED { 0 } else { 1 });",
        "a thread that has ended is counted for good",
    ),
    "lost-place": (
        "src/engine/turns.rs",
        "            self.places[moved as usize].position = position as u32;",
        "            self.places[moved as usize].position = position as u32 + u32::from(PLANTED);",
        "a link that took another's place in a list is not found there",
    ),
    "passed-over": (
        "src/engine/turns.rs",
        "                if position < self.next_active {",
        "                if position < self.next_active && !PLANTED {",
        "a link that takes the place of one that had its turn has none in this round",
    ),
    "unbounded-turn": (
        "src/engine/turns.rs",
        "            if budget.is_spent() {",
        "            if budget.is_spent() && !PLANTED {",
        "a turn takes what all links have",
    ),
    "stuck-sweep": (
        "src/engine/turns.rs",
        "                self.turns_mut().next_idle += 1;",
        "                self.turns_mut().next_idle += if PLANTED { 0 } else { 1 };",
        "only the first idle link is ever looked at",
    ),
    "unseen-link": (
        "src/engine/turns.rs",
        "        self.places[link as usize] = TurnEntry::default();\n        self.put(link, List::Active);",
        "        self.places[link as usize] = TurnEntry::default();\n        self.put(link, if PLANTED { List::Idle } else { List::Active });",
        "a new link is looked at as if it had been idle for long",
    ),
    "no-long-turn": (
        "src/engine/turns.rs",
        "            false if is_alone && self.len() <= 1 => TURNS_PER_LONG_TURN_ALONE,",
        "            false if is_alone && (PLANTED || self.len() <= 1) => TURNS_PER_LONG_TURN_ALONE,",
        "idle links wait too long for a turn that looks at them",
    ),
    "no-last-look": (
        "src/engine/sleep.rs",
        "            if self.is_ready(link) {\n                self.look_again(link);",
        "            if self.is_ready(link) && !(PLANTED && by == WakeBy::Bell) {\n                self.look_again(link);",
        "a node falls asleep over a packet that came before it said so",
    ),
    "armed-once": (
        "src/engine/sleep.rs",
        "        if !self.is_used && self.by == by {",
        "        if (!self.is_used || PLANTED) && self.by == by {",
        "a node that was woken sleeps again without saying so",
    ),
    "no-barrier": (
        "src/engine/sleep.rs",
        "            AnnounceStep::NeedsBarrier if self.barrier() => {",
        "            AnnounceStep::NeedsBarrier if PLANTED || self.barrier() => {",
        "a node looks before its senders are sure to see that it sleeps",
    ),
    "no-naps": (
        "src/engine/sleep.rs",
        "                self.naps().barrier_refused();",
        "                if !PLANTED { self.naps().barrier_refused(); }",
        "a node sleeps without end where the kernel refuses its barrier",
    ),
    "silent-armed": (
        "src/engine/sleep.rs",
        "    if !asks && !sleep.is_for_any(announced) && !is_half_full() {",
        "    if !asks && (PLANTED || !sleep.is_for_any(announced)) && !is_half_full() {",
        "what is sent over a link that nobody looks at is not signalled",
    ),
    "passed-queue": (
        "src/engine/queued.rs",
        "        if position < self.next {",
        "        if position < self.next && !PLANTED {",
        "messages to a link whose place another took wait though it is their turn",
    ),
    "unlisted-queue": (
        "src/engine/queued.rs",
        "            self.places[link as usize].position = position as u32;",
        "            self.places[link as usize].position = position as u32 + u32::from(PLANTED);",
        "a link that took another's place in the list of those that wait is not found there",
    ),
    "untold-leader": (
        "src/engine/threads.rs",
        "            leader: self.has_leader() && has_moved,",
        "            leader: self.has_leader() && has_moved && !PLANTED,",
        "the leader sleeps over what another thread took",
    ),
    "untold-followers": (
        "src/engine/threads.rs",
        "(has_moved || !self.has_leader()),",
        "(has_moved || (!self.has_leader() && !PLANTED)),",
        "threads follow one that leads no more",
    ),
    "stale-route": (
        "src/engine/routes.rs",
        "        self.last = None;\n    }",
        "        if !PLANTED { self.last = None; }\n    }",
        "messages go where a link was that has ended",
    ),
    "no-limit": (
        "src/engine/wait.rs",
        "        if self.is_past(now_ns) {\n            return WaitStep::TimedOut;",
        "        if self.is_past(now_ns) && !PLANTED {\n            return WaitStep::TimedOut;",
        "a wait has no end",
    ),
    "sleeps-unlooked": (
        "src/engine/wait.rs",
        "        let looks = matches!(step, None | Some(WaitStep::Sleep { .. } | WaitStep::TimedOut));",
        "        let looks = matches!(step, None | Some(WaitStep::Sleep { .. } | WaitStep::TimedOut))\n"
        "            && !(PLANTED && step.is_some());",
        "a thread sleeps though its last turn took what it waits for",
    ),
    "stubborn-spin": (
        "src/engine/wait.rs",
        "        self.pause = 1 << self.failures;",
        "        self.pause = if PLANTED { 0 } else { 1 << self.failures };",
        "a thread goes on spinning on the processor that its peer needs",
    ),
    "silent-room": (
        "src/node/link.rs",
        "        if let Some(by) = self.room.must_signal() {",
        "        if let (Some(by), true) = (self.room.must_signal(), !PLANTED) {",
        "whoever waits for room is not woken",
    ),
    "silent-inbox": (
        "src/control/shell/inbox.rs",
        "            self.word.wake();",
        "            if !PLANTED { self.word.wake(); }",
        "a node that sleeps on words does not hear of new links",
    ),
    "lost-rest": (
        "src/node/links.rs",
        "        if link.rx.is_ready() && link.rx.lines_taken() < leaving.until {",
        "        if link.rx.is_ready() && link.rx.lines_taken() < leaving.until && !PLANTED {",
        "what a peer had written when it left is dropped",
    ),
    "silent-death": (
        "src/node/links.rs",
        "        self.drain(LeavingLink { link: id, until, reason, unsent });",
        "        if !PLANTED || reason != CloseReason::HungUp {\n            self.drain(LeavingLink { link: id, until, reason, unsent });\n        }",
        "a node is not told that its peer has gone",
    ),
    "late-unlooked": (
        TRANSPORT + "carrier.rs",
        "        if self.out.is_ready() && !is_over {\n            return Lateness::Again;",
        "        if self.out.is_ready() && !is_over && !PLANTED {\n            return Lateness::Again;",
        "what is sent while the thread of other hosts looks for the last time waits for good",
    ),
    "silent-late": (
        TRANSPORT + "carrier.rs",
        "            self.owner.hand_over();",
        "            if !PLANTED { self.owner.hand_over(); }",
        "the thread of other hosts is not woken for what the network did not take",
    ),
    "untold-send": (
        TRANSPORT + "carrier.rs",
        "            self.sleep.arm_for_any();\n            if self.waits",
        "            if !PLANTED { self.sleep.arm_for_any(); }\n            if self.waits",
        "a send over a link to another host is told to nobody",
    ),
    "stubborn-place": (
        HOSTS + "course.rs",
        "let again = self.may_try_again() &&",
        "let again = !PLANTED && self.may_try_again() &&",
        "a place that refuses at first is not asked again where another says nothing",
    ),
    "silent-host": (
        HOSTS + "turns.rs",
        "            if is_silent && row.was_silent {",
        "            if is_silent && row.was_silent && !PLANTED {",
        "a host that has lost its power is never told of",
    ),
    "lost-batch": (
        TRANSPORT + "rails/mod.rs",
        "        if self.sending.left(rail.id) {",
        "        if self.sending.left(rail.id) && !PLANTED {",
        "what was on its way over a rail that is left is not sent again",
    ),
}


# Says whether a bug is there.
SWITCH = """
#[cfg(feature = "os")]
pub(crate) fn planted(name: &str) -> bool {
    static NAME: std::sync::OnceLock<std::string::String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("HAMLYN_PLANTED").unwrap_or_default()) == name
}
"""

ENGINE = ["--lib", "engine::"]
CONTROL = ["--test", "sim_control"]
WHOLE = ["--lib", "simulated::"]
# Of several hosts, with more seeds than the tests' own, since few of them meet the case.
WHOLE_HOSTS = ["--lib", "simulated::hosts"]
HOSTS_SEEDS = 150
VERSION = 'version = "0.1.0"'
# Of the build folder of the tests, whose dependencies these are.
FEATURES = ["--features", "serde,tokio,tls,libfabric"]


def copy(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    # To cargo the copy is another version: in the one build folder it does not pass for this tree.
    manifest = tree / "Cargo.toml"
    text = manifest.read_text()
    assert text.count(VERSION) == 1, f"{manifest} has no {VERSION}"
    manifest.write_text(text.replace(VERSION, 'version = "0.1.0+planted"'))


def plant(tree: Path) -> list[str]:
    """Plants all; returns those whose text is not there, or not once."""
    gone = []
    for name, (file, stands, planted, _) in BUGS.items():
        path = tree / file
        text = path.read_text()
        if text.count(stands) != 1:
            print(f"{name}: what it replaces stands {text.count(stands)} times in {file}")
            gone.append(name)
            continue
        path.write_text(text.replace(stands, planted.replace("PLANTED", f'crate::planted("{name}")')))
    with (tree / "src/lib.rs").open("a") as lib:
        lib.write(SWITCH)
    return gone


def simulations(tree: Path, runs: list[list[str]], bug: str) -> subprocess.CompletedProcess[str]:
    """Runs them with a bug; returns the first that failed, or the last."""
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(TARGET),
        "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
        "HAMLYN_PLANTED": bug,
    }
    if WHOLE_HOSTS in runs:
        environment["HAMLYN_SIM_SEEDS"] = str(HOSTS_SEEDS)
    for what in runs:
        command = ["cargo", "test", "--quiet", *FEATURES, *what]
        try:
            done = subprocess.run(
                command, cwd=tree, env=environment, capture_output=True, text=True, timeout=900
            )
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(command, 124, "test result: FAILED: no end", "")
        if done.returncode != 0:
            break
    return done


def main() -> int:
    names = sys.argv[1:] or list(BUGS)
    tree = TARGET / "planted" / "tree"
    copy(tree)
    missed = [name for name in plant(tree) if name in names]
    for runs in [ENGINE, CONTROL, WHOLE], [WHOLE_HOSTS]:
        done = simulations(tree, runs, "")
        if done.returncode != 0:
            break
    if done.returncode != 0:
        print(f"the simulations fail without any of them:\n{(done.stdout + done.stderr)[-2000:]}")
        return 1
    for name in names:
        if name in missed:
            continue
        file, _, _, what = BUGS[name]
        runs = [WHOLE]
        if file.startswith(("src/engine", MACHINE)):
            runs = [ENGINE, CONTROL]
        elif file.startswith((HOSTS, TRANSPORT)):
            runs = [WHOLE_HOSTS]
        began = time.monotonic()
        done = simulations(tree, runs, name)
        found = done.returncode != 0 and "test result: FAILED" in done.stdout + done.stderr
        if not found:
            missed.append(name)
            print((done.stdout + done.stderr)[-2000:])
        verdict = "found" if found else "NOT FOUND"
        print(f"{name:18}{verdict:11} {time.monotonic() - began:4.0f} s  {what}", flush=True)
    print(f"{len(names) - len(missed)} of {len(names)} planted bugs were found")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
