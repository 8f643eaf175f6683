"""A directory of the program's own: what runs in the thread of one look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import _hamlyn


def look_up(
    directory: Callable[[str, float | None], Iterable[str]],
    service: str,
    timeout: float | None,
    answer: _hamlyn._Answer,
) -> None:
    """Asks `directory`, and says what it has found, or why it has found nothing."""
    try:
        found = directory(service, timeout)
        if isinstance(found, (str, bytes)):
            raise TypeError(f"a directory returned {found!r}; it returns a list of 'host:port'")
        places = list(found)
        for place in places:
            if not isinstance(place, str):
                raise TypeError(f"a directory returned {place!r} among the places; each is a str")
        answer.give(places)
    # Whoever connects is told; there is nobody else to tell.
    except BaseException as error:
        answer.fail(f"{type(error).__name__}: {error}")
