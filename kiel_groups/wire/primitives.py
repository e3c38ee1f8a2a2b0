"""
Read and write the protocol's types: numbers, strings, bytes, arrays, structures, and values by topic and partition.

Requests, responses and member data are declared with the types at the end of this module. Each type reads and writes
its values, so a new structure needs only a declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct, calcsize
from struct import error as StructError  # noqa: N812 - the struct module names its exception in lower case
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.model import TopicPartition

Buffer: TypeAlias = bytes | bytearray | memoryview

_INT16 = Struct(">h")
_INT32 = Struct(">i")

#: The length of a null string and of null bytes.
_NULL = -1
_EMPTY = memoryview(b"")

#: The most bytes of a string, whose length has 16 bits.
LONGEST_STRING = 0x7FFF


def _packing(code: str) -> Callable[[Writer, int], None]:
    """Return a method that writes numbers of this ``struct`` code. Such a method is faster than one for all codes."""
    pack, bits = Struct(f">{code}").pack, 8 * calcsize(code)

    def write(self: Writer, value: int) -> None:
        try:
            self._parts.append(pack(value))
        except StructError as error:
            raise ConfigError(f"{value!r} cannot be sent to a broker: not an int{bits}") from error

    return write


def _unpacking(code: str) -> Callable[[Reader], int]:
    """Return a method that reads numbers of this ``struct`` code."""
    number = Struct(f">{code}")
    unpack, size = number.unpack_from, number.size

    def read(self: Reader) -> int:
        start = self._position
        try:
            value: int = unpack(self._buffer, start)[0]
        except StructError:
            raise self._truncated(size) from None
        self._position = start + size
        return value

    return read


class Writer:
    """Encodes values one after the other. The methods raise ConfigError if a value does not fit its type."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[Buffer] = []

    int8 = _packing("b")
    int16 = _packing("h")
    int32 = _packing("i")
    int64 = _packing("q")

    def string(self, text: str) -> None:
        """
        Write text as UTF-8.

        Raises:
            ConfigError: The text has over 32,767 bytes, or no UTF-8 form.
        """
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} cannot be sent to a broker: it has no UTF-8 form") from error
        if len(encoded) > LONGEST_STRING:
            raise ConfigError(
                f"a text of {len(encoded)} bytes ({text[:20]!r}…) cannot be sent to a broker; "
                f"at most {LONGEST_STRING} bytes are allowed"
            )
        self._parts += (_INT16.pack(len(encoded)), encoded)

    def blob(self, value: bytes) -> None:
        """Write the length of these bytes, and then the bytes."""
        self.int32(len(value))
        self._parts.append(value)

    def optional_blob(self, value: bytes | None) -> None:
        """Write the length of these bytes, and then the bytes. For None, write the protocol's null."""
        if value is None:
            self.int32(_NULL)
        else:
            self.blob(value)

    def raw(self, value: Buffer) -> None:
        """Write bytes as they are, without their length."""
        self._parts.append(value)

    def fields(self, layout: Struct, values: tuple[int, ...]) -> None:
        """Write several numbers at once. One call is faster than one call for each number."""
        try:
            self._parts.append(layout.pack(*values))
        except StructError:
            # One of these calls raises an error that names the type of its number.
            for value, code in zip(values, layout.format[1:], strict=True):
                _packing(code)(self, value)

    def getvalue(self, *, after_size: bool = False) -> bytes:
        """Return all bytes that were written, after their size if that is asked for."""
        size = (_INT32.pack(sum(map(len, self._parts))),) if after_size else ()
        return b"".join((*size, *self._parts))


class Reader:
    """
    Decodes values one after the other from a payload.

    The reader checks all input. The methods raise ProtocolError if a value would reach past the end, if an array has
    more elements than the remaining bytes can contain, or if text is not UTF-8. The reader checks lengths and counts
    before it allocates memory.

    Args:
        payload: The bytes to read. Blobs are returned as views into the payload, without a copy.
        what: The name of the payload in errors, such as "a fetch response".
    """

    __slots__ = ("_buffer", "_position", "_what")

    def __init__(self, payload: Buffer, what: str) -> None:
        self._buffer = memoryview(payload)
        self._position = 0
        self._what = what

    int8 = _unpacking("b")
    int16 = _unpacking("h")
    int32 = _unpacking("i")
    int64 = _unpacking("q")

    def string(self) -> str:
        """
        Read text.

        Raises:
            ProtocolError: The text is null, truncated, or not UTF-8.
        """
        length = self.int16()
        if length < 0:
            raise self.refuse(f"a length of {length}")
        return self.text(length)

    def optional_string(self) -> str:
        """Read text. Null becomes the empty text: brokers of 0.8 send null for a missing text."""
        start = self._position
        if self.int16() == _NULL:
            return ""
        self._position = start
        return self.string()

    def text(self, size: int) -> str:
        """Read text of ``size`` bytes."""
        start = self._position
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise self.refuse("a text that is no UTF-8", start) from error

    def blob(self) -> memoryview:
        """Read a length, and return a view of as many bytes. Null becomes the empty view."""
        return self.blob_of(self.int32())

    def optional_blob(self) -> memoryview | None:
        """Read a length, and return a view of as many bytes. Null becomes None."""
        length = self.int32()
        return None if length == _NULL else self.blob_of(length)

    def blob_of(self, length: int) -> memoryview:
        """Return a view of the next bytes, whose length was read before. The length -1 (null) gives the empty view."""
        if length in (0, _NULL):
            return _EMPTY
        if length < 0:
            raise self.refuse(f"a length of {length}")
        return self.take(length)

    def take(self, size: int) -> memoryview:
        """Return a view of the next ``size`` bytes."""
        end = self._position + size
        if end > len(self._buffer):
            raise self._truncated(size)
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def array(self, least_bytes: int) -> range:
        """
        Read the number of elements of an array, and return a range of this length to loop over.

        Args:
            least_bytes: The least size of an element in bytes, 1 or more.

        Raises:
            ProtocolError: The number is negative, or larger than the remaining bytes allow.
        """
        return self.elements(self.int32(), least_bytes)

    def elements(self, count: int, least_bytes: int) -> range:
        """
        Check the number of elements of an array, which the caller has read, and return a range of this length.

        See ``array`` for the other argument and the errors.
        """
        left = len(self._buffer) - self._position
        if count < 0 or count * least_bytes > left:
            raise self.refuse(f"an array of {count} elements, with {left} bytes left")
        return range(count)

    def end(self) -> None:
        """
        Check that all bytes were read.

        Raises:
            ProtocolError: Bytes are left, so the payload is not of the expected kind.
        """
        left = len(self._buffer) - self._position
        if left:
            raise self.refuse(f"{left} bytes after its end")

    def refuse(self, found: str, position: int | None = None) -> ProtocolError:
        """Return a ProtocolError that names what was ``found`` at ``position``, by default the present position."""
        at = self._position if position is None else position
        return ProtocolError(f"{self._what} of {len(self._buffer)} bytes holds {found}, at byte {at}")

    def fields(self, layout: Struct) -> tuple[int, ...]:
        """Read several numbers at once. One call is faster than one call for each number."""
        start = self._position
        try:
            values = layout.unpack_from(self._buffer, start)
        except StructError:
            raise self._truncated(layout.size) from None
        self._position = start + layout.size
        return values

    def _truncated(self, size: int) -> ProtocolError:
        return self.refuse(f"a value of {size} bytes, with {len(self._buffer) - self._position} bytes left")


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class FieldType(NamedTuple, Generic[T]):
    """A type of the protocol: functions that read and write a value, and the least size of a value in bytes."""

    read: Callable[[Reader], T]
    write: Callable[[Writer, T], None]
    least_bytes: int

    def decode(self, payload: Buffer, what: str) -> T:
        """
        Decode a payload that consists of one value.

        Args:
            payload: The bytes.
            what: The name of the payload in errors, such as "a fetch response".

        Raises:
            ProtocolError: The payload is not a value of this type, or it is longer than the value.
        """
        reader = Reader(payload, what)
        value = self.read(reader)
        reader.end()
        return value

    def encode(self, value: T) -> bytes:
        """
        Encode one value.

        Raises:
            ConfigError: The value does not fit this type.
        """
        writer = Writer()
        self.write(writer, value)
        return writer.getvalue()


INT8: Final = FieldType(Reader.int8, Writer.int8, 1)
INT16: Final = FieldType(Reader.int16, Writer.int16, 2)
INT32: Final = FieldType(Reader.int32, Writer.int32, 4)
INT64: Final = FieldType(Reader.int64, Writer.int64, 8)
STRING: Final = FieldType(Reader.string, Writer.string, 2)
#: Null is read as the empty text.
NULLABLE_STRING: Final = FieldType(Reader.optional_string, Writer.string, 2)
#: Null is read as no bytes. Reading makes a copy.
BYTES: Final = FieldType[bytes](lambda reader: bytes(reader.blob()), Writer.blob, 4)
NULLABLE_BYTES: Final = FieldType[bytes | None](
    lambda reader: None if (blob := reader.optional_blob()) is None else bytes(blob), Writer.optional_blob, 4
)


def array(element: FieldType[T]) -> FieldType[tuple[T, ...]]:
    """Return the type of an array: the number of elements as int32, and the elements."""
    read_one, write_one, least_bytes = element

    def read(reader: Reader) -> tuple[T, ...]:
        return tuple([read_one(reader) for _ in reader.array(least_bytes)])

    def write(writer: Writer, values: tuple[T, ...]) -> None:
        writer.int32(len(values))
        for value in values:
            write_one(writer, value)

    return FieldType(read, write, INT32.least_bytes)


def structure(make: Callable[..., T], *fields: FieldType[Any]) -> FieldType[T]:
    """
    Return the type of a structure: its fields, one after the other.

    When the decoder reads a structure, ``make`` creates the value from the fields. A value to write must be a tuple of
    the fields, such as a NamedTuple.
    """
    reads, writes = [each.read for each in fields], [(place, each.write) for place, each in enumerate(fields)]

    def read(reader: Reader) -> T:
        values = []
        for read_field in reads:
            values.append(read_field(reader))
        return make(*values)

    def write(writer: Writer, value: Any) -> None:
        for place, write_field in writes:
            write_field(writer, value[place])

    return FieldType(read, write, sum(each.least_bytes for each in fields))


def tuple_of(*types: FieldType[Any]) -> FieldType[tuple[Any, ...]]:
    """Return the type of a structure whose values are plain tuples."""
    return structure(lambda *values: values, *types)


def fields(**types: FieldType[Any]) -> Mapping[str, FieldType[Any]]:
    """Return the types of the fields of a request or of member data, by field name, in the order of the arguments."""
    return types


def numbers(make: Callable[..., T], codes: str) -> FieldType[T]:
    """
    Return the type of a structure of numbers with these ``struct`` codes. This type is faster than a type from
    ``structure``.
    """
    layout = Struct(f">{codes}")

    def write(writer: Writer, value: Any) -> None:
        writer.fields(layout, value)

    return FieldType(lambda reader: make(*reader.fields(layout)), write, layout.size)


def mapping(key: FieldType[K], value: FieldType[V], what: str) -> FieldType[Mapping[K, V]]:
    """
    Return the type of an array of pairs of key and value. The decoder returns a dictionary.

    A duplicate key raises ProtocolError, which calls the key ``what``.
    """

    def read(reader: Reader) -> Mapping[K, V]:
        found: dict[K, V] = {}
        for _ in reader.array(key.least_bytes + value.least_bytes):
            name = key.read(reader)
            if name in found:
                raise reader.refuse(f"{what} {name!r} twice")
            found[name] = value.read(reader)
        return found

    def write(writer: Writer, values: Mapping[K, V]) -> None:
        writer.int32(len(values))
        for name, each in values.items():
            key.write(writer, name)
            value.write(writer, each)

    return FieldType(read, write, INT32.least_bytes)


def by_partition(value: FieldType[T]) -> FieldType[Mapping[TopicPartition, T]]:
    """
    Return the type of an array of (topic, array of (partition number, value)). The decoder returns a dictionary.

    A duplicate partition raises ProtocolError.
    """
    read_value, write_value, value_bytes = value

    def read(reader: Reader) -> Mapping[TopicPartition, T]:
        values: dict[TopicPartition, T] = {}
        for _ in reader.array(STRING.least_bytes + INT32.least_bytes):
            topic = reader.string()
            for _ in reader.array(INT32.least_bytes + value_bytes):
                topic_partition = TopicPartition(topic, reader.int32())
                if topic_partition in values:
                    raise reader.refuse(f"partition {topic_partition} twice")
                values[topic_partition] = read_value(reader)
        return values

    def write(writer: Writer, values: Mapping[TopicPartition, T]) -> None:
        topics: dict[str, list[tuple[int, T]]] = {}
        for (topic, partition), each in values.items():
            topics.setdefault(topic, []).append((partition, each))
        writer.int32(len(topics))
        for topic, numbered in topics.items():
            writer.string(topic)
            writer.int32(len(numbered))
            for partition, each in numbered:
                writer.int32(partition)
                write_value(writer, each)

    return FieldType(read, write, INT32.least_bytes)


def numbers_by_name(what: str, least: int) -> FieldType[Mapping[str, tuple[int, ...]]]:
    """
    Return the type of an array of (name, array of numbers). The decoder returns a dictionary.

    A name that occurs twice gets the numbers of both arrays, each number once. A number below ``least`` raises
    ProtocolError, which calls the number ``what``.
    """

    def read(reader: Reader) -> Mapping[str, tuple[int, ...]]:
        # Dictionaries are sets that keep the order.
        found: dict[str, dict[int, None]] = {}
        for _ in reader.array(STRING.least_bytes + INT32.least_bytes):
            its_numbers = found.setdefault(reader.string(), {})
            for _ in reader.array(INT32.least_bytes):
                number = reader.int32()
                if number < least:
                    raise reader.refuse(f"{what} {number}")
                its_numbers[number] = None
        return {name: tuple(its_numbers) for name, its_numbers in found.items()}

    return FieldType(read, mapping(STRING, array(INT32), "name").write, INT32.least_bytes)


def throttled(answer: FieldType[T]) -> FieldType[T]:
    """
    Return the type of a response that begins with its throttle time in milliseconds. The decoder ignores this time.
    """

    def read(reader: Reader) -> T:
        reader.int32()
        return answer.read(reader)

    def write(writer: Writer, value: T) -> None:
        writer.int32(0)
        answer.write(writer, value)

    return FieldType(read, write, INT32.least_bytes + answer.least_bytes)
