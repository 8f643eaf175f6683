"""Log entries of links, as records of the logger `hamlyn`."""

from __future__ import annotations

import atexit
import logging
import os
import threading

from . import _hamlyn

_logger = logging.getLogger("hamlyn")
_logger.addHandler(logging.NullHandler())
_lock = threading.Lock()
_thread: threading.Thread | None = None


def log_events(on: bool = True) -> None:
    """From now on the logger `hamlyn` has a record for each link that comes or goes, and for each peer
    that is refused or disconnected, with the reason, in all managers of this process; `False` ends
    that.

    Records of links that come, end with a goodbye, or of a right that was revoked, are of level INFO;
    of refusals, deaths and ends without a goodbye WARNING; of broken rules ERROR. Each has the
    attributes `hamlyn_kind` ("connected", "refused", "failed", "closed", "lost", "died", "sent-away",
    "expelled", "revoked", "left-out"), `hamlyn_user` and `hamlyn_process` (`None` if unknown),
    `hamlyn_service` and `hamlyn_reason`.

    A thread of their own makes the records, and sleeps until an entry comes; messages cost nothing
    more. At most 64 records a second are made for the peers of one user, and then one with the number
    of those left out. A forked child has to call this again.
    """
    global _thread
    with _lock:
        if on and _thread is None:
            _hamlyn._open_log()
            _thread = threading.Thread(target=_tell, name="hamlyn-log", daemon=True)
            _thread.start()
        elif not on and _thread is not None:
            _hamlyn._close_log()
            # A handler may end the log, too.
            if _thread is not threading.current_thread():
                _thread.join()
            _thread = None


def _tell() -> None:
    while (entry := _hamlyn._next_entry()) is not None:
        kind, level, user, process, service, reason, text = entry
        extra = {
            "hamlyn_kind": kind,
            "hamlyn_user": user,
            "hamlyn_process": process,
            "hamlyn_service": service,
            "hamlyn_reason": reason,
        }
        # Not as a format: a reason may contain any characters.
        _logger.log(level, "%s", text, extra=extra)


def _forget() -> None:
    """In a forked child: the thread is the parent's."""
    global _lock, _thread
    _lock, _thread = threading.Lock(), None


# Before the interpreter ends, which would kill the thread within a call of the library.
atexit.register(log_events, False)
os.register_at_fork(after_in_child=_forget)
