"""Each setting of a grouped consumer works in both coordinations, is refused, or is said to have no effect."""

from __future__ import annotations

import ast
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from kiel_groups.clients.calls.arguments import BrokerSettings
from kiel_groups.clients.grouped import GroupedConsumer
from kiel_groups.config import BrokerConfig, CoordinatorConfig, DebounceConfig, FetchConfig, GroupConfig
from kiel_groups.embedded.security import Authority
from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from tests.architecture.source import file_of, imported_modules, modules, name_of, tree
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit


class SilentListener:
    """A listener that does nothing."""

    def on_partitions_assigned(self, partitions: object) -> None:
        pass

    on_partitions_revoked = on_partitions_lost = on_partitions_assigned


BROKER = "127.0.0.1:9092"

#: Values of settings whose default is None or a name; numbers and truth values are derived from the default.
VALUES: dict[str, Any] = {
    "zk_hosts": "127.0.0.1:2181",
    "security": "/dev/null",
    "deserializer": bytes.decode,
    "key_deserializer": bytes.decode,
    "partition_allocator": "sticky",
    "on_bad_record": "skip",
    "api_version": (0, 9),
    "session_timeout_ms": 20_000,
    "heartbeat_interval_ms": 1_000,
    "instance_id": "a",
    "rack": "east",
    "store": "broker-v1",
    "auto_offset_reset": "latest",
    "default_offset_commit_callback": print,
    "listener": SilentListener(),
    "metrics": Metrics(),
    "client_id": "other",
}
SASL = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}
VALUES |= SASL | {"security_protocol": "SSL", "ssl_context": ssl.create_default_context(), "ssl_check_hostname": False}
#: What a setting needs beside it.
BESIDE = {"capacity": {"partition_allocator": "sticky"}, **dict.fromkeys(SASL, SASL)}
#: The settings that name a file with a certificate and its key, or are about one.
OF_FILES = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password")
PARAMETERS = {
    name: parameter.default
    for name, parameter in signature(GroupedConsumer.__init__).parameters.items()
    if name not in ("self", "brokers", "group", "coordination", "broker_settings")
}
DEFAULTS = {**PARAMETERS, **{each.name: each.default for each in fields(BrokerConfig) if each.name != "hosts"}}
#: The names of fields that differ from those of the arguments.
ARGUMENTS = {"max_wait_ms": "max_wait_time", **{f"{each}_ms": f"debounce_{each}_ms" for each in ("quiet", "bound")}}
ARGUMENTS["initial_delay_ms"] = "debounce_initial_delay_ms"


def documented(word: str) -> Iterator[str]:
    """Yield the settings for which the table of the differences has this word. An ellipsis stands for any text."""
    page = (REPOSITORY / "docs" / "ownership-brokers.rst").read_text(encoding="utf-8")
    found = re.search(r'\n(=+ +)=+\nwith ``coordination="brokers"``.*?\n=+ +=+\n(.*?)\n=', page, re.S)
    assert found
    rule, table = found.groups()
    cells = " ".join(line[: len(rule)].strip() for line in table.splitlines())
    for names in re.findall(rf"((?:``[^`]+``,? ?)+): {word}", cells):
        for name in re.findall(r"``([^`]+)``", names):
            yield from (each for each in DEFAULTS if re.fullmatch(name.replace("…", ".+"), each))


REFUSED, WITHOUT_EFFECT = set(documented("refused")), set(documented("no effect"))


def other_value(setting: str) -> Any:
    """Return a legal value that is not the default."""
    default = DEFAULTS[setting]
    if setting in VALUES:
        return VALUES[setting]
    if setting in OF_FILES:
        return "p" if setting == "ssl_password" else certificate()
    return not default if isinstance(default, bool) else default + 1


@cache
def certificate() -> Path:
    """Return a file with a certificate and its key."""
    return Authority(Path(tempfile.mkdtemp())).issue("client")


def test_the_table_is_read() -> None:
    """Otherwise the other tests would check nothing."""
    assert {"zk_hosts", "store", "instance_id", "rack"} == REFUSED
    assert {"static_grace_ms", "debounce_bound_ms", "zk_timeout_ms"} < WITHOUT_EFFECT
    assert BrokerSettings.__annotations__.keys() < DEFAULTS.keys()


@pytest.mark.parametrize("setting", DEFAULTS)
def test_a_setting_is_accepted_in_both_coordinations_or_refused_by_name(setting: str) -> None:
    """A setting that one of them lacks is not ignored in silence."""
    given: dict[str, Any] = {**BESIDE.get(setting, {}), setting: other_value(setting)}
    if setting in ("ssl_keyfile", "ssl_password"):
        given["ssl_certfile"] = certificate()
    in_zookeeper = {"zk_hosts": "127.0.0.1:2181", **given}
    if setting == "api_version":
        with pytest.raises(ConfigError, match="api_version: given without coordination='brokers'"):
            GroupedConsumer(BROKER, "g", **in_zookeeper)
    else:
        GroupedConsumer(BROKER, "g", **in_zookeeper)
    if setting in REFUSED:
        with pytest.raises(ConfigError, match=f"{setting}: .* given[;,] "):
            GroupedConsumer(BROKER, "g", coordination="brokers", **given)
    else:
        GroupedConsumer(BROKER, "g", coordination="brokers", **given)


@cache
def attributes_read(root: str) -> frozenset[str]:
    """Return the names of the attributes that a module reads, those that it imports, and all modules of clients."""
    reached, found = set[str](), set[str]()
    waiting = [root, "broker_security", *(name for name in map(name_of, modules()) if name.startswith("clients/"))]
    while waiting:
        name = waiting.pop()
        path = file_of(f"kiel_groups.{name.replace('/', '.')}")
        if path is None or name in {*reached, "config"}:
            continue
        reached.add(name)
        found |= {each.attr for each in ast.walk(tree(path)) if isinstance(each, ast.Attribute)}
        if not name.startswith("clients/"):
            waiting += imported_modules(path)
    return frozenset(found)


@pytest.mark.parametrize("coordination", ["brokers", "zookeeper"])
@pytest.mark.parametrize(
    "name",
    [each.name for kind in (GroupConfig, DebounceConfig, FetchConfig, BrokerConfig) for each in fields(kind)]
    + [each.name for each in fields(CoordinatorConfig)],
)
def test_a_setting_is_read_by_the_members_that_it_works_for(name: str, coordination: str) -> None:
    """The code of a coordination reads a setting, unless the table says that it has no effect there, or is refused."""
    setting = ARGUMENTS.get(name, name)
    if setting not in DEFAULTS:
        return  # Not a setting of a consumer.
    root = {"brokers": "members/brokers/consumer_member", "zookeeper": "members/zookeeper/group_member"}[coordination]
    is_read = name in attributes_read(root)
    assert is_read or (coordination == "brokers" and setting in REFUSED | WITHOUT_EFFECT)
