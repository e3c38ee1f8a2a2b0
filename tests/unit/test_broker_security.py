"""The credentials and the TLS settings of brokers: from the file, and from arguments with kafka-python's names."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiel_groups import Producer
from kiel_groups.broker_security import BrokerSecurity, broker_security, check_security
from kiel_groups.config import SECURITY_VARIABLE, BrokerConfig, HostPort, parse_hosts
from kiel_groups.errors import ConfigError
from kiel_groups.group.znodes.contents import parse_broker
from kiel_groups.ops.zookeeper_reader import registered_address

pytestmark = pytest.mark.unit

PASSWORD = "pass-word-6602"
USER = f'sasl-mechanism = "PLAIN"\nsasl-user = "u"\nsasl-password = "{PASSWORD}"\n'
SASL: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": PASSWORD}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Provide a function that writes the file, and returns its path."""

    def written(text: str) -> Path:
        path = tmp_path / "security.toml"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    return written


def config(brokers: str = "k:9093", **settings: Any) -> BrokerConfig:
    return BrokerConfig(hosts=parse_hosts(brokers, 9092, "brokers"), **settings)


def test_a_table_is_chosen_by_the_brokers(write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the file. A cluster that no table is for is not connected to in plain text."""
    monkeypatch.setenv(SECURITY_VARIABLE, str(write(f'[[kafka]]\nservers = "k1,k2"\n{USER}[zookeeper]\ntls = true\n')))
    assert broker_security(config("k2")).protocol == "SASL_PLAINTEXT"
    with pytest.raises(ConfigError, match=r"no \[kafka\] table is for k3:9092; expected one, or a table without"):
        broker_security(config("k3"))
    with pytest.raises(ConfigError, match=r"\[\[kafka\]\] 1 is not for k3:9092; add to its 'servers'"):
        Producer("k1,k3")
    path = write("[zookeeper]\ntls = true\n")
    assert broker_security(config("k3", security=path)) == BrokerSecurity()
    assert config(security=path).security == str(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sasl-mechanism = 'GSSAPI'", "sasl-mechanism: 'GSSAPI' given; expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("sasl-mechanism = 'PLAIN'", "expected both 'sasl-user' and 'sasl-mechanism', or neither"),
        ("sasl-user = 'a'\nsasl-password = 'b'", "expected both 'sasl-user' and 'sasl-mechanism', or neither"),
        ("security-protocol = 'SSL'", "there is no 'security-protocol'; known: servers, sasl-user"),
        ("acl = 'creator-all'", "there is no 'acl'; known: servers"),
        ("tls-ca = 'no.pem'", "no.pem cannot be used: No such file or directory"),
    ],
)
def test_a_mistake_in_the_file_is_named(write: Callable[[str], Path], text: str, error: str) -> None:
    """A client is not created then."""
    path = write(f"[kafka]\n{text}")
    with pytest.raises(ConfigError) as raised:
        broker_security(config("k", security=path))
    assert str(raised.value).startswith(f"{path}: [kafka]")
    assert error in str(raised.value)
    with pytest.raises(ConfigError):
        Producer("k", security=path)


def test_arguments_replace_the_table(write: Callable[[str], Path]) -> None:
    """They are not mixed with it, so what is encrypted depends on one of both only."""
    path = write(f"[kafka]\ntls = true\n{USER}")
    assert broker_security(config(security=path)).protocol == "SASL_SSL"
    assert broker_security(config(security=path, security_protocol="PLAINTEXT")).protocol == "PLAINTEXT"
    assert broker_security(config(security=path, **SASL)).protocol == "SASL_PLAINTEXT"
    assert broker_security(config(security=path, ssl_check_hostname=False)).protocol == "SSL"
    assert broker_security(config(ssl_context=ssl.create_default_context(), **SASL)).protocol == "SASL_SSL"
    assert config().is_plain
    assert not config(security_protocol="PLAINTEXT").is_plain


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"security_protocol": "TLS"}, "security_protocol: 'TLS' given; expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL"),
        ({"security_protocol": 5}, "security_protocol: 5 given; expected str"),
        (
            {"sasl_mechanism": "OAUTHBEARER"},
            "sasl_mechanism: 'OAUTHBEARER' given; expected PLAIN, SCRAM-SHA-256, SCRAM",
        ),
        (
            {"security_protocol": "SASL_SSL"},
            "sasl_mechanism: none given; expected sasl_mechanism, sasl_plain_username, s",
        ),
        ({"sasl_plain_username": "u", "sasl_mechanism": "PLAIN"}, "sasl_plain_password: none given"),
        ({**SASL, "sasl_plain_password": b"word"}, "sasl_plain_password: a value of another type given; expected str"),
        (
            {**SASL, "security_protocol": "SSL"},
            "sasl_mechanism: given with security_protocol='SSL', which does not use",
        ),
        ({"security_protocol": "PLAINTEXT", "ssl_cafile": "x"}, "ssl_cafile: given with security_protocol='PLAINTEXT'"),
        ({"ssl_keyfile": "k"}, "ssl_keyfile: given without ssl_certfile; expected both"),
        ({"ssl_check_hostname": "no"}, "ssl_check_hostname: 'no' given; expected bool"),
        ({"ssl_context": "x"}, "ssl_context: 'x' given; expected SSLContext"),
        ({"ssl_context": ssl.create_default_context(), "ssl_cafile": "x"}, "ssl_cafile: given with ssl_context"),
        ({"ssl_cafile": 5}, "ssl_cafile: 5 given; expected a path"),
        ({"ssl_cafile": "no.pem"}, "ssl_cafile: no.pem cannot be used: No such file or directory"),
        ({"ssl_certfile": "no.pem"}, "ssl_certfile: no.pem cannot be used: No such file or directory"),
        ({"ssl_ciphers": "x"}, "ssl_ciphers: there is no such setting, pass an ssl_context"),
    ],
)
def test_a_wrong_argument_is_named(settings: dict[str, Any], error: str) -> None:
    """The constructor says what was given and what is expected, without the password."""
    with pytest.raises(ConfigError) as raised:
        Producer("k", **settings)
    assert error in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_no_repr_shows_a_password(write: Callable[[str], Path]) -> None:
    """Settings are shown in logs and tracebacks of applications."""
    given = config(**SASL)
    shown = repr((given, check_security(given), broker_security(config(security=write(f"[kafka]\n{USER}")))))
    assert PASSWORD not in shown
    assert shown.count("sasl_plain_password=[hidden]") == 1
    assert shown.count("sasl_password=[hidden]") == 2


def test_tools_choose_the_listener_that_a_table_is_for(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper names all listeners of a broker, and the file says how to connect to which of them."""
    data = b'{"host": "k", "port": 9092, "endpoints": ["PLAINTEXT://k:9092", "SSL://k:9093", "SASL_SSL://k:9094"]}'
    secured = data.replace(b'"k", "port": 9092', b'null, "port": -1').replace(b'"PLAINTEXT://k:9092", ', b"")
    monkeypatch.delenv(SECURITY_VARIABLE, raising=False)
    assert registered_address(data, "p") == parse_broker(data, "p") == HostPort("k", 9092)
    for text, port in (
        ("[kafka]\ntls = true\n", 9093),
        (f"[kafka]\ntls = true\n{USER}", 9094),
        ("[[kafka]]\nservers = 'other'\n[[kafka]]\nservers = 'k:9093'\ntls = true\n", 9093),
        (f"[[kafka]]\nservers = 'k:9094'\ntls = true\n{USER}[[kafka]]\nservers = 'k:9093'\ntls = true\n", 9093),
    ):
        monkeypatch.setenv(SECURITY_VARIABLE, str(write(text)))
        assert registered_address(data, "p") == registered_address(secured, "p") == HostPort("k", port)
    monkeypatch.setenv(SECURITY_VARIABLE, str(write("[zookeeper]\n")))
    assert registered_address(data, "p").port == 9092
