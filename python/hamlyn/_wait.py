"""Waiting for any of several end points."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeAlias, Union

from . import _hamlyn
from ._errors import Misuse, TimedOut

Receiver: TypeAlias = Union[
    _hamlyn.TaggedReceiver,
    _hamlyn.DatagramReceiver,
    _hamlyn.StreamReceiver,
    _hamlyn.ApertureStreamReceiver,
    _hamlyn.Server,
    _hamlyn.Group,
]
"""A receiver from which senders are grown."""

Waitable: TypeAlias = Union[
    Receiver, _hamlyn.Subscriber, _hamlyn.ByteListener, _hamlyn.ByteStream
]
"""An end point for `wait_any`."""

# Messages that another thread receives between a look and the wait are noticed after this time.
_SLICE = 0.05


def wait_any(receivers: Sequence[Waitable], timeout: float | None = None) -> int:
    """Waits until one of several receivers of one manager has something to receive, at most
    `timeout` seconds; returns the index of the first that has. Raises `TimedOut`."""
    if not receivers:
        raise Misuse("there is nothing to wait for: no receivers were given")
    manager = receivers[0]._manager
    for i, receiver in enumerate(receivers):
        if receiver._manager._key != manager._key:
            raise Misuse(f"receiver {i} belongs to another manager")
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        manager.poll()
        for i, receiver in enumerate(receivers):
            if receiver.ready:
                return i
        left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
        if left <= 0:
            raise TimedOut("nothing arrived within the time limit")
        # Not `wait`: it would not wait while an event is unread.
        manager._wait_for_packet(left)
