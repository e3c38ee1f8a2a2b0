"""The credentials and the TLS settings of brokers, from the file with the credentials or from arguments of a client."""

from __future__ import annotations

from dataclasses import dataclass
from os import fspath
from typing import ClassVar

from kiel_groups.config import KAFKA_PORT, MECHANISMS, BrokerConfig, Secret
from kiel_groups.errors import ConfigError
from kiel_groups.security_file import ServerSecurity, table_for


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
                f"{place} sasl-mechanism: {self.sasl_mechanism!r:.100} given; expected {', '.join(MECHANISMS)}"
            )
        if bool(self.sasl_mechanism) != bool(self.sasl_user):
            raise ConfigError(f"{place}: expected both 'sasl-user' and 'sasl-mechanism', or neither")

    @property
    def protocol(self) -> str:
        """The listeners of brokers that a client with these settings connects to, by Kafka's name."""
        return ("SASL_" if self.sasl_user else "") + ("SSL" if self.tls else "PLAINTEXT")


def broker_security(config: BrokerConfig) -> BrokerSecurity:
    """
    Return the credentials and the TLS settings for the brokers of a client. ``ssl_context`` is not part of them.

    The file is read at each call, so a changed password or certificate applies to the next connection.

    Raises:
        ConfigError: See ``table_for``.
    """
    if not config.has_own_security:
        return table_for(config.file, BrokerSecurity, config.hosts)
    of_tls = (config.ssl_context, config.ssl_check_hostname, config.ssl_cafile, config.ssl_certfile)
    has_tls = any(each is not None for each in of_tls)
    return BrokerSecurity(
        tls=has_tls if config.security_protocol is None else config.security_protocol.endswith("SSL"),
        tls_ca=fspath(config.ssl_cafile or ""),
        tls_certificate=fspath(config.ssl_certfile or ""),
        tls_key=fspath(config.ssl_keyfile or ""),
        tls_key_password=Secret(config.ssl_password or ""),
        tls_check_host=config.ssl_check_hostname is not False,
        sasl_user=config.sasl_plain_username or "",
        sasl_password=Secret(config.sasl_plain_password or ""),
        sasl_mechanism=config.sasl_mechanism or "",
    )


def check_security(config: BrokerConfig) -> BrokerSecurity:
    """
    Return ``broker_security(config)``, after a check that the certificates can be read.

    Raises:
        ConfigError: The file or a certificate cannot be read, or has a mistake; or no table of the file is for the
            brokers.
    """
    security = broker_security(config)
    if config.has_own_security and config.ssl_context is None:
        try:
            security.tls_context()
        except ConfigError as error:
            text = str(error).replace("tls-ca", "ssl_cafile", 1).replace("tls-certificate", "ssl_certfile", 1)
            raise ConfigError(text) from error
    return security
