"""
Check a message set with the compiled decoder (``_messages.c``), and divide it into runs of plain messages.

The compiled code reads plain messages only. Where it stops, this module examines what follows: a wrapper, whose content
becomes a run of its own, the end of the set, or invalid data. If the package was installed without a compiler,
``COMPILED`` is False, and ``python_decoder`` reads message sets instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kiel_groups.errors import ProtocolError
from kiel_groups.model import Record, TopicPartition
from kiel_groups.wire.message_sets.corrupt_messages import (
    BAD_CRC,
    BAD_LENGTH,
    check_content,
    check_wrapper,
    damage_in_wrapper,
    refusal,
)
from kiel_groups.wire.message_sets.message_layout import Run, message_at, offset_at
from kiel_groups.wire.message_sets.partial_messages import partial_message
from kiel_groups.wire.message_sets.wrappers import unwrap
from kiel_groups.wire.primitives import Buffer

try:
    from kiel_groups.wire import _messages
except ImportError:
    COMPILED = False
else:
    COMPILED = True

__all__ = ["COMPILED", "LAST_OFFSET", "CheckedSet", "check_set"]

#: The highest possible offset.
LAST_OFFSET = (1 << 63) - 1


@dataclass(slots=True)
class CheckedSet:
    """
    The readable part of a set, and why it ends.

    The runs may include messages before ``position`` and after ``last_wanted``.
    """

    data: Buffer
    source: TopicPartition
    position: int
    last_wanted: int
    #: Bytes, and where in them whole plain messages start and stop.
    runs: list[tuple[Buffer, int, int]] = field(default_factory=list)
    #: The offset of the last message that was read, or skipped inside a wrapper.
    last_offset: int = -1
    #: The position in ``data`` after the message with ``last_offset``, or after the wrapper that contains the message.
    stop: int = 0
    #: Whether reading ended at a message after ``last_wanted``.
    passed: bool = False
    error: ProtocolError | None = None

    def records(self) -> list[Record]:
        """Return the records from ``position`` to ``last_wanted``."""
        topic, partition = self.source
        return _messages.records(tuple(self.runs), self.position, self.last_wanted, Record, topic, partition)

    def columns(self) -> tuple[bytes, _messages.Column, _messages.Column]:
        """Return the offsets, keys and values of these records as columns; see ``_messages.pyi``."""
        return _messages.columns(tuple(self.runs), self.position, self.last_wanted)

    def raise_reason(self) -> None:
        """
        Raise the reason why the set has no wanted message. Do nothing if the set has simply ended.

        Raises:
            ProtocolError: A message could not be read.
            PartialMessage: The set ends with the beginning of a message.
        """
        if self.error is not None:
            raise self.error
        if not self.passed and self.stop < len(self.data):
            raise partial_message(self.data, self.stop, self.source, self.position)


def check_set(
    data: Buffer, source: TopicPartition, position: int, max_decompressed_bytes: int, last_wanted: int = LAST_OFFSET
) -> CheckedSet:
    """
    Check a set up to the first message that cannot be read, or that is after ``last_wanted``.

    Args:
        data: The set, which must not change as long as the result is used.
        source: The partition that the set belongs to.
        position: The offset of the fetch. Wrappers that end before this offset are not unpacked.
        max_decompressed_bytes: How much wrappers may unpack to.
        last_wanted: Reading ends with the first message that has a higher offset.
    """
    found = CheckedSet(data, source, position, last_wanted)
    try:
        _check_into(found, max_decompressed_bytes)
    except ProtocolError as error:
        found.error = error
    return found


def _check_into(found: CheckedSet, budget: int) -> None:
    data, source = found.data, found.source
    while not found.passed:
        start = found.stop
        found.stop, found.last_offset, verdict = _messages.check(data, start, found.last_offset, found.last_wanted)
        found.runs.append((data, start, found.stop))
        if verdict == _messages.STOPPED_BEHIND:
            found.passed = True
            return
        _refuse(verdict, data, found.stop, source)
        wrapper_end = check_wrapper(data, found.stop, found.last_offset, source)
        if wrapper_end is None:
            return
        wrapper_offset = offset_at(data, found.stop)
        if wrapper_offset >= found.position:
            wrapper = bytes(data[found.stop : wrapper_end])
            with damage_in_wrapper(wrapper_offset, wrapper):
                content = unwrap(wrapper, source, budget)
                found.runs.append(_checked_content(content, found.last_offset, wrapper_offset, source))
            budget -= len(content)
        found.stop, found.last_offset = wrapper_end, wrapper_offset
        found.passed = wrapper_offset > found.last_wanted


def _checked_content(
    content: bytes, last_offset: int, wrapper_offset: int, source: TopicPartition
) -> tuple[bytes, int, int]:
    stop, last_offset, verdict = _messages.check(content, 0, last_offset, LAST_OFFSET)
    _refuse(verdict, content, stop, source)
    run = Run(stop, last_offset, check_wrapper(content, stop, last_offset, source))
    check_content(content, run, wrapper_offset, source)
    return content, 0, stop


def _refuse(verdict: int, data: Buffer, stop: int, source: TopicPartition) -> None:
    """Raise if the verdict is that the plain message at ``stop`` cannot be read."""
    if verdict == _messages.STOPPED_BY_LENGTH:
        raise refusal(source, offset_at(data, stop), BAD_LENGTH, message_at(data, stop))
    if verdict == _messages.STOPPED_BY_CRC:
        raise refusal(source, offset_at(data, stop), BAD_CRC, message_at(data, stop))
