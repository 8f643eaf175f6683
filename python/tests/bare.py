"""Tests an installed wheel with nothing but Python: `python -I bare.py DIRECTORY`.

Without numpy, a compiler or the repository: two processes exchange a message, and the types are
there.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    os.environ["HAMLYN_DIR"] = sys.argv[1]
    assert importlib.util.find_spec("numpy") is None, "this environment is not bare"
    import hamlyn

    home = Path(hamlyn.__file__).parent
    assert home.is_relative_to(sys.prefix), home
    assert (home / "py.typed").exists() and (home / "_hamlyn.pyi").exists()
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.read(reads, 1)
        with hamlyn.Manager() as manager:
            with hamlyn.StreamSender.connect(manager, "bare") as sender:
                sender.send(b"a message")
        os._exit(0)
    with hamlyn.Manager() as manager:
        receiver = hamlyn.StreamReceiver(manager)
        receiver.serve("bare")
        os.write(writes, b".")
        with receiver.receive(60) as record:
            assert bytes(memoryview(record)) == b"a message"
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print(f"hamlyn {hamlyn.__version__} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
