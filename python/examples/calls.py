"""Request and reply: a server of several threads, and a client with many calls outstanding."""

from __future__ import annotations

import threading

import hamlyn
from common import own_directory, second_process, when_served


def client() -> None:
    with hamlyn.Manager() as manager:
        client = when_served(lambda: hamlyn.Client.connect(manager, "upper"))
        calls = [client.start(f"call {i}".encode()) for i in range(20)]
        for i, call in enumerate(calls):
            assert call.finish(30) == f"CALL {i}".encode()
        print("the client has all answers:", client.explain())
        client.call(b"stop", 30)


def main() -> None:
    with own_directory(), hamlyn.Manager() as manager, hamlyn.Server(manager) as server:
        server.serve("upper")
        stopped = threading.Event()

        def answer() -> None:
            while not stopped.is_set():
                try:
                    request = server.receive(0.2)
                except hamlyn.TimedOut:
                    continue
                # What is not replied to is declined at the end of the block. Without it, `request` would
                # keep one that failed until the next has come, and its client would wait.
                try:
                    with request:
                        if request.data == b"stop":
                            stopped.set()
                        request.reply(request.data.upper(), 1)
                except hamlyn.HamlynError as e:
                    print("a client has no reply:", e)

        threads = [threading.Thread(target=answer) for _ in range(3)]
        with second_process(client):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
