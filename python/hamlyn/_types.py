"""Names of types for annotations."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeAlias, Union

from . import _hamlyn

if sys.version_info >= (3, 12):
    from collections.abc import Buffer as Buffer
else:
    # Before Python 3.12 neither the language nor numpy's annotations say what has a buffer.
    Buffer: TypeAlias = Any

Access: TypeAlias = Union[str, int]
"""Who may connect: `"same_user"`, `"anyone"`, or the number of a group."""

Setting: TypeAlias = Union[int, str, bool, "os.PathLike[str]", None]
"""A setting's value."""

Event: TypeAlias = Union[
    _hamlyn.LinkRequest,
    _hamlyn.LinkRequestGone,
    _hamlyn.Connected,
    _hamlyn.LinkClosed,
    _hamlyn.ApertureChanged,
    _hamlyn.TicketRevoked,
]
"""What `Manager.next_event` returns."""
