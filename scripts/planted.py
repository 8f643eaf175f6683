#!/usr/bin/env python3
"""Whether the simulations find bugs: plants one after the other in a copy of the tree, and runs them.

    scripts/planted.py [NAME ..]     all of them, or only these

A bug is a piece of text that stands once in a file, and what stands there instead. Each must compile
and must make the simulation of the control plane (tests/sim_control.rs) or of the turns
(src/engine/turns.rs) fail. Exit status 1: one was not found, or its text has changed.
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

# name: file, what stands there, what is planted, what goes wrong
BUGS = {
    "silent-end": (
        MACHINE + "table/leaving.rs",
        "Leave::Theirs(reason)) => Report::Closed(reason),",
        "Leave::Theirs(reason)) => {\n                drop(reason);\n                Report::Nothing\n            }",
        "a link ends, and the application is not told",
    ),
    "kept-account": (
        MACHINE + "table/leaving.rs",
        "            self.settle(remains);\n        }\n        Some(left)",
        "            drop(remains);\n        }\n        Some(left)",
        "a connection leaves, and its user goes on paying",
    ),
    "false-credential": (
        MACHINE + "meeting.rs",
        "if let Verdict::False(why) = verdict {",
        "if let (Verdict::False(why), true) = (verdict, process == Some(u64::MAX)) {",
        "a credential that is not its bearer's is believed",
    ),
    "unpaid-memory": (
        MACHINE + "memory.rs",
        "            Touched::NotPaid => return self.bad_memory(id),",
        "            Touched::NotPaid => *transfer = Transfer::Held,",
        "memory for which nobody has paid is taken",
    ),
    "no-deadline": (
        MACHINE + "table/mod.rs",
        "        self.deadlines.first().copied()",
        "        self.deadlines.first().copied().filter(|row| row.0 == 0)",
        "time limits are never over",
    ),
    "unbounded-links": (
        MACHINE + "account.rs",
        "        taken < max.saturating_sub(kept)",
        "        taken < max.saturating_sub(kept).saturating_add(64)",
        "more links than there may be",
    ),
    "lost-receiver": (
        MACHINE + "table/receivers.rs",
        "        self.accounts.receivers = self.accounts.receivers.saturating_sub(1);",
        "        self.accounts.receivers += 0;",
        "a thread that has ended is counted for good",
    ),
    "lost-place": (
        "src/engine/turns.rs",
        "            self.places[moved as usize].position = position as u32;",
        "            self.places[moved as usize].position = position as u32 + 1;",
        "a link that took another's place in a list is not found there",
    ),
    "passed-over": (
        "src/engine/turns.rs",
        "                if position < self.next_active {",
        "                if position < self.next_active && self.next_active == usize::MAX {",
        "a link that takes the place of one that had its turn has none in this round",
    ),
    "unbounded-turn": (
        "src/engine/turns.rs",
        "            if budget.is_spent() {",
        "            if budget.is_spent() && links == usize::MAX {",
        "a turn takes what all links have",
    ),
    "stuck-sweep": (
        "src/engine/turns.rs",
        "                self.turns_mut().next_idle += 1;",
        "                self.turns_mut().next_idle += 0;",
        "only the first idle link is ever looked at",
    ),
    "unseen-link": (
        "src/engine/turns.rs",
        "        self.places[link as usize] = Place::default();\n        self.put(link, List::Active);",
        "        self.places[link as usize] = Place::default();\n        self.put(link, List::Idle);",
        "a new link is looked at as if it had been idle for long",
    ),
    "no-long-turn": (
        "src/engine/turns.rs",
        "            false if is_alone && self.len() <= 1 => TURNS_PER_LONG_TURN_ALONE,",
        "            false if is_alone => TURNS_PER_LONG_TURN_ALONE,",
        "idle links wait too long for a turn that looks at them",
    ),
}


def simulations(tree: Path) -> subprocess.CompletedProcess[str]:
    command = "cargo test --no-default-features --quiet".split()
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET / "planted" / "target")}
    failed = None
    for what in (["--lib", "engine::"], ["--test", "sim_control"]):
        done = subprocess.run(
            command + what, cwd=tree, env=environment, capture_output=True, text=True
        )
        if done.returncode != 0:
            return done
        failed = done
    assert failed is not None
    return failed


def main() -> int:
    names = sys.argv[1:] or list(BUGS)
    tree = TARGET / "planted" / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if simulations(tree).returncode != 0:
        print("the simulations fail as they are")
        return 1
    missed = 0
    for name in names:
        file, stands, planted, what = BUGS[name]
        path = tree / file
        text = path.read_text()
        if text.count(stands) != 1:
            print(f"{name}: what it replaces stands {text.count(stands)} times in {file}")
            missed += 1
            continue
        path.write_text(text.replace(stands, planted))
        began = time.monotonic()
        done = simulations(tree)
        path.write_text(text)
        if done.returncode == 0:
            verdict = "NOT FOUND"
        elif "test result: FAILED" in done.stdout + done.stderr:
            verdict = "found"
        else:
            verdict = "DOES NOT COMPILE"
            print(done.stderr[-2000:])
        missed += verdict != "found"
        print(f"{name:18}{verdict:11} {time.monotonic() - began:4.0f} s  {what}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs were found")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
