"""Checks a wheel: its name has the stable interface and the glibc that it needs, and it contains
the right files and no others.

    wheel.py hamlyn-VERSION-cp311-abi3-manylinux_2_GLIBC_MACHINE.whl
    wheel.py --local hamlyn-VERSION-cp311-abi3-linux_MACHINE.whl

The second form is for the output of `pip wheel .`, for the same machine, whose name has no glibc.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hamlyn"


# The libraries of every manylinux that a library may name (PEP 600, and auditwheel's policies).
LIBRARIES = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}


def needs(library: bytes) -> tuple[int, int]:
    """The newest glibc of which it asks for a symbol."""
    versions = re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", library)
    return max((int(major), int(minor)) for major, minor in versions)


def libraries(library: bytes) -> set[str]:
    """The libraries that it names, the loader apart."""
    named = {name.decode() for name in re.findall(rb"\0(lib[\w+-]+\.so\.\d+)(?=\0)", library)}
    # Opened at run time where they are wanted, and not needed.
    return {name for name in named if not name.startswith(("libfabric", "libpmix"))}


def wrong(wheel: Path, is_local: bool) -> list[str]:
    """The errors found."""
    found = []
    platform = "linux" if is_local else r"manylinux_(\d+)_(\d+)"
    name = re.fullmatch(rf"hamlyn-([0-9a-z.]+)-cp311-abi3-{platform}_[a-z]\w+\.whl", wheel.name)
    if name is None:
        return [f"its name is {wheel.name}, and not hamlyn-VERSION-cp311-abi3-{platform}_MACHINE.whl"]
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        tag = archive.read(f"hamlyn-{name[1]}.dist-info/WHEEL").decode()
        library = archive.read("hamlyn/_hamlyn.abi3.so")
    if not is_local and (says := (int(name[2]), int(name[3]))) != needs(library):
        found.append(f"it says that it needs glibc {says}, and needs {needs(library)}")
    if more := libraries(library) - LIBRARIES:
        found.append(f"it needs {sorted(more)}, which not every system has")
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
    is_local = sys.argv[1:2] == ["--local"]
    wheels = sys.argv[1 + is_local :]
    if len(wheels) != 1:
        raise SystemExit(f"one wheel is to be looked at, and not {wheels}")
    wheel = Path(wheels[0])
    if found := wrong(wheel, is_local):
        raise SystemExit(f"{wheel}: {'; '.join(found)}")


if __name__ == "__main__":
    main()
