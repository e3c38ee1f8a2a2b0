"""The Produce request, version 0. It appends message sets to partitions that the broker leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kiel_groups.model import TopicPartition
from kiel_groups.wire.error_codes import ERROR, ErrorCode
from kiel_groups.wire.framing import Request
from kiel_groups.wire.primitives import BYTES, INT16, INT32, INT64, by_partition, fields, structure


class ProducedPartition(NamedTuple):
    """The outcome for one message set. ``base_offset`` is the offset of its first message, or -1 after an error."""

    error: ErrorCode
    base_offset: int


@dataclass(frozen=True, slots=True)
class ProduceRequest(Request[Mapping[TopicPartition, ProducedPartition]]):
    """
    Append one message set to each partition. A message set is stored or fails independently of the other sets.

    ``acks`` is the number of replicas that must have the messages before the broker answers: 0 (the broker does not
    answer), 1 (the leader), another number, or -1 (all in-sync replicas). The broker waits for the replicas at most
    ``timeout_ms``.
    """

    API_KEY, API_VERSION, ANSWER_NAME, NAMED = 0, 0, "a produce response", "message_sets"
    BODY = fields(acks=INT16, timeout_ms=INT32, message_sets=by_partition(BYTES))
    ANSWER = by_partition(structure(ProducedPartition, ERROR, INT64))

    acks: int
    timeout_ms: int
    message_sets: Mapping[TopicPartition, bytes]

    @property
    def expects_response(self) -> bool:
        """Whether the broker answers this request: False with ``acks`` 0."""
        return self.acks != 0
