"""The extension's uses of numpy, and of pyarrow: a program that sends and receives bytes needs
neither."""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any

from ._errors import ArrayError

if TYPE_CHECKING:
    import numpy as np

    from ._types import AnyArray, Buffer, DType, Shape

# Types of the array interface by the letters of `struct`, for objects with a buffer and no interface.
_KINDS = {**dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), "?": "b", "e": "f"}
_KINDS |= {"f": "f", "d": "f"}


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("numpy is needed to show an array: pip install numpy") from error
    return numpy


# Below this are the numbers of numpy's own types, but that of strings of any length.
_NUMBERS_OF_OTHERS = 256


def _own(kind: Any) -> None:
    """Raises `BufferError` for a type that is not numpy's own, or has no bytes of its own."""
    if kind.char == "T":
        raise BufferError(
            "strings of any length (StringDType) are not sent, since their bytes are elsewhere: send "
            "array.astype('U'), which gives each the length of the longest"
        )
    if not 0 <= kind.num < _NUMBERS_OF_OTHERS:
        size = kind.itemsize
        number = f"uint{8 * size}" if size in (1, 2, 4, 8) else f"V{size}"
        raise BufferError(
            f"a type that is not numpy's own, such as {kind.name}, is not sent: view it as {number}, "
            f"array.view({number!r}), and that as {kind.name} again where it arrives"
        )


def _named(text: str, descr: object) -> str:
    if text[1:2] == "V" and text[0] in "<>":
        number = f"uint{8 * int(text[2:])}"
        raise BufferError(
            f"a type that is not numpy's own, such as bfloat16, is not sent: view it as {number}, "
            f"array.view({number!r}), and that again where it arrives"
        )
    # `descr` has the fields of a type that is otherwise only so many bytes.
    if descr not in (None, [("", text)]):
        raise BufferError(
            f"a type with fields or parts ({descr}) is not sent: send each field, or view the array "
            "as bytes"
        )
    return text


def told(array: Any) -> tuple[str, tuple[int, ...]]:
    """Type and shape of an array that is to be sent, as it says itself."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise BufferError(
            "a masked array is not sent, since its mask would be lost: send array.filled(), or array.data "
            "and array.mask"
        )
    numpy, kind = sys.modules.get("numpy"), getattr(array, "dtype", None)
    if numpy is not None and isinstance(kind, numpy.dtype):
        _own(kind)
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        return _named(interface["typestr"], interface.get("descr")), interface["shape"]
    try:
        view: Any = memoryview(array)
    except TypeError as error:
        if hasattr(array, "__array__") or hasattr(array, "__dlpack__"):
            name = type(array).__name__
            raise BufferError(
                f"this {name} does not lend its bytes: send numpy.asarray({name.lower()}), having copied it "
                "to the processor's memory where it is in that of another device"
            ) from error
        raise
    letter = view.format.lstrip("@=<>!")
    order = "<>"[view.format[:1] in (">", "!")]
    if letter == "c":
        letter = "B"
    if letter not in _KINDS:
        raise BufferError(
            f"elements of the format {view.format!r} have no type to be sent with: send them as bytes, "
            "memoryview(..).cast('B'), or as an array of numpy"
        )
    size = view.itemsize
    shape: tuple[int, ...] = view.shape
    return f"{'|' if size == 1 else order}{_KINDS[letter]}{size}", shape


def wanted(dtype: DType, shape: Shape) -> tuple[str, tuple[int, ...]]:
    """The same for an array that is to be made."""
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    for i, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"dimension {i} of the shape {lengths} has a negative length")
    if isinstance(dtype, str) and dtype[:1] in "<>|":
        return dtype, lengths
    kind = _numpy().dtype(dtype)
    _own(kind)
    return _named(kind.str, kind.descr), lengths


def _type(text: str) -> np.dtype[Any]:
    try:
        kind: np.dtype[Any] = _numpy().dtype(text)
    except TypeError as error:
        raise ArrayError(f"numpy has no type {text!r} on this machine") from error
    if kind.hasobject:
        raise ArrayError(f"the type {text!r} holds Python objects")
    return kind


def checked(array: AnyArray) -> AnyArray:
    """An array whose truth values are 0 or 1: numpy's behaviour with others is undefined."""
    if array.dtype.kind == "b" and array.size and array.view("u1").max() > 1:
        raise ArrayError("the array of truth values holds a byte that is neither 0 nor 1")
    return array


def _type_of(text: str, shape: tuple[int, ...], size: int) -> np.dtype[Any]:
    """The type for which an array of this shape has `size` bytes, by the header and by numpy."""
    kind = _type(text)
    if math.prod(shape) * kind.itemsize != size:
        raise ArrayError(f"numpy's {text!r} has {kind.itemsize} bytes, and not those of the header")
    return kind


def shown(owner: Buffer, text: str, shape: tuple[int, ...], size: int, start: int) -> AnyArray:
    """`size` bytes of a buffer from `start` on, as an array that holds that buffer."""
    numpy, kind = _numpy(), _type_of(text, shape, size)
    try:
        if size == 0:
            array: AnyArray = numpy.empty(shape, kind)
            array.flags.writeable = not memoryview(owner).readonly
        else:
            # Through a memoryview: numpy holds that, and with it the owner's buffer.
            count = math.prod(shape)
            array = numpy.frombuffer(memoryview(owner), kind, count, start).reshape(shape)
    except ValueError as error:
        raise ArrayError(f"numpy takes no array of the shape {shape}: {error}") from error
    return checked(array)


def empty(text: str, shape: tuple[int, ...], size: int) -> tuple[AnyArray, AnyArray]:
    """A new array of `size` bytes, and its bytes."""
    numpy = _numpy()
    try:
        array = numpy.empty(shape, _type_of(text, shape, size))
    except ValueError as error:
        raise ArrayError(f"numpy takes no array of the shape {shape}: {error}") from error
    return array, array.reshape(-1).view("u1") if array.nbytes else numpy.empty(0, "u1")


def area(owner: Buffer, dtype: DType, shape: Shape, offset: int) -> AnyArray:
    """Bytes of a message area, as an array that can be written."""
    text, lengths = wanted(dtype, shape)
    kind = _type(text)
    count = math.prod(lengths)
    view = memoryview(owner)
    if offset + count * kind.itemsize > len(view):
        raise ValueError(
            f"{count * kind.itemsize} bytes from {offset} on are not inside the area of {len(view)}"
        )
    if count * kind.itemsize == 0:
        empty: AnyArray = _numpy().empty(lengths, kind)
        return empty
    found: AnyArray = _numpy().frombuffer(view, kind, count, offset).reshape(lengths)
    return found


def arrow(array: Any, requested: object) -> tuple[object, object]:
    """A one-dimensional array of numbers, in Arrow's C data interface, without a copy."""
    try:
        pyarrow = importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError("pyarrow is needed for Arrow's interface: pip install pyarrow") from error
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not array.dtype.isnative:
        raise BufferError(
            f"Arrow has flat arrays of numbers, and this is {array.dtype.str!r} of the shape "
            f"{array.shape}"
        )
    kind = pyarrow.from_numpy_dtype(array.dtype)
    buffers = [None, pyarrow.py_buffer(memoryview(array).cast("B"))]
    made = pyarrow.Array.from_buffers(kind, len(array), buffers)
    found: tuple[object, object] = made.__arrow_c_array__(requested)
    return found
