"""The znodes of topics, which brokers write, with garbage that another program has written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from kazoo.exceptions import NoNodeError

from kiel_groups.errors import ProtocolError
from kiel_groups.ops.actions.topics import partitions_of, read_topics
from kiel_groups.ops.zookeeper_client import controller_id

pytestmark = pytest.mark.unit

TOPIC = "/brokers/topics/t"
STATE = f"{TOPIC}/partitions/0/state"


class Read(NamedTuple):
    """A read that is done: what kazoo's ``get_async`` and ``exists_async`` return."""

    value: Any

    def get(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class FakeClient(dict[str, bytes]):
    """The znodes that a client of kazoo reads."""

    def get(self, path: str) -> Any:  # type: ignore[override]
        return self.get_async(path).get()

    def get_async(self, path: str) -> Read:
        return Read((self[path], None) if path in self else NoNodeError())

    def exists_async(self, path: str) -> Read:
        return Read(SimpleNamespace(czxid=7) if path in self else None)


GARBAGE = [
    b"",
    b"\xff",
    b"[" * 5_000,
    b'{"brokerid":' + b"9" * 5_000 + b"}",
    b'{"partitions":[0]}',
    b'{"partitions":{"' + b"9" * 5_000 + b'":[1]}}',
    b'{"partitions":{"0":1}}',
]


@pytest.mark.parametrize("data", GARBAGE)
def test_an_error_names_the_znode(data: bytes) -> None:
    """Otherwise a command would end with a traceback."""
    client: Any = FakeClient({TOPIC: data, "/controller": data})
    with pytest.raises(ProtocolError, match=rf"^{TOPIC}: ") as raised:
        partitions_of(client, "t")
    assert len(str(raised.value)) < 600
    with pytest.raises(ProtocolError, match=r"^/controller: "):
        controller_id(client)


@pytest.mark.parametrize("data", [*GARBAGE, b'{"leader":"1","isr":7,"config":[]}'])
def test_a_topic_is_described_without_what_is_unreadable(data: bytes) -> None:
    """Operators need to see a broken topic most."""
    client: Any = FakeClient({TOPIC: b'{"partitions":{"0":[1]}}', STATE: data, "/config/topics/t": data})
    (state,) = read_topics(client, ["t"])
    assert (state.config, state.partitions[0].leader, state.partitions[0].isr) == ({}, None, ())
