"""Looks at a wheel: its name says the stable interface, and it holds what belongs there and no more.

    wheel.py hamlyn-VERSION-cp311-abi3-linux_MACHINE.whl
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hamlyn"


def wrong(wheel: Path) -> list[str]:
    """What is not as it should be."""
    found = []
    name = re.fullmatch(r"hamlyn-([0-9a-z.]+)-cp311-abi3-(many)?linux_\w+\.whl", wheel.name)
    if name is None:
        return [f"its name is {wheel.name}, and not hamlyn-VERSION-cp311-abi3-linux_MACHINE.whl"]
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        tag = archive.read(f"hamlyn-{name[1]}.dist-info/WHEEL").decode()
    if "\nTag: cp311-abi3-" not in tag:
        found.append(f"its WHEEL names no tag cp311-abi3: {tag!r}")
    about = {entry for entry in held if entry.startswith(f"hamlyn-{name[1]}.dist-info/")}
    wanted = {f"hamlyn/{path.name}" for path in PACKAGE.glob("*.py*") if path.is_file()}
    wanted |= {"hamlyn/py.typed", "hamlyn/_hamlyn.abi3.so"}
    assert {"hamlyn/__init__.py", "hamlyn/aio.py", "hamlyn/_hamlyn.pyi"} <= wanted
    found += [f"it lacks {entry}" for entry in sorted(wanted - held)]
    found += [f"{entry} does not belong there" for entry in sorted(held - about - wanted)]
    return found


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(f"one wheel is to be looked at, and not {sys.argv[1:]}")
    wheel = Path(sys.argv[1])
    if found := wrong(wheel):
        raise SystemExit(f"{wheel}: {'; '.join(found)}")


if __name__ == "__main__":
    main()
