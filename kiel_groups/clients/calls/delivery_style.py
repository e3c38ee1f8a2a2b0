"""The ways in which a consumer delivers records, of which a consumer uses one."""

from __future__ import annotations

from enum import Enum

from kiel_groups.errors import ConfigError

__all__ = ["DeliveryStyle", "StyleChoice"]


class DeliveryStyle(Enum):
    """A way to get records, as errors name it."""

    ITERATION = "iteration ('async for record in consumer')"
    VALUES = "consume(topic)"
    RECORDS = "getone(), getmany() and consume_batches()"


class StyleChoice:
    """
    The style of one consumer. The first use decides.

    A partition's finished offset is one number. If two styles delivered the partition, each with its own record in
    flight, the consumer could not tell which records before that offset are finished (decision 0006).
    """

    def __init__(self) -> None:
        self._style: DeliveryStyle | None = None

    def choose(self, style: DeliveryStyle) -> None:
        """
        Use a style.

        Raises:
            ConfigError: The consumer uses another one.
        """
        self._style = self._style or style
        if self._style is not style:
            raise ConfigError(
                f"this consumer delivers by {self._style.value}, and {style.value} was called: one consumer delivers in"
                " one way, or it could not know which records are finished; use one of the two, or a second consumer"
            )
