"""Read and write the protocol's primitive types, and arrays of topics that have arrays of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - the struct module names its exception in lower case
from typing import TypeAlias, TypeVar

import six

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition

__all__ = [
    "LONGEST_STRING",
    "Buffer",
    "Reader",
    "Writer",
    "write_partitions",
    "read_partitions",
]


# Read and write the protocol's primitive types: big-endian integers, strings and bytes with a length, counted arrays.
#
# The reader checks all input: a value that would reach past the end, a count of more elements than the remaining bytes
# can hold, or text that is no UTF-8 is a ProtocolError, raised before memory is allocated for it.


Buffer: TypeAlias = bytes | bytearray | memoryview

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")

#: The length of a null string and of null bytes.
_NULL = -1
_EMPTY = memoryview(b"")

#: The most bytes of a string, whose length has 16 bits.
LONGEST_STRING = 0x7FFF


class Writer:
    """Collects the parts of one request. A value that does not fit its type raises ConfigError."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def int16(self, value: int) -> None:
        self._pack(_INT16, value)

    def int32(self, value: int) -> None:
        self._pack(_INT32, value)

    def int64(self, value: int) -> None:
        self._pack(_INT64, value)

    def string(self, text: str) -> None:
        """
        Write text as UTF-8.

        Raises:
            ConfigError: The text has over 32,767 bytes, or no UTF-8 form.
        """
        try:
            encoded = six.ensure_binary(text, "utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} cannot be sent to a broker: it has no UTF-8 form") from error
        if len(encoded) > LONGEST_STRING:
            raise ConfigError(
                f"a text of {len(encoded)} bytes ({text[:20]!r}…) cannot be sent to a broker; "
                f"at most {LONGEST_STRING} bytes are allowed"
            )
        self._parts += (_INT16.pack(len(encoded)), encoded)

    def blob(self, value: bytes) -> None:
        """Write bytes, which are not null."""
        self._pack(_INT32, len(value))
        self._parts.append(value)

    def optional_blob(self, value: bytes | None) -> None:
        """Write bytes, or the protocol's null for None."""
        if value is None:
            self._pack(_INT32, _NULL)
        else:
            self.blob(value)

    def fields(self, layout: Struct, *values: int) -> None:
        """Write several numbers at once, which is faster than one after the other."""
        try:
            self._parts.append(layout.pack(*values))
        except StructError:
            # One of them raises an error with its own type.
            for value, code in zip(values, layout.format[1:], strict=True):
                self._pack(Struct(f">{code}"), value)

    def getvalue(self) -> bytes:
        """Return the bytes written so far."""
        return b"".join(self._parts)

    def _pack(self, number: Struct, value: int) -> None:
        try:
            self._parts.append(number.pack(value))
        except StructError as error:
            raise ConfigError(f"{value!r} cannot be sent to a broker: not an int{8 * number.size}") from error


class Reader:
    """
    Reads one value after the other from a payload.

    Args:
        payload: The bytes to read; blobs are returned as views into it, without a copy.
        what: The name of the payload in errors, such as "a fetch response".
    """

    __slots__ = ("_buffer", "_position", "_what")

    def __init__(self, payload: Buffer, what: str) -> None:
        self._buffer = memoryview(payload)
        self._position = 0
        self._what = what

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def string(self) -> str:
        """
        Read text.

        Raises:
            ProtocolError: The text is null, truncated, or no UTF-8.
        """
        start = self._position
        encoded = bytes(self._take(self._length(_INT16, start), start))
        try:
            return six.ensure_text(encoded, "utf-8")
        except UnicodeDecodeError as error:
            raise self._refusal(start, "a text that is no UTF-8") from error

    def optional_string(self) -> str:
        """Read text. Null, which brokers of 0.8 send for a missing text, becomes the empty text."""
        start = self._position
        if self._peek(_INT16) == _NULL:
            self._position = start + _INT16.size
            return ""
        return self.string()

    def blob(self) -> memoryview:
        """Read bytes as a view. Null becomes the empty view."""
        return self.blob_of(self._number(_INT32))

    def optional_blob(self) -> memoryview | None:
        """Read bytes as a view. Null becomes None."""
        length = self._number(_INT32)
        return None if length == _NULL else self.blob_of(length)

    def blob_of(self, length: int) -> memoryview:
        """Read bytes as a view, after their length, which is -1 for null. Null becomes the empty view."""
        if length in (0, _NULL):
            return _EMPTY
        start = self._position - _INT32.size
        if length < 0:
            raise self._refusal(start, f"a length of {length}")
        return self._take(length, start)

    def take(self, size: int) -> memoryview:
        """Read as many bytes, as a view."""
        return self._take(size, self._position)

    def array(self, least_bytes: int) -> range:
        """
        Read the count of an array, and return a range to loop over.

        Args:
            least_bytes: The least size of an element in bytes, 1 or more.

        Raises:
            ProtocolError: The count is negative, or larger than the remaining bytes allow.
        """
        start = self._position
        count = self._number(_INT32)
        left = len(self._buffer) - self._position
        if count < 0 or count * least_bytes > left:
            raise self._refusal(start, f"an array of {count} elements, with {left} bytes left")
        return range(count)

    def end(self) -> None:
        """
        Check that all bytes were read.

        Raises:
            ProtocolError: Bytes are left: this is no response of the expected kind.
        """
        left = len(self._buffer) - self._position
        if left:
            raise self._refusal(self._position, f"{left} bytes after its end")

    def refuse(self, found: str) -> ProtocolError:
        """Return the error for a value that could be read and makes no sense."""
        return self._refusal(self._position, found)

    def fields(self, layout: Struct) -> tuple[int, ...]:
        """Read several numbers at once, which is faster than one after the other."""
        start = self._position
        try:
            values = layout.unpack_from(self._buffer, start)
        except StructError:
            raise self._truncated(start, layout.size) from None
        self._position = start + layout.size
        return values

    def _number(self, number: Struct) -> int:
        value = self._peek(number)
        self._position += number.size
        return value

    def _peek(self, number: Struct) -> int:
        try:
            value: int = number.unpack_from(self._buffer, self._position)[0]
        except StructError:
            raise self._truncated(self._position, number.size) from None
        return value

    def _length(self, number: Struct, start: int) -> int:
        length = self._number(number)
        if length < 0:
            raise self._refusal(start, f"a length of {length}")
        return length

    def _take(self, size: int, start: int) -> memoryview:
        end = self._position + size
        if end > len(self._buffer):
            raise self._truncated(start, size)
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def _truncated(self, start: int, size: int) -> ProtocolError:
        return self._refusal(start, f"a value of {size} bytes, with {len(self._buffer) - self._position} bytes left")

    def _refusal(self, position: int, found: str) -> ProtocolError:
        return ProtocolError(f"{self._what} of {len(self._buffer)} bytes holds {found}, at byte {position}")


T = TypeVar("T")

_LEAST_TOPIC_BYTES = 2 + 4
_PARTITION_BYTES = 4


def write_partitions(
    writer: Writer, values: Iterable[tuple[TopicPartition, T]], write: Callable[[Writer, T], None]
) -> None:
    """Write values topic by topic. ``write`` writes one value, after the partition's number."""
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), value in values:
        topics.setdefault(topic, []).append((partition, value))
    writer.int32(len(topics))
    for topic, partitions in topics.items():
        writer.string(topic)
        writer.int32(len(partitions))
        for partition, value in partitions:
            writer.int32(partition)
            write(writer, value)


def read_partitions(reader: Reader, read: Callable[[Reader], T], least_bytes: int) -> Mapping[TopicPartition, T]:
    """
    Read a whole response of this shape.

    Args:
        reader: Positioned at the array of topics, which is the rest of the response.
        read: Reads one value, after the partition's number.
        least_bytes: The least size of a value in bytes.

    Raises:
        ProtocolError: The response is truncated, too long, or has a partition twice.
    """
    values: dict[TopicPartition, T] = {}
    for _ in reader.array(_LEAST_TOPIC_BYTES):
        topic = reader.string()
        for _ in reader.array(_PARTITION_BYTES + least_bytes):
            topic_partition = TopicPartition(topic, reader.int32())
            if topic_partition in values:
                raise reader.refuse(f"partition {topic_partition} twice")
            values[topic_partition] = read(reader)
    reader.end()
    return values
