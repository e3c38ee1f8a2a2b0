"""Post bodies to a URL, and say what each answer means for the records of the body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.iostream import IOStream, StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError, SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

__all__ = ["Answer", "HttpTarget", "Meaning", "meaning_of", "shown_url"]

#: Refusals that depend on the body: bad request, conflict, content too large, unprocessable content.
_ABOUT_RECORDS = frozenset({400, 409, 413, 422})
#: Refusals that the same request may not get later: timeout, too early, too many requests.
_PASSING = frozenset({408, 425, 429})
#: How much of an answer errors show.
_SHOWN_BYTES = 300
#: Tornado tells these two apart only in its log.
_NO_ANSWER = (
    "the connection ended before a whole answer, or the answer is malformed (Tornado logs why at the level INFO, as"
    " with --verbose)"
)
#: Answers are not kept, so their size does not matter.
_ANY_SIZE = 1 << 40


class Meaning(Enum):
    """What the target's answer means."""

    #: The target has taken the records.
    TAKEN = "taken"
    #: The target cannot take records now, or it is unknown whether it has taken them.
    AGAIN = "again"
    #: The target refuses the body. It may take a part of it.
    REFUSED = "refused"
    #: The target refuses the request, whatever its records are: the URL or the credentials are wrong.
    MISDIRECTED = "misdirected"


class Answer(NamedTuple):
    """
    The outcome of a request.

    ``status`` is 0 if there was no answer, ``text`` describes the answer, and ``wait_s`` is how long the target asks
    to wait.
    """

    meaning: Meaning
    status: int
    text: str
    wait_s: float = 0.0


def meaning_of(status: int) -> Meaning:
    """Return what an HTTP status means."""
    if 200 <= status < 300:
        return Meaning.TAKEN
    if status in _ABOUT_RECORDS:
        return Meaning.REFUSED
    if 300 <= status < 500 and status not in _PASSING:
        return Meaning.MISDIRECTED
    return Meaning.AGAIN


def shown_url(url: str) -> str:
    """Return a URL as logs may show it: without its query, which may have secrets."""
    return urlunsplit(urlsplit(url)._replace(query="", fragment=""))


class _Connections(TCPClient):
    """Makes one connection after the other. Unlike Tornado's own, it ends the present one when it closes."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: IOStream | None = None
        self._is_closed = False

    async def connect(self, *arguments: Any, **options: Any) -> IOStream:
        """Return a new connection, as Tornado's own client does, unless this was closed meanwhile."""
        stream = await super().connect(*arguments, **options)
        if self._is_closed:
            stream.close()
            raise StreamClosedError
        self._stream = stream
        return stream

    def close(self) -> None:
        super().close()
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()


class HttpTarget:
    """
    The URL that records are posted to.

    Args:
        url: The URL, with ``http`` or ``https``.
        headers: The headers of each request.
        timeout_s: How long the connection may take, and then the request with its answer.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self._url = url
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._client = SimpleAsyncHTTPClient(force_instance=True, max_clients=1, max_body_size=_ANY_SIZE)
        self._client.tcp_client = _Connections()

    async def post(self, body: bytes) -> Answer:
        """
        Send one request, and return its outcome. Errors of the connection are outcomes, too.

        If this is cancelled, the request ends at once, and the target takes no other one.
        """
        start = bytearray()

        def keep_start(chunk: bytes) -> None:
            start.extend(chunk[: _SHOWN_BYTES - len(start)])

        request = HTTPRequest(
            self._url,
            "POST",
            self._headers,
            body,
            connect_timeout=self._timeout_s,
            request_timeout=self._timeout_s,
            follow_redirects=False,
            user_agent="kiel-groups",
            streaming_callback=keep_start,
        )
        try:
            response = await self._fetch(request)
        except HTTPStreamClosedError:
            return Answer(Meaning.AGAIN, 0, _NO_ANSWER)
        except (HTTPError, OSError) as error:
            return Answer(Meaning.AGAIN, 0, str(error) or type(error).__name__)
        except Exception as error:
            # Tornado raises various errors for answers that it cannot read, such as headers that are too large.
            return Answer(Meaning.AGAIN, 0, f"the answer cannot be read: {error or type(error).__name__}")
        shown = bytes(start).decode("utf-8", "replace").strip()
        text = f"{response.code} {response.reason}{f': {shown}' if shown else ''}"
        return Answer(meaning_of(response.code), response.code, text, _seconds(response.headers.get("Retry-After")))

    def close(self) -> None:
        """Close the connection. A request that has no answer yet ends, too."""
        self._client.close()

    async def _fetch(self, request: HTTPRequest) -> HTTPResponse:
        fetching = self._client.fetch(request, raise_error=False)
        try:
            await asyncio.wait({fetching})
        except asyncio.CancelledError:
            # Tornado would continue the request: it might post records that another worker posts by then.
            self.close()
            # Nothing awaits the error of the closed connection, which asyncio would log.
            fetching.add_done_callback(asyncio.Future.exception)
            raise
        return fetching.result()


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a ``Retry-After`` header; 0 without one, or for a date."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0.0
