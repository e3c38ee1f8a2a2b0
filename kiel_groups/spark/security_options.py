"""The options about TLS and SASL, with the names of Spark's own Kafka source, and how fields describe options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kiel_groups.broker_security import BrokerSecurity, check_security
from kiel_groups.config import BrokerConfig, HostPort, Secret, security_path
from kiel_groups.errors import ConfigError


def option(
    name: str, parse: Callable[..., Any], default: Any = None, *arguments: object, only: str | None = None
) -> Any:
    """
    Return a dataclass field for an option. Its metadata have the option's name, and how its text is read.

    Args:
        name: The name of the option.
        parse: Called with the name, the text and ``arguments``.
        default: The value if the option is not given.
        arguments: The further arguments of ``parse``.
        only: The kind of query that has the option. None means every kind whose class has the field.
    """
    return dataclasses.field(metadata={"name": name, "how": (parse, default, *arguments), "only": only})


class Login(NamedTuple):
    """The user and the password of SASL."""

    user: str
    password: Secret


#: A value of the configuration for JAAS: in quotes, with escapes, or without blanks.
_VALUE = r'(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))'
_MODULES = "PlainLoginModule or ScramLoginModule"


def _text(_: str, text: str) -> str:
    return text.strip()


def _path(name: str, text: str) -> str:
    if not text.strip():
        raise ConfigError(f"{name}: {text!r} given; expected the path of a file in PEM")
    return text.strip()


def _pem(name: str, text: str) -> str:
    if text.strip().upper() != "PEM":
        raise ConfigError(f"{name}: {text!r} given; only files in PEM are read, so expected 'PEM'")
    return "PEM"


def _secret(_: str, text: str) -> Secret:
    return Secret(text)


def _checks_host(name: str, text: str) -> bool:
    if text.strip().lower() not in ("", "https"):
        raise ConfigError(f"{name}: {text!r} given; expected 'https', or an empty text for no check of host names")
    return bool(text.strip())


def _login(name: str, text: str) -> Login:
    """Parse the configuration of Java's login module. The error does not show it, because it has a password."""
    found = {key: re.search(rf"\b{key}\s*=\s*{_VALUE}", text) for key in ("username", "password")}
    values = [re.sub(r"\\(.)", r"\1", each[1]) if each[1] is not None else each[2] for each in found.values() if each]
    if len(values) != 2 or not re.search(r"(?:Plain|Scram)LoginModule\s+required\b", text):
        raise ConfigError(
            f"{name}: not understood; expected {_MODULES}, as in: org.apache.kafka.common.security.plain."
            f'PlainLoginModule required username="..." password="...";'
        )
    return Login(values[0], Secret(values[1]))


#: The setting of ``BrokerConfig`` that each option is for, for errors.
_NAMES = {
    "security_protocol": "kafka.security.protocol",
    "ssl_cafile": "kafka.ssl.truststore.location",
    "ssl_certfile": "kafka.ssl.keystore.location",
    "ssl_keyfile": "kafka.ssl.keystore.location",
    "ssl_password": "kafka.ssl.key.password",
    "ssl_check_hostname": "kafka.ssl.endpoint.identification.algorithm",
    "sasl_mechanism": "kafka.sasl.mechanism",
    "sasl_plain_username": "kafka.sasl.jaas.config",
    "sasl_plain_password": "kafka.sasl.jaas.config",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """
    The options about TLS and SASL. Without any of them, the file with the credentials says how to connect to brokers.

    ``security`` is the path of that file, as the driver's environment names it. An executor whose environment names
    another file uses that one. ``truststore`` and ``keystore`` are paths of files in PEM on each host.
    """

    security: str | None = dataclasses.field(default_factory=security_path)
    protocol: str | None = option("kafka.security.protocol", _text)
    truststore: str | None = option("kafka.ssl.truststore.location", _path)
    truststore_type: str = option("kafka.ssl.truststore.type", _pem, "PEM")
    keystore: str | None = option("kafka.ssl.keystore.location", _path)
    keystore_type: str = option("kafka.ssl.keystore.type", _pem, "PEM")
    key_password: Secret | None = option("kafka.ssl.key.password", _secret)
    checks_host: bool | None = option("kafka.ssl.endpoint.identification.algorithm", _checks_host)
    mechanism: str | None = option("kafka.sasl.mechanism", _text)
    login: Login | None = option("kafka.sasl.jaas.config", _login)

    def check(self, hosts: tuple[HostPort, ...]) -> BrokerSecurity:
        """
        Check these options, and return the security of connections to brokers at these addresses.

        Raises:
            ConfigError: The options do not fit together, or a file cannot be read or has a mistake. The text has the
                names of the options.
        """
        try:
            return check_security(BrokerConfig(hosts=hosts, **self.arguments))
        except ConfigError as error:
            text = str(error)
            for name, spelled in _NAMES.items():
                text = text.replace(name, spelled)
            raise ConfigError(text) from error

    @property
    def arguments(self) -> dict[str, Any]:
        """The security settings of ``BrokerConfig`` by name."""
        return {
            "security": security_path() or self.security,
            "security_protocol": self.protocol,
            "ssl_cafile": self.truststore,
            "ssl_certfile": self.keystore,
            "ssl_password": self.key_password,
            "ssl_check_hostname": self.checks_host,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.login.user if self.login else None,
            "sasl_plain_password": self.login.password if self.login else None,
        }
