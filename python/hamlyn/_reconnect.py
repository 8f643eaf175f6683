"""The policy of clients that connect again; the clients are `python/src/reconnect.rs`, and `_aio_calls`
for tasks."""

from __future__ import annotations

from dataclasses import dataclass

from ._errors import Misuse


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """The times and number of attempts of a `ReconnectingClient`. Times are seconds.

    `first_delay` is before the first attempt of an outage; each further one is `factor` times as long,
    `delay_max` at most. A random part of up to its own length is added to each delay, so that not all
    clients of a server come back at once. `attempt_limit` is the time limit of one attempt, also for a
    name without a server. `attempts_max` and `outage_max` end an outage: then the client has given up
    for good. `None` is without limit. `calls_wait`: calls without a connection wait for the next one,
    within their own time limits; if not, they start an attempt and raise `Unreachable` at once."""

    first_delay: float = 0.01
    factor: float = 2.0
    delay_max: float = 5.0
    attempt_limit: float = 1.0
    attempts_max: int | None = None
    outage_max: float | None = None
    calls_wait: bool = True

    def __post_init__(self) -> None:
        if not (self.first_delay >= 0 and self.delay_max >= 0 and self.attempt_limit > 0):
            raise Misuse(f"{self}: delays are at least 0 seconds, and an attempt takes more")
        if not self.factor >= 1:
            raise Misuse(f"factor={self.factor}: it is at least 1")
