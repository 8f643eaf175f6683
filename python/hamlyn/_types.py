"""Names of types for annotations."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union

from . import _hamlyn

if sys.version_info >= (3, 12):
    from collections.abc import Buffer as Buffer
else:
    # Before Python 3.12 neither the language nor numpy's annotations have a type for buffers.
    Buffer: TypeAlias = Any

Access: TypeAlias = Union[Literal["same_user", "anyone"], int]
"""The processes that may connect: `"same_user"`, `"anyone"`, or the number of a group."""

WhenSlow: TypeAlias = Literal["wait", "drop_oldest", "drop_newest", "send_away"]
"""The policy for a slow subscriber, from the costliest for its publisher to the cheapest."""

Setting: TypeAlias = Union[int, str, bool, "os.PathLike[str]", None]
"""A setting's value."""


class Settings(TypedDict, total=False):
    """The settings of a `Manager`, described in docs/settings.md; `None` is the same as leaving one
    out. Sizes may be texts, such as "64K"."""

    dir: Union[str, "os.PathLike[str]", None]
    shared_dir: Union[str, "os.PathLike[str]", None]
    ring_bytes: Union[int, str, None]
    bulk_ring_bytes: Union[int, str, None]
    peer_ring_bytes_max: Union[int, str, None]
    bulk_after_bytes: Union[int, str, None]
    packet_bytes: Union[int, str, None]
    work_queue_entries: Union[int, str, None]
    send_buffers_max: Union[int, str, None]
    wait_mode: Union[Literal["polled", "adaptive", "blocking"], None]
    spin_ns: Union[int, str, None]
    yield_count: Union[int, str, None]
    packets_per_turn: Union[int, str, None]
    links_max: Union[int, str, None]
    areas_max: Union[int, str, None]
    area_bytes_max: Union[int, str, None]
    aperture_bytes_max: Union[int, str, None]
    aperture_user_bytes_max: Union[int, str, None]
    aperture_link_bytes_max: Union[int, str, None]
    aperture_map_max: Union[int, str, None]
    apertures_of_others: Union[bool, Literal["yes", "no"], None]
    apertures_per_link_max: Union[int, str, None]
    aperture_stream_bytes_min: Union[int, str, None]
    apertures_per_user_max: Union[int, str, None]
    slots_max: Union[int, str, None]
    connections_per_user_max: Union[int, str, None]
    bytes_per_user_max: Union[int, str, None]
    handshake_timeout_ms: Union[int, str, None]
    half_open_max: Union[int, str, None]
    wrong_keys_max: Union[int, str, None]
    refusals_per_second_max: Union[int, str, None]
    watchdog_ms: Union[int, str, None]
    huge_pages: Union[bool, Literal["yes", "no"], None]
    mlock: Union[bool, Literal["yes", "no"], None]
    undumpable: Union[bool, Literal["yes", "no"], None]
    housekeeping: Union[Literal["thread", "application"], None]
    wait_for_names: Union[bool, Literal["yes", "no"], None]
    listen: Union[str, None]
    secret: Union[str, "os.PathLike[str]", None]
    certificate: Union[str, "os.PathLike[str]", None]
    certificate_key: Union[str, "os.PathLike[str]", None]
    trusted: Union[str, "os.PathLike[str]", None]
    directory: Union[str, "os.PathLike[str]", None]
    links_from: Union[str, None]
    figures_to: Union[str, None]
    local: Union[Literal["ring", "tls"], None]
    rails: Union[int, str, None]
    rail_bytes: Union[int, str, None]
    fabric: Union[Literal["off", "trusted"], None]
    fabric_provider: Union[str, None]
    fabric_library: Union[str, "os.PathLike[str]", None]
    host_timeout_ms: Union[int, str, None]
    job_timeout_ms: Union[int, str, None]
    pmix_library: Union[str, "os.PathLike[str]", None]
    admit_unknown: Union[str, None]


class ClientSettings(TypedDict, total=False):
    """The settings of `Client.connect`."""

    outstanding: int
    reply_nbytes: int
    reply_nbytes_max: int


class SubscriberSettings(TypedDict, total=False):
    """The settings of `Subscriber.connect`."""

    depth: int
    when_slow: Union[WhenSlow, None]
    history: Union[int, None]
    outstanding: Union[int, None]


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    AnyArray: TypeAlias = npt.NDArray[Any]
    """An array of numpy's, of any type."""

    DType: TypeAlias = Union[str, type[Any], np.dtype[Any]]
    """The type of an array's elements: any argument of `numpy.dtype`."""
else:
    # numpy is not needed to send and receive bytes.
    AnyArray = DType = Any

Shape: TypeAlias = Union[int, Sequence[int]]
"""The shape of an array."""

Event: TypeAlias = Union[
    _hamlyn.LinkRequest,
    _hamlyn.LinkRequestGone,
    _hamlyn.Connected,
    _hamlyn.LinkClosed,
    _hamlyn.ApertureChanged,
    _hamlyn.TicketRevoked,
]
"""The results of `Manager.next_event`."""
