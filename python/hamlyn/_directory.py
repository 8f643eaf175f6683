"""A directory of the program's own: the code in the thread of one look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import _hamlyn


def look_up(
    directory: Callable[[str, float | None], Iterable[str]],
    service: str,
    timeout: float | None,
    answer: _hamlyn._Answer,
) -> None:
    """Calls `directory`, and passes on its places, or the reason why it found none."""
    try:
        found = directory(service, timeout)
        if isinstance(found, (str, bytes)):
            raise TypeError(f"a directory returned {found!r}; it returns a list of 'host:port'")
        places = list(found)
        for place in places:
            if not isinstance(place, str):
                raise TypeError(f"a directory returned {place!r} among the places; each is a str")
        answer.give(places)
    # The error goes to the connecting call, and nowhere else.
    except BaseException as error:
        answer.fail(f"{type(error).__name__}: {error}")
