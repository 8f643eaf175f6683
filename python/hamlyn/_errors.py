"""The exceptions. Each is a `HamlynError`, and what Python already has a word for besides.

The extension looks the classes up by name.
"""


class HamlynError(Exception):
    """What every exception of this package is."""


class TimedOut(HamlynError, TimeoutError):
    """The time limit was reached. Nothing was taken; what was being sent says what has left."""


class CutOff(TimedOut):
    """The time limit was reached when a part had left. All of it was taken, and is not to be sent
    again: the rest leaves with the next call."""


class Closed(HamlynError, ConnectionError):
    """The object is closed, or its peer has closed or died."""


class Refused(HamlynError, ConnectionRefusedError):
    """The other end, or the system's permissions, said no."""


class OtherVersion(Refused):
    """The other end speaks another version of the protocol."""


class Untrusted(Refused):
    """Of another host: one end's certificate is not trusted by the other, or not for this name, or has
    ended; or one could not prove to be the node that it says; or what came is not TLS."""


class WrongSecret(Refused):
    """Of another host: the two do not have the same secret."""


class Unreachable(HamlynError, ConnectionError):
    """Nobody is there: no such service, nobody listens, no link leads to the destination."""


class UnknownHost(Unreachable):
    """The name of another host has no address."""


class Misuse(HamlynError, ValueError):
    """What was asked for is not allowed: the program is to be changed. Nothing was done."""


class SeedError(Misuse):
    """The bytes or the text are no seed, or none of this kind."""


class ArrayError(HamlynError, ValueError):
    """What came is no array, or its header and its bytes do not fit. The message stays as it is."""


class Misbehaved(Closed):
    """The peer broke the protocol's rules, and was sent away."""


class Draining(Closed):
    """The server is about to close, and has not taken the request; at the server itself: it drains, and
    has no request left to be received."""


class Declined(HamlynError):
    """The server took the request and will not reply."""


class ApplicationError(HamlynError):
    """The server's program answered with an error of its own: its text, and in `code` what it
    means by it."""

    code: int = 0


class Forked(HamlynError, RuntimeError):
    """This process was forked from the one that made the object. Nothing was touched; a child
    makes objects of its own."""


class SystemRefused(HamlynError, OSError):
    """The operating system refused something that is needed."""


def _name(of: type[HamlynError]) -> None:
    # Tracebacks name them as programs do.
    of.__module__ = "hamlyn"
    for subclass in of.__subclasses__():
        _name(subclass)


_name(HamlynError)
