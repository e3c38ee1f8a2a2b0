"""Encode and parse the data of a worker's own znode, by which it proves its session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from kiel_groups.group.znodes.contents import encode_object, parse_object, typed_field

__all__ = ["WorkerInfo", "workers_by_coordination", "workers_by_token"]

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """
    A worker's description of itself.

    ``session_timeout_ms`` is the timeout that the server granted. ``token_digest`` identifies the token that the
    worker's REST interface asks for: it is "" if there is none, and None if the worker does not say.
    ``coordination`` is ``zookeeper`` or ``brokers``, or None if the worker does not say.
    """

    url: str
    host: str = ""
    pid: int = 0
    session_timeout_ms: int = 0
    started_at_ms: int = 0
    token_digest: str | None = None
    coordination: str | None = None

    @property
    def address(self) -> str:
        """The host and the port of the REST interface."""
        return urlsplit(self.url).netloc

    def encode(self) -> bytes:
        """Return the data of the znode."""
        fields = {
            "version": _VERSION,
            "url": self.url,
            "host": self.host,
            "pid": self.pid,
            "session_timeout_ms": self.session_timeout_ms,
            "started_at": self.started_at_ms,
        }
        said = {"token_digest": self.token_digest, "coordination": self.coordination}
        return encode_object(fields | {name: value for name, value in said.items() if value is not None})

    @classmethod
    def parse(cls, data: bytes, path: str) -> WorkerInfo:
        """
        Return what readers need of a worker: its URL, its token's digest, and what coordinates it.

        Raises:
            ProtocolError: The znode has no URL, or a digest or coordination that is no text.
        """
        fields = parse_object(data, path)
        digest, coordination = (
            None if fields.get(name) is None else typed_field(fields, name, str, path)
            for name in ("token_digest", "coordination")
        )
        return cls(url=typed_field(fields, "url", str, path), token_digest=digest, coordination=coordination)


def workers_by_token(workers: Iterable[WorkerInfo]) -> list[list[str]]:
    """Return the addresses of the workers with each token, the most frequent token first; unknown ones are left out."""
    found = _by((worker.token_digest, worker.address) for worker in workers)
    return sorted(found.values(), key=lambda same: (-len(same), same))


def workers_by_coordination(workers: Iterable[WorkerInfo]) -> dict[str, list[str]]:
    """Return the addresses of the workers with each coordination; workers that do not say are left out."""
    return dict(sorted(_by((worker.coordination, worker.address) for worker in workers).items()))


def _by(addresses: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value, address in sorted(addresses, key=lambda each: each[1]):
        if value is not None:
            found.setdefault(value, []).append(address)
    return found
