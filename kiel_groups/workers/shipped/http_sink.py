"""Post the records of topics to a URL: ``HttpSink``."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from tornado.httpclient import HTTPError, HTTPRequest, HTTPResponse
from tornado.iostream import IOStream, StreamClosedError
from tornado.simple_httpclient import HTTPStreamClosedError, SimpleAsyncHTTPClient
from tornado.tcpclient import TCPClient

from kiel_groups.backoff import Backoff, shortening
from kiel_groups.config import is_http_url
from kiel_groups.errors import KielGroupsError, TaskStoppedError
from kiel_groups.model import Record
from kiel_groups.secret_texts import quoted_forms, without_secrets
from kiel_groups.wording import counted
from kiel_groups.workers.plugins.config_definition import (
    ConfigDefinition,
    ConfigKey,
    Password,
    Settings,
    Validator,
    at_least,
    between,
    one_of,
)
from kiel_groups.workers.plugins.interfaces import ConnectorContext, SinkConnector, SinkTask, SinkTaskContext
from kiel_groups.workers.plugins.standard_keys import TOPIC_NAME

log = logging.getLogger(__name__)


#: How bytes are written as JSON strings.
Encoding: TypeAlias = Literal["text", "base64"]


class HttpBatch(list[tuple[Record, bytes]]):
    """The records of one request, each record with its JSON object."""

    @property
    def body(self) -> bytes:
        """The body of the request: the JSON array of the objects."""
        return b"[%s]" % b",".join(written for _, written in self)

    def halves(self) -> list[HttpBatch]:
        """Return two batches: the first half of the records, and the second half."""
        middle = len(self) // 2
        return [HttpBatch(self[:middle]), HttpBatch(self[middle:])]

    def __str__(self) -> str:
        (first, _), (last, _) = self[0], self[-1]
        start = f"{first.topic_partition} offset {first.offset}"
        return start if len(self) == 1 else f"{start} to {last.topic_partition} offset {last.offset}"


def batches(
    records: Sequence[Record], encoding: Encoding, most_records: int, most_bytes: int
) -> tuple[list[HttpBatch], list[Record]]:
    """
    Divide records among requests, in their order.

    Args:
        records: The records, with keys and values as bytes or None.
        encoding: How keys and values are written.
        most_records: The largest number of records in a request.
        most_bytes: The largest body, in bytes. A single larger record is a batch of its own.

    Returns:
        The batches, and the records that cannot be written, because they are not texts in UTF-8.
    """
    found: list[HttpBatch] = []
    unwritable: list[Record] = []
    size = 0
    for record in records:
        try:
            written = _dumped(_fields(record, encoding))
        except UnicodeDecodeError:
            unwritable.append(record)
            continue
        if not found or len(found[-1]) == most_records or size + len(written) > most_bytes:
            found.append(HttpBatch())
            size = 2
        found[-1].append((record, written))
        size += len(written) + 1
    return found, unwritable


def dead_letter(record: Record, context: Mapping[str, Any]) -> bytes:
    """
    Return the value of a dead letter: a JSON object with the record, and the reason why the record was not delivered.

    Args:
        record: The record. If its key and its value are UTF-8, they are written as texts, else as base64. The field
            ``encoding`` names the form.
        context: Data such as the error. Later versions of Kafka have headers for such data.
    """
    encoding: Encoding = "text"
    try:
        fields = _fields(record, encoding)
    except UnicodeDecodeError:
        encoding = "base64"
        fields = _fields(record, encoding)
    return _dumped({"context": dict(context), **fields, "encoding": encoding})


def _fields(record: Record, encoding: Encoding) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": _text(record.key, encoding),
        "value": _text(record.value, encoding),
    }


def _text(data: bytes | None, encoding: Encoding) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data).decode("ascii") if encoding == "base64" else bytes(data).decode("utf-8")


def _dumped(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


#: Refusals that depend on the body: bad request, conflict, content too large, unprocessable content.
_ABOUT_RECORDS = frozenset({400, 409, 413, 422})
#: Refusals that the same request may not get later: timeout, too early, too many requests.
_PASSING = frozenset({408, 425, 429})
#: How much of an answer errors show.
_SHOWN_BYTES = 300
#: Tornado distinguishes these two cases only in its log.
_NO_ANSWER = (
    "the connection ended before a whole answer, or the answer is malformed (Tornado logs why at the level INFO, as"
    " with --verbose)"
)
#: Answers are not kept, so their size does not matter.
_ANY_SIZE = 1 << 40


class Meaning(Enum):
    """The meaning of the target's answer."""

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

    ``status`` is the HTTP status, or 0 without an answer. ``text`` describes the answer or the error. ``wait_s`` is the
    time that the target asks to wait, in seconds.
    """

    meaning: Meaning
    status: int
    text: str
    wait_s: float = 0.0


def meaning_of(status: int) -> Meaning:
    """Return the meaning of the target's HTTP status for the records."""
    if 200 <= status < 300:
        return Meaning.TAKEN
    if status in _ABOUT_RECORDS:
        return Meaning.REFUSED
    if 300 <= status < 500 and status not in _PASSING:
        return Meaning.MISDIRECTED
    return Meaning.AGAIN


def shown_url(url: str) -> str:
    """Return a URL as logs may show it: without query and fragment, because a query may have secrets."""
    return urlunsplit(urlsplit(url)._replace(query="", fragment=""))


class _Connections(TCPClient):
    """Opens one connection at a time. Unlike the method of Tornado's class, ``close`` also ends the open connection."""

    def __init__(self) -> None:
        super().__init__()
        self._stream: IOStream | None = None
        self._is_closed = False

    async def connect(self, *arguments: Any, **options: Any) -> IOStream:
        """Return a new connection; raise StreamClosedError if ``close`` was called before it is open."""
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
    Posts bodies to one URL.

    Args:
        url: The URL, with ``http`` or ``https``.
        headers: The headers of each request.
        timeout_s: The time limit of a connection, and then of a request with its answer, in seconds.
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

        A cancellation ends the request at once, and closes this object for further requests.
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
        """Close the connection, and end a request in flight."""
        self._client.close()

    async def _fetch(self, request: HTTPRequest) -> HTTPResponse:
        fetching = self._client.fetch(request, raise_error=False)
        try:
            await asyncio.wait({fetching})
        except asyncio.CancelledError:
            # Tornado would continue the request: it might post records that another worker has posted meanwhile.
            self.close()
            # Nothing awaits the error of the closed connection, which asyncio would log.
            fetching.add_done_callback(asyncio.Future.exception)
            raise
        return fetching.result()


def _seconds(retry_after: str | None) -> float:
    """Return the seconds of a ``Retry-After`` header, or 0.0 without such a header or for a date."""
    return float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0.0


#: The failures in a row after which the status of the task shows that it makes no progress.
_FAILURES_SHOWN = 3
#: Shorter values of headers and parameters, such as numbers, may be anything.
_SHORTEST_SECRET = 6
#: The most characters of an outcome that are shown. A target chooses the reason of its status, up to 64 KiB, which
#: would be searched for each secret on the event loop.
_LONGEST_OUTCOME = 1_000


class HttpSinkTask(SinkTask):
    """
    Posts records to a URL in their order, one request at a time.

    ``put`` returns when the target has accepted all records, except records that became dead letters. After a failure,
    records that the target has accepted may be posted again.
    """

    def __init__(self) -> None:
        self._target: HttpTarget | None = None

    async def start(self, context: SinkTaskContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._url = shown_url(settings["url"])
        self._dead_letters: str | None = settings["dead.letter.topic"]
        self._name = f"{context.connector}-{context.task}"
        # Tasks that failed together do not retry together: each has a fraction of its own.
        fraction = zlib.crc32(self._name.encode()) / (1 << 32)
        self._backoff = Backoff(
            settings["retry.backoff.ms"] / 1000,
            settings["retry.backoff.max.ms"] / 1000,
            shortening(lambda: fraction),
        )
        headers = dict(_header(text) for text in _header_texts(settings["headers"]))
        authorization: Password | None = settings["authorization"]
        if authorization is not None:
            headers["Authorization"] = authorization.value
        #: The secrets that logs and dead letters must not repeat: some servers send back what they have received.
        self._secrets = _secrets(settings["url"], list(headers.values()))
        self._target = HttpTarget(
            settings["url"], {"Content-Type": "application/json", **headers}, settings["request.timeout.ms"] / 1000
        )

    async def put(self, records: Sequence[Record]) -> None:
        settings = self._settings
        encoding, most_records, most_bytes = (
            settings[name] for name in ("encoding", "batch.max.records", "batch.max.bytes")
        )
        found, unwritable = batches(records, encoding, most_records, most_bytes)
        for record in unwritable:
            await self._write_dead_letter(
                record, 0, "not a text in UTF-8; the setting encoding=base64 writes any bytes"
            )
        for batch in found:
            await self._deliver(batch)

    async def stop(self) -> None:
        if self._target is not None:
            self._target.close()

    async def _deliver(self, batch: HttpBatch) -> None:
        # A stack of what is left, so that a batch that is halved again and again stays in order.
        left = [batch]
        while left:
            current = left.pop()
            answer = await self._post(current)
            if answer.meaning is Meaning.REFUSED and len(current) > 1:
                left += reversed(current.halves())
            elif answer.meaning is not Meaning.TAKEN:
                for record, _ in current:
                    await self._write_dead_letter(record, answer.status, answer.text)

    async def _post(self, batch: HttpBatch) -> Answer:
        """
        Post a batch until the target has accepted or refused it, and return the answer.

        Raises:
            KielGroupsError: The target has neither accepted nor refused the batch within the allowed number of
                requests, or refuses requests for a reason that is not in the records.
            TaskStoppedError: The task has to stop.
        """
        assert self._target is not None
        most: int = self._settings["retry.max"]
        body = batch.body
        for failures in range(1, most + 2):
            answer = await self._target.post(body)
            answer = answer._replace(text=without_secrets(answer.text[:_LONGEST_OUTCOME], self._secrets))
            if answer.meaning is Meaning.MISDIRECTED:
                raise KielGroupsError(f"{self._url} answers {answer.text}; {_advice(answer.status)}")
            if answer.meaning is not Meaning.AGAIN:
                if failures > _FAILURES_SHOWN:
                    self._context.report_problem("")
                return answer
            log.warning(
                "%s: %s did not take %s, failure %d of at most %d: %s",
                self._name,
                self._url,
                batch,
                failures,
                most + 1,
                answer.text,
            )
            if failures >= _FAILURES_SHOWN:
                tries = f"{failures:,} of at most {most + 1:,} requests"
                self._context.report_problem(f"{self._url} did not take {batch} in {tries}: {answer.text}")
            if failures <= most and await self._context.pause(self._wait_s(failures, answer)):
                raise TaskStoppedError(f"{self._name}: stopped while {self._url} did not take {batch}")
        attempts = counted(most + 1, "request")
        raise KielGroupsError(f"{self._url} did not take {batch} in {attempts}; the last outcome: {answer.text}")

    def _wait_s(self, failures: int, answer: Answer) -> float:
        longest: float = self._settings["retry.backoff.max.ms"] / 1000
        return max(self._backoff.delay_s(failures), min(answer.wait_s, longest))

    async def _write_dead_letter(self, record: Record, status: int, error: str) -> None:
        """
        Write a record that cannot be delivered to the dead letter topic.

        Raises:
            KielGroupsError: No dead letter topic is set, or the write failed.
        """
        place = f"{record.topic_partition} offset {record.offset}"
        if self._dead_letters is None:
            raise KielGroupsError(
                f"{self._url} does not take {place}: {error}; with a dead.letter.topic, such records would go there"
            )
        log.warning("%s: %s goes to topic %s: %s", self._name, place, self._dead_letters, error)
        context: dict[str, Any] = {
            "connector": self._context.connector,
            "task": self._context.task,
            "url": self._url,
            "status": status,
            "error": error,
        }
        await self._context.produce(self._dead_letters, record.key, dead_letter(record, context))


def _advice(status: int) -> str:
    if status < 400:
        return "redirects are not followed, correct the url"
    if status in (401, 403):
        return "correct the setting authorization"
    return "this concerns every record, so none is a dead letter; correct the url or the headers"


def _secrets(url: str, header_values: Sequence[str]) -> set[str]:
    """
    Return the secrets of a URL and of headers, in all forms in which texts may quote them.

    The secrets are header values, the credentials in header values, and query parameters. Short values are omitted.
    """
    credentials = [value.rpartition(" ")[2] for value in header_values]
    parameters = [value for _, value in parse_qsl(urlsplit(url).query)]
    texts = {text for text in (*header_values, *credentials, *parameters) if len(text) >= _SHORTEST_SECRET}
    return {form for text in texts for form in quoted_forms(text)}


def _header_texts(headers: Password | None) -> list[str]:
    return [text.strip() for text in headers.value.split(",")] if headers and headers.value else []


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name.strip(), value.strip()


def _is_header(text: str) -> bool:
    name, value = _header(text)
    legal = name.isascii() and name.replace("-", "").replace("_", "").isalnum() and value.isprintable()
    return legal and bool(value) and name.lower() not in ("authorization", "content-length", "host")


def _are_headers(headers: Password) -> bool:
    return all(map(_is_header, _header_texts(headers)))


#: Keys of one heading, which have their widths in common.
_target = partial(ConfigKey, group="Target", width="long")
_request = partial(ConfigKey, group="Requests", width="short")
_failure = partial(ConfigKey, group="Failures", width="short")


class HttpSinkConnector(SinkConnector):
    """Posts records to a URL, as a JSON array of objects with topic, partition, offset, key and value."""

    version: ClassVar[str] = "1.0"
    task_class = HttpSinkTask
    config = ConfigDefinition(
        _target(
            "url",
            documentation="The URL that records are posted to. Secrets belong in authorization or headers.",
            importance="high",
            validator=Validator(is_http_url, "a URL with http or https and a host, without user and password"),
        ),
        _target(
            "authorization",
            "password",
            None,
            documentation="The value of the header Authorization, such as Bearer with a token.",
            validator=Validator(lambda value: value.value.isprintable() and value.value != "", "printable characters"),
        ),
        _target(
            "headers",
            "password",
            None,
            documentation="Further headers, separated by commas, each as Name: value. Values have no commas. The whole "
            "setting is a secret, because headers often have one.",
            importance="low",
            validator=Validator(_are_headers, "entries of the form 'Name: value' (and not Authorization)"),
        ),
        ConfigKey(
            "encoding",
            default="text",
            documentation="How keys and values become JSON strings: text for UTF-8, base64 for any bytes.",
            validator=one_of("text", "base64"),
            group="Target",
            width="short",
        ),
        _request(
            "batch.max.records",
            "int",
            500,
            documentation="The most records of a request.",
            validator=at_least(1),
        ),
        _request(
            "batch.max.bytes",
            "int",
            1_000_000,
            documentation="The largest body of a request. A single record may be larger.",
            validator=at_least(1),
        ),
        _request(
            "request.timeout.ms",
            "int",
            30_000,
            documentation="How long a connection may take, and then a request with its answer, in milliseconds.",
            validator=between(1, 600_000),
        ),
        _failure(
            "retry.max",
            "int",
            10,
            documentation="How often a request is sent again after a status of 408, 425, 429, or 500 and above, a "
            "timeout, or an error of the connection. After that the task fails.",
            validator=between(0, 1_000_000),
        ),
        _failure(
            "retry.backoff.ms",
            "int",
            200,
            documentation="The delay before a request is sent again, in milliseconds. It doubles with each failure.",
            importance="low",
            validator=at_least(1),
        ),
        _failure(
            "retry.backoff.max.ms",
            "int",
            30_000,
            documentation="The longest such delay, in milliseconds, also if the target asks for more by Retry-After.",
            importance="low",
            validator=at_least(1),
        ),
        ConfigKey(
            "dead.letter.topic",
            default=None,
            documentation="The topic for records that the target refuses (a status of 400, 409, 413 or 422) or that "
            "encoding cannot write. Without it, such a record makes the task fail.",
            validator=TOPIC_NAME,
            group="Failures",
        ),
    )

    @classmethod
    def check(cls, settings: Settings) -> Mapping[str, Sequence[str]]:
        if settings["dead.letter.topic"] in settings["topics"]:
            return {"dead.letter.topic": ["dead.letter.topic: it is one of topics; expected another topic"]}
        return {}

    def start(self, context: ConnectorContext, settings: Settings) -> None:
        self._config = context.config

    def task_configs(self, most: int) -> Sequence[Mapping[str, str]]:
        return [self._config] * most
