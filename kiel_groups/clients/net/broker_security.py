"""The credentials and the TLS settings of brokers, as the file with the credentials has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kiel_groups.config import KAFKA_PORT
from kiel_groups.errors import ConfigError
from kiel_groups.security_file import ServerSecurity

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSecurity(ServerSecurity):
    """
    The credentials and the TLS settings of the brokers of one cluster. By default, there are none.

    SASL needs a user, a password and ``sasl_mechanism``.
    """

    KIND: ClassVar[str] = "kafka"
    PORT: ClassVar[int] = KAFKA_PORT

    sasl_mechanism: str = ""

    def check(self, place: str) -> None:
        """Check the mechanism of SASL. ``place`` names the table in errors."""
        if self.sasl_mechanism and self.sasl_mechanism not in MECHANISMS:
            raise ConfigError(
                f"{place} sasl-mechanism: {self.sasl_mechanism!r:.100} given; expected {' or '.join(MECHANISMS)}"
            )
        if bool(self.sasl_mechanism) != bool(self.sasl_user):
            raise ConfigError(f"{place}: expected both 'sasl-user' and 'sasl-mechanism', or neither")
