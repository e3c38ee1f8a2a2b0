"""``HttpSink`` on a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import pytest

from kiel_groups.errors import ConfigError, KielGroupsError, TaskStoppedError
from kiel_groups.model import Record
from kiel_groups.workers.plugins.connector_checks import validation_report
from kiel_groups.workers.shipped.http_sink import Answer, HttpSinkConnector, HttpSinkTask, HttpTarget, Meaning
from tests.helpers.connector_contexts import RecordingTaskContext, one_task_settings, typed
from tests.helpers.http_receiver import HttpReceiver, Reply, http_receiver

pytestmark = pytest.mark.unit


def records(count: int, value: bytes = b"v") -> list[Record]:
    return [Record("t", 0, offset, b"k%d" % offset, value) for offset in range(count)]


@dataclass
class Scene:
    """A task, its context, and the server that it posts to."""

    receiver: HttpReceiver
    context: RecordingTaskContext
    task: HttpSinkTask

    @property
    def dead(self) -> list[int]:
        """The offsets of the dead letters."""
        return [json.loads(value or b"")["offset"] for _, _, value in self.context.produced]


def play(
    scene: Callable[[Scene], Coroutine[Any, Any, None]],
    config: Mapping[str, str] | None = None,
    context: RecordingTaskContext | None = None,
) -> None:
    """Run a scene with a task that has started."""

    async def run() -> None:
        async with http_receiver() as receiver:
            whole = {"url": receiver.url + "?key=s3cret", "topics": "t", **(config or {})}
            played = Scene(receiver, context or RecordingTaskContext(), HttpSinkTask())
            await played.task.start(played.context, one_task_settings(HttpSinkConnector, whole))
            try:
                await scene(played)
            finally:
                await played.task.stop()

    asyncio.run(run())


def refusing(*offsets: int, status: int = 400) -> Callable[[list[Any]], Reply]:
    """Refuse every request that has one of these records."""
    return lambda objects: Reply(status if any(each["offset"] in offsets for each in objects) else 200, "no")


def failing(times: int, status: int) -> Callable[[list[Any]], Reply]:
    """Answer a status a few times, and then take everything."""
    left = [Reply(status)] * times
    return lambda objects: left.pop() if left else Reply(200)


DEAD = {"dead.letter.topic": "dead"}


def test_records_are_posted_in_batches() -> None:
    """``put`` returns when all records were taken, in their order, in requests of a limited size, with the headers."""

    async def scene(it: Scene) -> None:
        await it.task.put(records(7))
        await it.task.put([])
        assert it.receiver.offsets == [[0, 1, 2], [3, 4, 5], [6]]
        assert it.receiver.taken[0] == {"topic": "t", "partition": 0, "offset": 0, "key": "k0", "value": "v"}
        headers = it.receiver.headers[0]
        assert headers["Content-Type"] == "application/json"
        assert (headers["Authorization"], headers["X-One"], headers["X-Two"]) == ("Bearer s3cret", "1", "a:b")

    config = {"batch.max.records": "3", "headers": "X-One: 1, X-Two: a:b", "authorization": "Bearer s3cret"}
    play(scene, config)


def test_bytes_limit_a_batch() -> None:
    """A request has at most the allowed bytes, and base64 writes any bytes."""

    async def scene(it: Scene) -> None:
        await it.task.put(records(4, b"\xff" * 60))
        assert it.receiver.offsets == [[0, 1], [2, 3]]
        assert it.receiver.taken[0]["value"] == "/" * 80

    play(scene, {"batch.max.bytes": "350", "encoding": "base64"})


@pytest.mark.parametrize("status", [429, 503])
def test_a_target_that_refuses_is_a_problem(status: int) -> None:
    """From the third refusal on, the status of the task names the target and its answer, until it takes the records."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = failing(2, status)
        await it.task.put(records(1))
        assert it.context.problems == []
        it.receiver.judge = failing(4, status)
        await it.task.put(records(2))
        refused = f"{it.receiver.url} did not take t:0 offset 0 to t:0 offset 1 in"
        assert it.context.problems == [
            f"{refused} 3 of at most 11 requests: {status} {HTTPStatus(status).phrase}",
            f"{refused} 4 of at most 11 requests: {status} {HTTPStatus(status).phrase}",
            "",
        ]

    play(scene)


def test_the_start_of_a_long_outcome_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target chooses the reason of its status, which is searched for each secret on the event loop."""

    async def post(target: HttpTarget, body: bytes) -> Answer:
        return Answer(Meaning.MISDIRECTED, 404, f"404 {'x' * 60_000}")

    async def scene(it: Scene) -> None:
        with pytest.raises(KielGroupsError, match=r"answers 404 x{996};"):
            await it.task.put(records(1))

    monkeypatch.setattr(HttpTarget, "post", post)
    play(scene)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_request_is_repeated(status: int) -> None:
    """A server that cannot take records now gets them again, after delays that double up to the longest one."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = failing(4, status)
        await it.task.put(records(2))
        assert it.receiver.offsets == [[0, 1]] * 5
        assert [each["offset"] for each in it.receiver.taken] == [0, 1]
        first, *others = it.context.pauses
        assert 0.07 <= first <= 0.1
        assert [round(pause / first, 3) for pause in others] == [2, 4, 4]

    play(scene, {"retry.backoff.ms": "100", "retry.backoff.max.ms": "400", **DEAD})


def test_a_server_may_ask_to_wait() -> None:
    """Retry-After delays the next request, up to the longest delay."""

    async def scene(it: Scene) -> None:
        replies = [Reply(503, headers={"Retry-After": "9999"}), Reply(503, headers={"Retry-After": "2"})]
        it.receiver.judge = lambda objects: replies.pop() if replies else Reply(200)
        await it.task.put(records(1))
        assert it.context.pauses == [2, 5]

    play(scene, {"retry.backoff.max.ms": "5000"})


def test_a_request_is_repeated_a_limited_number_of_times(caplog: pytest.LogCaptureFixture) -> None:
    """After the last try the task fails, also with a dead letter topic. Neither error nor log has the query."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = lambda objects: Reply(500, "out of space")
        with pytest.raises(KielGroupsError) as raised:
            await it.task.put(records(2))
        url = it.receiver.url
        expected = (
            "did not take t:0 offset 0 to t:0 offset 1 in 3 requests; the last outcome: 500 Internal Server Error"
        )
        assert str(raised.value) == f"{url} {expected}: out of space"
        assert len(it.receiver.requests) == 3
        assert len(it.context.pauses) == 2
        assert it.context.produced == []

    play(scene, {"retry.max": "2", **DEAD})
    assert "c-0: http://127.0.0.1" in caplog.text
    assert "failure 3 of at most 3: 500 Internal Server Error: out of space" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_timeout_is_repeated() -> None:
    """A server that does not answer gets the same records again."""

    async def scene(it: Scene) -> None:
        replies = [Reply(200, hangs=True)]
        it.receiver.judge = lambda objects: replies.pop() if replies else Reply(200)
        await it.task.put(records(2))
        assert it.receiver.offsets == [[0, 1]] * 2

    play(scene, {"request.timeout.ms": "300"})


def test_a_task_that_has_to_stop_gives_up() -> None:
    """While requests fail, a task that has to stop does not wait for the last try, and does not fail."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = lambda objects: Reply(503)
        with pytest.raises(TaskStoppedError, match="c-0: stopped while"):
            await it.task.put(records(2))
        assert len(it.receiver.requests) == 3

    play(scene, {"retry.max": "100"}, RecordingTaskContext(stop_after=3))


def test_a_refused_record_is_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    """A refused batch is divided until the records at fault are alone. All others are taken, in order."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = refusing(2, 5)
        await it.task.put(records(8))
        assert [each["offset"] for each in it.receiver.taken] == [0, 1, 3, 4, 6, 7]
        assert it.dead == [2, 5]
        topic, key, value = it.context.produced[0]
        assert (topic, key) == ("dead", b"k2")
        letter = json.loads(value or b"")
        assert (letter["topic"], letter["partition"], letter["key"], letter["value"]) == ("t", 0, "k2", "v")
        assert letter["context"] == {
            "connector": "c",
            "task": 0,
            "url": it.receiver.url,
            "status": 400,
            "error": "400 Bad Request: no",
        }

    play(scene, DEAD)
    assert "c-0: t:0 offset 2 goes to topic dead: 400 Bad Request: no" in caplog.text


def test_a_body_that_is_too_large_is_divided() -> None:
    """A status of 413 divides a batch, also without a dead letter topic."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = lambda objects: Reply(413 if len(objects) > 2 else 200)
        await it.task.put(records(5))
        assert [each["offset"] for each in it.receiver.taken] == [0, 1, 2, 3, 4]

    play(scene)


def test_a_refused_record_fails_the_task() -> None:
    """Without a dead letter topic, the task fails at the refused record, and says which one it is."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = refusing(2)
        with pytest.raises(KielGroupsError, match="does not take t:0 offset 2: 400 Bad Request: no; with a dead"):
            await it.task.put(records(4))
        assert [each["offset"] for each in it.receiver.taken] == [0, 1]

    play(scene)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (301, "redirects are not followed, correct the url"),
        (401, "correct the setting authorization"),
        (403, "correct the setting authorization"),
        (404, "none is a dead letter; correct the url or the headers"),
        (415, "none is a dead letter; correct the url or the headers"),
    ],
)
def test_a_refusal_that_does_not_depend_on_the_records_fails_the_task(status: int, advice: str) -> None:
    """A wrong URL or token makes no record a dead letter. The task fails with one request, and says what to correct."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = lambda objects: Reply(status, headers={"Location": "/x"})
        with pytest.raises(KielGroupsError, match=advice):
            await it.task.put(records(4))
        assert it.context.produced == []
        assert it.receiver.offsets == [[0, 1]]

    play(scene, {"batch.max.records": "2", **DEAD})


def test_what_is_no_text_is_a_dead_letter() -> None:
    """A record that is not UTF-8 is a dead letter, or fails the task with the advice to use base64."""

    async def scene(it: Scene) -> None:
        await it.task.put([*records(1), Record("t", 0, 1, None, b"\xff"), Record("t", 0, 2, None, b"w")])
        assert it.dead == [1]
        assert it.receiver.offsets == [[0, 2]]

    async def without_topic(it: Scene) -> None:
        with pytest.raises(KielGroupsError, match="t:0 offset 1: not a text in UTF-8; the setting encoding=base64"):
            await it.task.put([Record("t", 0, 1, None, b"\xff")])
        assert it.receiver.requests == []

    play(scene, DEAD)
    play(without_topic)


def test_a_dead_letter_that_cannot_be_written_fails_the_task() -> None:
    """A record is taken, a dead letter, or an error; it is never dropped."""

    class Full(RecordingTaskContext):
        async def produce(self, topic: str, key: bytes | None, value: bytes | None) -> None:
            raise KielGroupsError("no leader")

    async def scene(it: Scene) -> None:
        it.receiver.judge = refusing(0)
        with pytest.raises(KielGroupsError, match="no leader"):
            await it.task.put(records(1))
        assert it.receiver.taken == []

    play(scene, DEAD, Full())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"url": "ftp://h/"}, "url: 'ftp://h/' given; expected a URL with http or https and a host"),
        ({"url": "http://user:pw@h/"}, "without user and password"),
        ({"url": "http://h:99999/"}, "url: "),
        ({"url": "/path"}, "url: "),
        ({"url": "http://a..b/"}, "url: 'http://a..b/' given; expected a URL with http or https and a host"),
        ({"headers": "NoColon"}, r"headers: \[hidden\] given; expected entries of the form 'Name: value'"),
        ({"headers": "Authorization: x"}, r"headers: \[hidden\] .*\(and not Authorization\)"),
        ({"headers": "A\nB: x"}, "headers: "),
        ({"authorization": "a\r\nb: c"}, r"authorization: \[hidden\] given; expected printable characters"),
        ({"encoding": "hex"}, "encoding: 'hex' given; expected one of text, base64"),
        ({"dead.letter.topic": "t"}, "dead.letter.topic: it is one of topics; expected another topic"),
        ({"request.timeout.ms": "0"}, "request.timeout.ms: '0' given"),
    ],
)
def test_settings_are_checked(config: dict[str, str], expected: str) -> None:
    """Wrong settings are refused before a task exists, without showing secrets."""
    with pytest.raises(ConfigError, match=expected):
        typed(HttpSinkConnector, {"url": "http://h/", "topics": "t"} | config)


def test_what_a_server_sends_back_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """Some servers repeat the request that they refuse. Errors, logs and dead letters do not show its secrets."""

    async def scene(it: Scene) -> None:
        it.receiver.judge = lambda objects: Reply(
            400, "no: /in?key=s3cret, Authorization: Bearer t0ken-, X-Key: k3y-k3y"
        )
        await it.task.put(records(1))
        dead = json.loads(it.context.produced[0][2] or b"")
        hidden = "no: /in?key=[hidden], Authorization: [hidden], X-Key: [hidden]"
        assert dead["context"]["error"].endswith(hidden)
        assert hidden in caplog.text

    play(scene, {**DEAD, "authorization": "Bearer t0ken-", "headers": "X-Key: k3y-k3y"})


def test_authorization_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    """The authorization is neither in reports nor in logs."""
    caplog.set_level(logging.DEBUG)

    async def scene(it: Scene) -> None:
        it.receiver.judge = failing(2, 500)
        await it.task.put(records(1))
        assert it.receiver.headers[0]["Authorization"] == "Bearer s3cret"

    play(scene, {"authorization": "Bearer s3cret"})
    report = validation_report(HttpSinkConnector, {"authorization": "Bearer s3cret", "url": "http://h/"})
    assert "s3cret" not in caplog.text + json.dumps(report)
