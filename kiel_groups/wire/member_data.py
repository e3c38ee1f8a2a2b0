"""
Declare the data that members of a group and their leader send to each other: a version, and the fields of version 0.

Coordinators pass these bytes on unread. Members of other clients may send later versions, which append fields. The
parser reads only the fields of version 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from kiel_groups.errors import ConfigError
from kiel_groups.wire.primitives import Buffer, FieldType, Reader, Writer


class MemberData:
    """
    The base class of member data. A subclass is a frozen dataclass whose last field is ``version``.

    ``PROTOCOL`` is the name of the protocol. ``FIELDS`` has the types of all fields except the version, by their names
    and in the order of the dataclass. ``EXPECTED`` lists the expected fields, for errors.
    """

    __slots__ = ()

    PROTOCOL: ClassVar[str]
    FIELDS: ClassVar[Mapping[str, FieldType[Any]]]
    EXPECTED: ClassVar[str] = ""

    version: int

    def encode(self) -> bytes:
        """
        Encode the version and the fields.

        Raises:
            ConfigError: The version is not 0, or a field does not fit its type.
        """
        if self.version != 0:
            raise ConfigError(
                f"version {self.version} of the {self.PROTOCOL} protocol cannot be encoded; only version 0 can"
            )
        writer = Writer()
        writer.int16(self.version)
        for name, field in self.FIELDS.items():
            field.write(writer, getattr(self, name))
        return writer.getvalue()

    @classmethod
    def parse(cls, data: Buffer, what: str) -> Self:
        """
        Parse the data of a member of any client. The parser ignores fields of later versions.

        Args:
            data: The bytes.
            what: The name of the data in errors, such as "the subscription of member m-1".

        Raises:
            ProtocolError: The data is truncated or invalid, or version 0 has bytes after its fields.
        """
        reader = Reader(data, what + cls.EXPECTED)
        version = reader.int16()
        if version < 0:
            raise reader.refuse(f"version {version} of the {cls.PROTOCOL} protocol")
        values = [field.read(reader) for field in cls.FIELDS.values()]
        if version == 0:
            reader.end()
        return cls(*values, version)  # type: ignore[call-arg]
