"""The connector ``Mirror`` without a server: settings, the division into tasks, and topics that wait."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest

from kiel_groups.errors import (
    ConfigError,
    KielGroupsError,
    NoBrokersError,
)
from kiel_groups.mirror import connector as connector_module
from kiel_groups.mirror import topics as topics_module
from kiel_groups.mirror.connector import MirrorConnector
from kiel_groups.mirror.settings import hashed_partitions
from kiel_groups.mirror.topics import FoundTopics, partitions_of_tasks, source_topics, start_problems, summary
from kiel_groups.mirror.values import (
    BACK,
    BACK_KEY,
    PARTITIONS_KEY,
    RETURNING,
    STOPPED,
    Claim,
    MirroredTopic,
    set_of,
    topic_problems,
)
from kiel_groups.model import TopicPartition
from tests.helpers.connector_contexts import RecordingConnectorContext, typed

pytestmark = pytest.mark.unit

CONFIG = {"source.bootstrap.servers": "old:9092", "target.bootstrap.servers": "new:9092", "topics": "a,b*"}


@pytest.mark.parametrize("most", [1, 3, 8, 20])
def test_a_set_of_partitions_belongs_to_one_task(most: int) -> None:
    """Each partition has one task; the set of a partition does not depend on the number of tasks or other topics."""
    topics = [MirroredTopic("a", "a", 10, {}), MirroredTopic("b", "b", 3, {})]
    tasks = partitions_of_tasks(topics, 8, most)
    assert sorted(chain(*tasks)) == [
        *(TopicPartition("a", n) for n in range(10)),
        *(TopicPartition("b", n) for n in range(3)),
    ]
    sets = [{set_of(partition, 8) for partition in partitions} for partitions in tasks]
    assert sum(map(len, sets)) == 8
    assert len(tasks) == min(most, 8)
    assert set_of(TopicPartition("a", 3), 8) == 6


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("target.topic.format", "copy", r"target.topic.format: 'copy' given; expected a text with \$\{topic\}"),
        ("target.properties", "[]", "target.properties: .* expected a JSON object"),
        ("target.partitions", "x0", "target.partitions: 'x0' given; expected a number, or a factor such as x2"),
        ("target.replication.factor", "0", "target.replication.factor: '0' given; expected -1, or a number from 1"),
        ("dead.letter.topic", "a b", "dead.letter.topic: 'a b' given; expected the name of a topic"),
        ("target.compression.type", "lzma", "target.compression.type: 'lzma' given; expected one of none, gzip"),
        ("topics", "", "topics: '' given; expected names of topics, separated by commas"),
        ("start.offsets", '{"a": {"0": -1}}', "start.offsets: .* given; expected offsets as JSON"),
        ("start.offsets", '{"a": {"x": 1}}', "start.offsets: .* given; expected offsets as JSON"),
        ("start.offsets", '{"a": {"0": 1, "01": 1}}', "start.offsets: .* given; expected offsets as JSON"),
        ("start.offsets", '{"a": 1}', "start.offsets: .* given; expected offsets as JSON"),
    ],
)
def test_settings_are_checked(name: str, text: str, expected: str) -> None:
    """Wrong settings are refused before the connector starts."""
    with pytest.raises(ConfigError, match=expected):
        typed(MirrorConnector, CONFIG | {name: text})


@pytest.mark.parametrize(("setting", "expected"), [("", 0), ("12", 12), ("3", 3), ("x4", 12)])
def test_more_partitions_are_a_number_or_a_factor(setting: str, expected: int) -> None:
    """An empty setting keeps the partitions of records."""
    assert hashed_partitions(setting, 3) == expected


@pytest.mark.parametrize(
    ("hashed", "present", "text"),
    [
        (0, 2, "the target topic copy has 2 partitions, and a on the source has 3; expected at least as many"),
        (6, 5, "the target topic copy has 5 partitions, and target.partitions asks for 6; expected at least as many"),
        (2, 0, "target.partitions: 2 given; expected at least 3, the number of partitions of a"),
        (0, 4, ""),
        (6, 0, ""),
    ],
)
def test_a_topic_that_the_mirror_has_not_begun_needs_its_partitions(hashed: int, present: int, text: str) -> None:
    """Records without a key keep their partition. A topic that the mirror has begun grows, or some partitions wait."""
    topic = MirroredTopic("a", "copy", 3, {}, 0, hashed)
    found = topic_problems({}, "m", [topic], {"copy": present} if present else {})
    assert found == ({} if not text else {"a": found["a"]})
    assert found.get("a", "").startswith(text)
    assert topic_problems({"copy": Claim("m", "a", "old:9092")}, "m", [topic], {"copy": present}) == {}


def test_without_its_library_the_connector_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector can be listed without confluent-kafka, and fails with one line when it is started."""
    for module in ("kiel_groups.mirror.target", "kiel_groups.mirror.writer"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    connector = MirrorConnector()
    with pytest.raises(ConfigError, match=r"confluent-kafka is missing in .*; install kiel-groups\[mirror\]"):
        connector.start(RecordingConnectorContext(CONFIG), typed(MirrorConnector, CONFIG))


@pytest.mark.parametrize(
    ("starts", "text"),
    [
        ({"a": {"0": 8}}, "start.offsets: 8 given for a:0; expected at most 7, where its log on the source ends"),
        ({"a": {"0": 7, "3": 0}}, "start.offsets: a:3 given; the mirror has no such partition"),
        ({"b": {"0": 0}}, "start.offsets: b:0 given; the mirror has no such partition"),
    ],
)
def test_offsets_that_the_source_does_not_have_are_refused(
    starts: Mapping[str, Mapping[str, int]], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task would read from a position where the log may once be, and skip all records before it."""
    source = SimpleNamespace(end_offsets=lambda wanted: dict.fromkeys(wanted, 7))
    monkeypatch.setattr(topics_module, "SingleConsumer", lambda _: nullcontext(source))
    found = start_problems("old:9092", json.dumps(starts), {"a": 3})
    assert [problem.startswith(text) for problem in found.values()] == [True], found
    assert start_problems("old:9092", '{"a": {"0": 7}}', {"a": 3}) == {}


@pytest.mark.parametrize(
    ("direction", "must_move"), [(STOPPED, True), (RETURNING, True), (STOPPED, False), (BACK, True)]
)
def test_a_run_with_an_end_waits_for_no_topic_that_is_stopped(
    direction: str, must_move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the command that turns the topic, which was perhaps killed."""
    connector, claim = MirrorConnector(), Claim("c", "a", "old:9092", direction=direction)
    target = SimpleNamespace(check=lambda *_: ({"a": claim}, {}), partitions=lambda _: {})
    monkeypatch.setattr(connector, "_topics", lambda: FoundTopics({"a": 1}, {}))
    monkeypatch.setattr(connector_module, "target_of", lambda _: target)
    others = connector.checked_topics("c", typed(MirrorConnector, CONFIG), timeout_s=1, must_move=True, awaited=["b"])
    assert "a" in others or direction == BACK
    stops = must_move and direction != BACK
    expected = pytest.raises(KielGroupsError, match="the topic a is stopped while") if stops else nullcontext()
    with expected:
        found = connector.checked_topics("c", typed(MirrorConnector, CONFIG), timeout_s=1, must_move=must_move)
        # The source of a topic that is copied back grows as long as the mirror runs.
        assert found == ({} if direction == BACK else {"a": 1})


def test_dead_letters_that_would_go_to_a_mirror_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both when a command checks the settings and, since it may be another program's, when the connector starts."""
    target = FakeTarget({"a": Claim("c", "a", "old:9092")}, 1)
    settings = typed(MirrorConnector, CONFIG | {"dead.letter.topic": "a"})
    connector, _ = connector_of(lambda _: [])
    del vars(connector)["_configured"]
    vars(connector).update(_target=target, _topics=lambda: FoundTopics({"a": 1}, {}), _settings=settings)
    checked = SimpleNamespace(check=lambda *_: ({}, {}), partitions=lambda _: {})
    monkeypatch.setattr(connector_module, "target_of", lambda _: checked)
    for prepare in (
        lambda: connector.task_configs(1),
        lambda: connector.checked_topics("c", settings, timeout_s=1, must_move=False),
    ):
        with pytest.raises(ConfigError, match=r"dead\.letter\.topic: 'a' given; mirrors write to"):
            prepare()


def connector_of(configured: Callable[[int], Any]) -> tuple[MirrorConnector, RecordingConnectorContext]:
    connector, context = MirrorConnector(), RecordingConnectorContext(CONFIG)
    ended = SimpleNamespace(wait=lambda _: False)
    settings = typed(MirrorConnector, CONFIG)
    vars(connector).update(_context=context, _settings=settings, _ended=ended, _configured=configured)
    vars(connector).update(_known={}, _problems={})
    return connector, context


def planned(connector: MirrorConnector, target: FakeTarget, partitions: int, problems: Mapping[str, str] = {}) -> Any:
    """Return the task of a connector whose source has as many partitions of each claimed topic."""
    vars(connector).pop("_configured", None)
    found = FoundTopics(dict.fromkeys(target.claims_of_all, partitions), problems)
    vars(connector).update(_target=target, _topics=lambda: found)
    (config,) = connector.task_configs(1)
    return config


class FakeTarget:
    """A target whose topics are claimed already, with a number of partitions. It may refuse claims and growth."""

    def __init__(self, claims: Mapping[str, Claim], partitions: int) -> None:
        self.claims_of_all, self._partitions = claims, partitions
        self.unclaimed, self.ungrown, self.lost = dict[str, str](), dict[str, str](), dict[str, str]()
        self.grown: list[str] = []
        #: The ids of topics, and why topics are not those that were claimed.
        self.ids, self.other = dict[str, str](), dict[str, str]()

    def topic_ids(self, topics: Collection[str], *, must_exist: bool) -> Mapping[str, str]:
        return {name: self.ids[name] for name in topics if name in self.ids and must_exist}

    def replaced(self, claims: Mapping[str, Claim]) -> Mapping[str, str]:
        return {name: text for name, text in self.other.items() if name in claims}

    def change_claims(self, change: Callable[[Mapping[str, Claim]], Mapping[str, Claim]]) -> Mapping[str, Claim]:
        self.claims_of_all = {**self.claims_of_all, **change(self.claims_of_all)}
        return self.claims_of_all

    def create_checkpoints(self, *_: object) -> None: ...

    def create(self, *_: object) -> tuple[dict[str, int], dict[str, str]]:
        return dict(self.partitions()), {}

    def grow(self, topics: Sequence[MirroredTopic]) -> dict[str, str]:
        self.grown += [topic.target for topic in topics]
        return {topic.source: self.ungrown[topic.source] for topic in topics if topic.source in self.ungrown}

    def last_ends(self, _: str) -> Mapping[TopicPartition, int]:
        return {}

    def lost_topics(self, names: Mapping[str, str], *_: object) -> Mapping[str, str]:
        return {topic: text for topic, text in self.lost.items() if topic in names}

    def claim(self, *_: object) -> tuple[Mapping[str, Claim], Mapping[str, str]]:
        return self.claims_of_all, self.unclaimed

    def latest_claims(self) -> Mapping[str, Claim]:
        return self.claims_of_all

    def partitions(self) -> Mapping[str, int]:
        return dict.fromkeys(self.claims_of_all, self._partitions)


def test_a_topic_that_has_grown_grows_on_the_target() -> None:
    """
    Its new partitions are copied, too. A topic that is copied back, or whose keys are hashed anew, does not grow. If
    the target refuses, the partitions that it has are copied, and the status says which records wait, for how long. A
    topic that was created again there does not grow, either.
    """
    claims = {"a": Claim("c", "a", "old:9092"), "b": Claim("c", "b", "old:9092", 0, BACK, (7, 8, 9))}
    target, (connector, context) = FakeTarget(claims, 3), connector_of(lambda _: [])
    config = planned(connector, target, 4)
    assert (target.grown, context.problems) == (["a"], [""])
    assert json.loads(config[PARTITIONS_KEY]) == [["a", number] for number in range(4)]
    assert json.loads(config[BACK_KEY]) == [["b", 0, 7], ["b", 1, 8], ["b", 2, 9]]

    target.ungrown["a"] = "the target refuses to add partitions to a"
    config = planned(connector, target, 4)
    assert json.loads(config[PARTITIONS_KEY]) == [["a", number] for number in range(3)]
    assert context.problems[-1] == "the target refuses to add partitions to a"
    ended = iter([False, True])
    vars(connector).update(_ended=SimpleNamespace(wait=lambda _: next(ended)))
    connector._watch()
    assert context.reconfigurations == 1

    target.lost["a"] = "the target's partition a:0 had 9 records, and ends at 0 now"
    assert json.loads(planned(connector, target, 4)[PARTITIONS_KEY]) == []
    assert (target.grown, context.problems[-1]) == (["a", "a"], target.lost["a"])

    vars(connector).update(_settings={**connector._settings, "target.partitions": "3"})
    planned(connector, target, 4)
    assert target.grown == ["a", "a"]
    assert context.problems[-1].endswith("add partitions on the target, after which keys have other partitions there")
    planned(connector, target, 3)
    assert context.problems[-1] == ""


def test_the_ids_of_topics_are_noted_before_the_first_record() -> None:
    """
    A topic with another id than the noted one is not copied, unless nothing was copied before. The watch notices it. If
    the target has no ids, nothing is noted.
    """
    claims = {name: Claim("c", name, "old:9092") for name in "ab"}
    target, (connector, context) = FakeTarget(claims, 1), connector_of(lambda _: [])
    planned(connector, target, 1)
    assert target.claims_of_all is claims
    for ids, lost, noted, partitions in (
        ({"a": "a1"}, {"a": "a is short, and its claim has no id yet"}, ("a1", ""), "ab"),
        ({"a": "a2", "b": "b1"}, {"a": "a has another id"}, ("a1", "b1"), "b"),
        ({"a": "a2", "b": "b2"}, {}, ("a2", "b2"), "ab"),
    ):
        target.ids, target.lost = ids, lost
        config = planned(connector, target, 1)
        assert tuple(claim.target_id for claim in target.claims_of_all.values()) == noted
        assert json.loads(config[PARTITIONS_KEY]) == [[name, 0] for name in partitions]
    ended = iter([False, True, False, True])
    vars(connector).update(_ended=SimpleNamespace(wait=lambda _: next(ended)))
    for name, expected in (("of another mirror", 0), ("b", 1)):
        target.other = {name: "it has another id"}
        connector._watch()
        assert context.reconfigurations == expected


def test_a_topic_with_a_problem_keeps_no_other_topic_from_being_copied(caplog: pytest.LogCaptureFixture) -> None:
    """The status and, once, the log say why it waits. If all topics have problems, the connector fails."""
    claims = {name: Claim("c", name, "old:9092") for name in ("a", "b")}
    target, (connector, context) = FakeTarget(claims, 3), connector_of(lambda _: [])
    target.unclaimed["b"] = "the source topic b was deleted and created again"
    for _ in range(2):
        config = planned(connector, target, 3, {"x": "topics: the source has no topic 'x'"})
        assert json.loads(config[PARTITIONS_KEY]) == [["a", number] for number in range(3)]
    assert context.problems[-1] == f"the source has no topic 'x'; {target.unclaimed['b']}"
    assert [record.message for record in caplog.records] == [
        "c: the source has no topic 'x'; other topics are copied",
        f"c: {target.unclaimed['b']}; other topics are copied",
    ]
    target.unclaimed["a"] = "of another mirror"
    with pytest.raises(ConfigError, match="created again"):
        planned(connector, target, 3)
    assert summary({name: name * 2 for name in "abcde"}) == "aa; bb; cc; also d, e"


@pytest.mark.parametrize("must_move", [True, False])
def test_a_restart_is_not_refused_for_a_topic_that_was_mirrored_before(
    must_move: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are mirrored meanwhile, unless the run waits for all topics. A new topic with a problem is refused."""
    problems = {"a": "the source topic a was deleted and created again"}
    claims = {"a": Claim("c", "a", "old:9092")}
    target = SimpleNamespace(check=lambda *_: (claims, problems), partitions=lambda _: {})
    connector, settings = MirrorConnector(), typed(MirrorConnector, CONFIG)
    monkeypatch.setattr(connector, "_topics", lambda: FoundTopics({"a": 1, "b": 1}, {}))
    monkeypatch.setattr(connector_module, "target_of", lambda _: target)
    with pytest.raises(ConfigError, match="topic a was") if must_move else nullcontext():
        connector.checked_topics("c", settings, timeout_s=1, must_move=must_move)
    if not must_move:
        # Its name on the target cannot change.
        renamed = typed(MirrorConnector, CONFIG | {"target.topic.format": "copy.${topic}"})
        with pytest.raises(ConfigError, match="topic a was"):
            connector.checked_topics("c", renamed, timeout_s=1, must_move=False)
    # The problem of another topic is no reason to give up one that is waited for.
    found = connector.checked_topics("c", settings, timeout_s=1, must_move=must_move, awaited=["b"])
    assert found == {"a": 1, "b": 1}
    problems["b"] = "the target topic b is the mirror of x"
    with pytest.raises(ConfigError, match="topic a was" if must_move else "mirror of x"):
        connector.checked_topics("c", settings, timeout_s=1, must_move=must_move)

    def partitions(_: float) -> None:
        raise NoBrokersError("no broker of the target answers")

    # A user who has corrected the topics would learn of the target only then.
    vars(target).update(partitions=partitions)
    with pytest.raises(NoBrokersError, match="the target"):
        connector.checked_topics("c", settings, timeout_s=1, must_move=must_move)


@pytest.mark.parametrize("partitions", [3, 4])
def test_tasks_are_made_for_the_directions_of_topics(partitions: int, caplog: pytest.LogCaptureFixture) -> None:
    """
    A topic is copied back from the end of its mirrored records, and a stopped topic has no task. Records of partitions
    that the source does not have wait.
    """
    claims = {
        "forward": Claim("c", "forward", "old:9092"),
        "stopped": Claim("c", "stopped", "old:9092", 0, STOPPED),
        "returning": Claim("c", "returning", "old:9092", 0, RETURNING, (7, 8, 9)),
        # The third partition is newer than the turn.
        "back": Claim("c", "back", "old:9092", 0, BACK, (7, 8)),
    }
    connector, context = connector_of(lambda _: [])
    config = planned(connector, FakeTarget(claims, partitions), 3)
    shown = "the target topic back has 4 partitions, and the source topic back, which it is copied back to, has 3; "
    assert context.problems[0].startswith(shown) if partitions > 3 else context.problems == [""]
    assert json.loads(config[PARTITIONS_KEY]) == [["forward", number] for number in range(3)]
    assert json.loads(config[BACK_KEY]) == [["back", 0, 7], ["back", 1, 8], ["back", 2, 0]]
    assert "topic stopped is stopped while 'kiel-groups mirror reverse' turns it round" in caplog.text
    assert "topic returning is stopped while 'kiel-groups mirror reverse --forward' turns it" in caplog.text


def test_a_passing_error_of_the_target_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connector tries for a minute, and logs each try. A mistake of the user fails at once."""
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr("kiel_groups.mirror.connector.time", clock)
    errors: list[Exception] = [KielGroupsError("fenced"), NoBrokersError()]

    def configured(most: int) -> Any:
        if errors:
            raise errors.pop(0)
        return [most]

    connector, _ = connector_of(configured)
    assert connector.task_configs(3) == [3]
    assert [record.message for record in caplog.records] == [
        "c: fenced; trying again in 1 s",
        "c: none of the brokers answered; trying again in 2 s",
    ]
    pauses.clear()
    errors += [KielGroupsError(str(number)) for number in range(17)]
    with pytest.raises(KielGroupsError, match="16"):
        connector.task_configs(3)
    assert pauses == [1, 2, *[4] * 14]
    errors += [ConfigError("mistake")]
    with pytest.raises(ConfigError, match="mistake"):
        connector.task_configs(3)


def test_an_unexpected_error_while_topics_are_watched_fails_the_connector(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors of the source are logged, and the watch continues. Another error does not end it silently."""
    errors: list[Exception] = [ConfigError("topics: the source has no topic 'b'"), RuntimeError("unexpected")]

    def topics() -> Any:
        raise errors.pop(0)

    connector, context = connector_of(lambda _: [])
    monkeypatch.setattr(connector, "_topics", topics)
    connector._watch()
    assert [str(error) for error in context.errors] == ["unexpected"]
    assert [record.message for record in caplog.records] == [
        "c: its tasks stay as they are: topics: the source has no topic 'b'; looking for changes again in 60 s"
    ]


def test_topics_that_mirrors_keep_are_not_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The checkpoints of the mirror before this one in a chain would be taken for those of this one. Internal topics are
    not mirrored, either.

    A topic without partitions is being created. The target would refuse to create the like.
    """
    partitions = {"kiel-mirror-m": {0}, "kiel-mirror-claims": {0}, "orders": {0, 1}, "being created": None}
    partitions["__consumer_offsets"] = {0}
    source = SimpleNamespace(topics=partitions.keys, partitions_for_topic=partitions.get)
    monkeypatch.setattr(topics_module, "SingleConsumer", lambda _: nullcontext(source))
    assert source_topics("old:9092", ["*"], None) == ({"orders": 2}, {})
    connector, opened = MirrorConnector(), list[Any]()
    target = SimpleNamespace(latest_claims=lambda: {"orders": Claim("m", "x", "older:9092")})
    monkeypatch.setattr(connector_module, "open_target", lambda config: opened.append(config) or target)
    vars(connector).update(_settings=typed(MirrorConnector, CONFIG | {"topics": "orders,none"}))
    for _ in range(2):
        with pytest.raises(ConfigError, match="the source has no topic 'none'"):
            connector._topics()
    # The clients of the source are made once.
    assert opened == [{"bootstrap.servers": "old:9092"}]
    found = source_topics("old:9092", ["*"], connector._source_claims)
    assert "orders of the source is itself the mirror of x of older:9092" in found.problems["orders"]
