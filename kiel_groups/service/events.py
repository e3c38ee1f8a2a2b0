"""Server-sent events: streams that notify clients which groups have changed. A client then requests these groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple, TypeAlias

from tornado.iostream import StreamClosedError

from kiel_groups.errors import ConfigError
from kiel_groups.metrics import Metrics
from kiel_groups.rest.calls import RestError
from kiel_groups.rest.server import AccessRules, GuardedHandler
from kiel_groups.service.served_cluster import ServedCluster, unknown_cluster

#: The streams that may be open, each of which costs a connection.
_MOST_STREAMS = 200

#: The most events that may wait for a client. If more events come, its stream is closed, and it may open a new stream.
_MOST_EVENTS = 100

#: The seconds without an event after which a comment line is sent, because proxies close idle connections.
_IDLE_S = 15.0

#: How long a client may take to receive an event, in seconds.
_SEND_S = 30.0


class _Event(NamedTuple):
    """
    A change of groups of a cluster, with the text of the event. ``groups`` is None if all groups may have changed.

    An event with the text "" ends a stream.
    """

    cluster: str
    groups: frozenset[str] | None
    text: str


_Stream: TypeAlias = asyncio.Queue[_Event]


class Events:
    """
    Passes the changes of all clusters to the open streams. All methods must be called on the event loop.

    Args:
        metrics: Gets the number of open streams.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._streams: set[_Stream] = set()
        self._metrics = metrics

    def publish(self, cluster: ServedCluster, groups: Collection[str] | None) -> None:
        """
        Send an event to all streams: these groups of a cluster have changed. None means all groups.

        A stream that is 100 events behind is closed.
        """
        data = {
            "cluster": cluster.name,
            "version": cluster.state.version,
            "groups": None if groups is None else sorted(groups),
        }
        text = f"id: {cluster.name} {cluster.state.version}\nevent: change\ndata: {json.dumps(data)}\n\n"
        event = _Event(cluster.name, None if groups is None else frozenset(groups), text)
        for stream in list(self._streams):
            if stream.full():
                self.close(stream)
            else:
                stream.put_nowait(event)

    def open(self) -> _Stream:
        """
        Open a stream of events. The caller must close the stream.

        Raises:
            RestError: 200 streams are open already.
        """
        if len(self._streams) >= _MOST_STREAMS:
            raise RestError(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MOST_STREAMS} streams of events are open")
        stream: _Stream = asyncio.Queue(_MOST_EVENTS)
        self._streams.add(stream)
        self._metrics.gauge("event_streams", len(self._streams))
        return stream

    def close(self, stream: _Stream) -> None:
        """Close a stream: drop its waiting events, and end its reader. A stream that is closed already is ignored."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._metrics.gauge("event_streams", len(self._streams))
            while not stream.empty():
                stream.get_nowait()
            stream.put_nowait(_Event("", None, ""))

    def close_all(self) -> None:
        """Close all streams. The service calls this method when it stops."""
        for stream in list(self._streams):
            self.close(stream)


class EventHandler(GuardedHandler):
    """Serves one stream of events to a client."""

    def initialize(  # type: ignore[override]
        self, access: AccessRules, events: Events, clusters: Mapping[str, ServedCluster]
    ) -> None:
        """Store the access rules, the source of events, and the served clusters by name. Tornado calls this method."""
        super().initialize(access)
        self._events = events
        self._clusters = clusters

    async def get(self) -> None:
        """
        Stream changes of groups to the client as server-sent events.

        The stream ends when the client disconnects or is too slow, or when the service stops. The optional query
        arguments ``cluster`` and ``group`` limit the stream to that cluster and to that group. The group may appear
        later.

        Raises:
            RestError: The service shows no such cluster, or 200 streams are open already.
            ConfigError: The query has another argument.
        """
        if unknown := sorted(self.request.query_arguments.keys() - {"cluster", "group"}):
            raise ConfigError(f"the query has {unknown[0]!r:.100}; expected 'cluster' and 'group', or nothing")
        cluster, group = self.get_query_argument("cluster", None), self.get_query_argument("group", None)
        if cluster is not None and cluster not in self._clusters:
            raise unknown_cluster(cluster, self._clusters)
        stream = self._events.open()
        try:
            self.set_header("Content-Type", "text/event-stream")
            self.set_header("X-Accel-Buffering", "no")
            # The client knows by this comment that no later change is missed.
            text = ": open\nretry: 1000\n\n"
            while text:
                self.write(text)
                async with asyncio.timeout(_SEND_S):
                    await self.flush()
                text = await _next_text(stream, cluster, group)
        except (StreamClosedError, TimeoutError):
            with suppress(StreamClosedError):
                self.request.connection.close()  # type: ignore[union-attr]
        finally:
            self._events.close(stream)


async def _next_text(stream: _Stream, cluster: str | None, group: str | None) -> str:
    """
    Return the text of the next event of this cluster and group. None means any cluster or group.

    Return a comment if there is no event within 15 s, and "" at the end of the stream.
    """
    try:
        async with asyncio.timeout(_IDLE_S):
            while True:
                event = await stream.get()
                of_cluster = cluster is None or event.cluster == cluster
                of_group = group is None or event.groups is None or group in event.groups
                if not event.text or (of_cluster and of_group):
                    return event.text
    except TimeoutError:
        return ": idle\n\n"
