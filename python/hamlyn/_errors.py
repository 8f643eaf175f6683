"""The exceptions. Each is a `HamlynError`, and the fitting exception of Python's besides.

The extension looks the classes up by name.
"""


class HamlynError(Exception):
    """The base of every exception of this package."""


class TimedOut(HamlynError, TimeoutError):
    """The time limit has passed. Nothing was taken; the text of a send says how much has left."""


class CutOff(TimedOut):
    """The time limit passed when a part had left. All of the message was taken, and must not be sent
    again: the rest leaves with the next call."""


class Closed(HamlynError, ConnectionError):
    """The object is closed, or its peer has closed or died."""


class Refused(HamlynError, ConnectionRefusedError):
    """The other end, or the system's permissions, refused."""


class OtherVersion(Refused):
    """The other end speaks another version of the protocol."""


class Untrusted(Refused):
    """For another host: one end does not trust the other's certificate, or it is for another name, or
    has expired; or one end could not prove which node it is; or the other side does not speak TLS."""


class WrongSecret(Refused):
    """For another host: the two do not have the same secret."""


class Unreachable(HamlynError, ConnectionError):
    """There is no such service, no process listens there, or no link leads to the destination."""


class UnknownHost(Unreachable):
    """The name of another host has no address."""


class Misuse(HamlynError, ValueError):
    """The call is not allowed: a bug of the program. Nothing was done."""


class SeedError(Misuse):
    """The bytes or the text are not a seed, or not one of this kind."""


class ArrayError(HamlynError, ValueError):
    """The received bytes are not an array, or its header and its bytes do not fit. The message stays as
    it is."""


class Misbehaved(Closed):
    """The peer broke the protocol's rules, and was disconnected."""


class Draining(Closed):
    """The server is about to close, and has not taken the request; at the server itself: it drains, and
    no request is left."""


class Declined(HamlynError):
    """The server took the request and will not reply."""


class ApplicationError(HamlynError):
    """The server's program answered with an error of its own: its text, and its code in `code`."""

    code: int = 0


class Forked(HamlynError, RuntimeError):
    """This process was forked from the one that made the object. Nothing was touched; a child
    makes objects of its own."""


class SystemRefused(HamlynError, OSError):
    """The operating system refused a resource that the library needs."""


def _name(of: type[HamlynError]) -> None:
    # Tracebacks show their public names.
    of.__module__ = "hamlyn"
    for subclass in of.__subclasses__():
        _name(subclass)


_name(HamlynError)
