"""The data of a worker's own znode."""

from __future__ import annotations

import json

import pytest

from kiel_groups.errors import ProtocolError
from kiel_groups.group.znodes.worker_contents import WorkerInfo, workers_by_token

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("digest", [None, "", "a1b2"])
def test_a_reader_gets_url_and_token(digest: str | None) -> None:
    """A worker of an earlier version does not say which token it has; all others write that they have none."""
    data = WorkerInfo(url="http://h:8083", pid=7, started_at_ms=5, token_digest=digest).encode()
    assert WorkerInfo.parse(data, "w") == WorkerInfo(url="http://h:8083", token_digest=digest)
    assert ("token_digest" in json.loads(data)) == (digest is not None)
    assert WorkerInfo.parse(data, "w").address == "h:8083"


@pytest.mark.parametrize("coordination", [None, "brokers"])
def test_a_reader_gets_the_coordination(coordination: str | None) -> None:
    """A worker of an earlier version does not say what coordinates it."""
    data = WorkerInfo(url="http://h:8083", coordination=coordination).encode()
    assert WorkerInfo.parse(data, "w").coordination == coordination
    assert ("coordination" in json.loads(data)) == (coordination is not None)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"url": 7}', b'{"url": "u", "token_digest": 7}', b'{"url": "u", "coordination": 7}']
)
def test_garbage_is_refused(data: bytes) -> None:
    """The error names the znode."""
    with pytest.raises(ProtocolError, match=r"^w"):
        WorkerInfo.parse(data, "w")


def test_workers_are_grouped_by_token() -> None:
    """Workers that do not say which token they have are in no group."""
    workers = [
        WorkerInfo(url=f"http://h{number}:1", token_digest=digest)
        for number, digest in enumerate(["a1b2", "", None, "", "a1b3"])
    ]
    assert workers_by_token(workers) == [["h1:1", "h3:1"], ["h0:1"], ["h4:1"]]
