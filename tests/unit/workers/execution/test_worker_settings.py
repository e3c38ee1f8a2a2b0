"""The settings of a worker are checked before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from kiel_groups.errors import ConfigError
from kiel_groups.rest.settings import RestSettings
from kiel_groups.workers.execution.worker_settings import WorkerSettings
from tests.helpers.counting_connectors import COUNTING_SOURCE

pytestmark = pytest.mark.unit

LEGAL: dict[str, Any] = {"group": "loaders", "zookeeper": "z1:2181,z2:2181/kafka", "brokers": "k1:9092"}


def test_legal_settings_are_accepted() -> None:
    """All but the addresses and the group have a default."""
    assert WorkerSettings(**LEGAL).coordination == "zookeeper"
    assert WorkerSettings(**LEGAL, coordination="brokers", allocator="sticky").rest.url(8083) == "http://127.0.0.1:8083"


@pytest.mark.parametrize(
    ("host", "given", "is_allowed"),
    [
        ("127.0.0.1", None, True),
        ("localhost", None, True),
        ("::1", None, True),
        ("0.0.0.0", None, False),
        ("worker.example", None, False),
        ("127.0.0.1", ["installed"], False),
        ("0.0.0.0", ["installed", "tests.helpers.counting_connectors"], True),
    ],
)
def test_only_users_of_the_same_machine_name_any_class(host: str, given: list[str] | None, is_allowed: bool) -> None:
    """Others get the installed connectors, unless the operator says so."""
    rest = RestSettings(host=host, token="t0ken-of-all-workers")
    registry = WorkerSettings(**LEGAL, rest=rest, plugin_classes=given).new_registry()
    assert registry.resolve("FileStreamSource")
    if is_allowed:
        assert registry.resolve(COUNTING_SOURCE)
    else:
        with pytest.raises(ConfigError, match="is not allowed on this worker"):
            registry.resolve(COUNTING_SOURCE)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("plugin_classes", "installed", "plugin_classes: the text 'installed' given; expected a list of texts"),
        ("group", "a/b", "group: 'a/b' is not a legal name"),
        ("zookeeper", "", "zk_hosts: no address given"),
        ("brokers", "k1:x", "brokers: 'k1:x' is not an address"),
        ("coordination", "raft", "coordination: 'raft' given; expected 'zookeeper' or 'brokers'"),
        ("allocator", "stick", "allocator: "),
        ("session_timeout_ms", 1, "session_timeout_ms: 1 given"),
        ("session_timeout_ms", 1 << 31, "session_timeout_ms: 2147483648 given; the protocol has room for 2147483647"),
    ],
)
def test_wrong_settings_are_refused(setting: str, value: object, message: str) -> None:
    """The error names the setting and what was given."""
    with pytest.raises(ConfigError) as raised:
        WorkerSettings(**LEGAL | {setting: value})
    assert str(raised.value).startswith(message)
