"""Values of messages, through the application's own function, which may fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from kiel_groups.metrics import Metrics
from kiel_groups.model import Record

__all__ = ["deserialized"]

log = logging.getLogger(__name__)


def deserialized(
    records: Iterable[Record],
    deserializer: Callable[[Any], Any] | None,
    metrics: Metrics,
    unreadable: set[int] | None = None,
) -> list[Any]:
    """
    The values of records, as ``consume()`` returns them; one that cannot be read is logged, counted and passed over.

    Args:
        records: With bytes, or None, for values.
        deserializer: Gets these; ``json.loads`` where there is none.
        metrics: Counts ``deserializer_failures``.
        unreadable: Where given, the offsets of what was passed over are added.
    """
    read = deserializer or json.loads
    values = []
    for record in records:
        try:
            values.append(read(record.value))
        except Exception:  # the application's: one bad value must not stop the partition for ever
            log.exception("%s at offset %d: the value cannot be read", record.topic_partition, record.offset)
            metrics.count("deserializer_failures")
            if unreadable is not None:
                unreadable.add(record.offset)
    return values
