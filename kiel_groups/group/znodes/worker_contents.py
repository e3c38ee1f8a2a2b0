"""
Encode and parse the znodes of a group's workers.

All data is JSON that an operator can read with zkCli's ``get``. Parsing is strict: invalid data raises a ProtocolError
with the path. Work means a connector or a task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha1
from math import isfinite
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from six import ensure_binary

from kiel_groups.errors import ConfigError, ProtocolError
from kiel_groups.group.znodes.contents import LARGEST_OFFSET, encode_object, named_fields, parse_object, typed_field

#: A JSON object: the form of a source partition and of a source offset.
JsonObject: TypeAlias = Mapping[str, Any]

#: A counter (int) or a gauge (float) of a task: its name, its labels and its value.
Sample: TypeAlias = tuple[str, tuple[tuple[str, str], ...], int | float]

_Choice = TypeVar("_Choice", bound=StrEnum)

_VERSION = 1

#: The most bytes of a trace that are stored. Connect's REST answers have the traces of all tasks of a connector.
LARGEST_TRACE_BYTES = 8 << 10
LARGEST_PROBLEM_BYTES = 1 << 10
#: The most metrics of a task that are stored.
MOST_SAMPLES = 1_000
_CUT = "...\n"

#: The most keys that a history entry names, and the most characters of each: the entry shares the transaction's limit.
MOST_KEYS, LONGEST_KEY = 20, 100


def encode_config_offset(offset: int) -> bytes:
    return encode_object({"version": _VERSION, "offset": offset})


def parse_config_offset(data: bytes, path: str) -> int:
    """
    Return the configuration offset, or 0 if the znode is empty: the configuration has not changed yet.

    Raises:
        ProtocolError: The znode's data is invalid; the text says how to repair it.
    """
    try:
        return _count(_versioned(data, path), "offset", path) if data else 0
    except ProtocolError as error:
        raise ProtocolError(
            f'{error}; to repair it, write {{"version":{_VERSION},"offset":N}} to this znode, where N is the largest'
            f" number in the names below {path}/history, without leading zeros, or 0 if there is none"
        ) from error


class TargetState(StrEnum):
    """The state that users want for a connector and its tasks: running or paused."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConnector:
    """
    The configurations of a connector and of its tasks. One znode has all these configurations, so they change together.

    ``tasks`` is None if the connector has not defined its tasks yet. ``offset`` is the configuration offset of the last
    change of this connector.
    """

    name: str
    config: Mapping[str, str]
    target: TargetState = TargetState.STARTED
    tasks: tuple[Mapping[str, str], ...] | None = None
    offset: int = 0

    def encode(self) -> bytes:
        return encode_object(
            {
                "version": _VERSION,
                "name": self.name,
                "config": dict(self.config),
                "target": self.target,
                "tasks": None if self.tasks is None else [dict(task) for task in self.tasks],
                "offset": self.offset,
            }
        )

    @classmethod
    def parse(cls, name: str, data: bytes, path: str) -> StoredConnector:
        """
        Parse the configuration of the connector ``name``. Raise ProtocolError if the data is invalid, or has another
        name.
        """
        fields = _versioned(data, path)
        if fields.get("name") != name:
            raise ProtocolError(f"{path}: field 'name' should be {name!r}, found {fields.get('name')!r:.80}")
        tasks = fields.get("tasks")
        if tasks is not None and not isinstance(tasks, list):
            # typed_field would quote the value, which may have secrets.
            raise ProtocolError(f"{path}: field 'tasks' should be list, found {type(tasks).__name__}")
        return cls(
            name=name,
            config=_texts(fields.get("config"), "config", path),
            target=_choice(fields, "target", TargetState, path),
            tasks=None if tasks is None else tuple(_texts(task, "tasks", path) for task in tasks),
            offset=_count(fields, "offset", path),
        )


class WorkState(StrEnum):
    """The states of a connector or a task, with the names of Kafka Connect."""

    #: No worker runs it: it was given back, or it has no owner yet.
    UNASSIGNED = "UNASSIGNED"
    #: Its owner runs it.
    RUNNING = "RUNNING"
    #: Its owner has it, and does not run it, because users have paused its connector.
    PAUSED = "PAUSED"
    #: It has raised an error, or cannot be started. Its owner keeps it.
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class WorkStatus:
    """
    The status of a connector or a task, as its owner has reported it.

    Args:
        state: The state.
        worker: ``host:port`` of the owner's REST interface.
        trace: The trace of the error. The trace is "" unless the state is FAILED.
        generation: The generation of the group in which the work was assigned to the owner.
        problem: Why the work makes no progress although it has not failed, in one line, or "" if it makes progress.
        metrics: The metrics of a task that runs.
    """

    state: WorkState
    worker: str
    trace: str = ""
    generation: int = 0
    problem: str = ""
    metrics: tuple[Sample, ...] = ()

    def encode(self) -> bytes:
        """
        Encode the status. Cut a long problem, and many metrics. Cut a long trace to its end, where Python's traces name
        the error.
        """
        # A trace may quote file names or records that are no text.
        trace = ensure_binary(self.trace, errors="backslashreplace")
        if len(trace) > LARGEST_TRACE_BYTES:
            trace = ensure_binary(_CUT) + trace[len(_CUT) - LARGEST_TRACE_BYTES :]
        problem = ensure_binary(self.problem, errors="backslashreplace")[:LARGEST_PROBLEM_BYTES]
        return encode_object(
            {
                "version": _VERSION,
                "state": self.state,
                "worker_id": self.worker,
                "trace": trace.decode(errors="ignore"),
                "generation": self.generation,
            }
            | ({"problem": problem.decode(errors="ignore")} if problem else {})
            | ({"metrics": sample_documents(self.metrics[:MOST_SAMPLES])} if self.metrics else {})
        )

    @classmethod
    def parse(cls, data: bytes, path: str) -> WorkStatus:
        fields = _versioned(data, path)
        return cls(
            state=_choice(fields, "state", WorkState, path),
            worker=_text(fields, "worker_id", path),
            trace=_text(fields, "trace", path),
            generation=_count(fields, "generation", path),
            problem=_text({"problem": ""} | fields, "problem", path),
            metrics=parse_samples(typed_field({"metrics": []} | fields, "metrics", list, path), path),
        )


def sample_documents(samples: Iterable[Sample]) -> list[list[Any]]:
    """Return metrics in the form that they have in JSON: ``["mirror_lag_records", {"topic": "a"}, 3.0]``."""
    return [[name, dict(labels), value] for name, labels, value in samples]


def parse_samples(documents: Iterable[object], path: str) -> tuple[Sample, ...]:
    """Return the metrics of ``sample_documents``, or raise ProtocolError. ``path`` is their place for the error."""
    samples: list[Sample] = []
    for each in documents:
        match each:
            case [str(name), dict(labels), int() | float() as value] if _are_identifiers(name, *labels):
                samples.append((name, tuple(sorted(_texts(labels, "metrics", path).items())), value))
            case _:
                raise ProtocolError(
                    f"{path}: field 'metrics' should have names, labels and numbers, found {each!r:.80}"
                )
    return tuple(samples)


def _are_identifiers(*names: str) -> bool:
    """Return whether Prometheus permits the names of a metric and its labels."""
    return all(name.isascii() and name.isidentifier() for name in names)


def cause_of(trace: str) -> str:
    """Return the line of a traceback that names the error, or a default text for an empty traceback."""
    lines = trace.rstrip().splitlines() or ["for an unknown reason"]
    calls = [number for number, line in enumerate(lines) if line.startswith(("  ", "Traceback"))]
    after_calls = 1 + max(calls, default=-1)
    return (lines[after_calls:] or lines[-1:])[0].removeprefix("kiel_groups.errors.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """
    An entry of the history: one change of the configuration.

    The entry has the names of changed settings. The entry does not have the values of these settings, because the
    values may be secrets.

    Args:
        offset: The configuration offset that the change produced.
        what: ``created``, ``configured``, ``tasks``, ``started``, ``paused`` or ``deleted``.
        connector: The name of the connector.
        worker: The id of the worker that wrote the change.
        at_ms: When it was written, in milliseconds since 1970, on the worker's clock.
        keys: The names of the settings that were added, changed or removed, at most the first ``MOST_KEYS`` names.
        uid: Identifies this attempt to write the change, so that its worker recognises the entry after a lost answer.
    """

    offset: int
    what: str
    connector: str
    worker: str
    at_ms: int
    keys: tuple[str, ...] = ()
    uid: str = ""

    def encode(self) -> bytes:
        return encode_object({"version": _VERSION, **named_fields(self, at_ms="when")})

    @classmethod
    def parse(cls, data: bytes, path: str) -> ConfigChange:
        fields = _versioned(data, path)
        keys = typed_field(fields, "keys", list, path)
        if not all(map(_is_text, keys)):
            raise ProtocolError(f"{path}: field 'keys' should be names of settings, found {keys!r:.80}")
        return cls(
            offset=_count(fields, "offset", path),
            what=_text(fields, "what", path),
            connector=_text(fields, "connector", path),
            worker=_text(fields, "worker", path),
            at_ms=_count(fields, "when", path),
            keys=tuple(keys),
            uid=_text(fields, "uid", path),
        )


def changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """
    Return the names of the settings that differ, in order, for a history entry.

    The result has at most ``MOST_KEYS`` names, each cut to ``LONGEST_KEY`` characters.
    """
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return tuple(key[:LONGEST_KEY] for key in keys[:MOST_KEYS])


def check_texts(settings: Mapping[str, str], what: str) -> dict[str, str]:
    """
    Return a copy of settings whose names and values are texts.

    Raises:
        ConfigError: A name or a value is not a text. The error names the settings by ``what``, and shows no values.
    """
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{what}: a mapping of names to texts was expected, found {type(settings).__name__}")
    for key, value in settings.items():
        if not _is_text(key) or not _is_text(value):
            raise ConfigError(f"{what}: the name and the value of {key!r:.100} should be texts in Unicode")
    return dict(settings)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """
    The position of a source task in one partition of its source.

    The connector defines the fields of the partition and of the offset.
    """

    partition: JsonObject
    offset: JsonObject

    def encode(self) -> bytes:
        """
        Encode the partition and the offset in canonical JSON.

        Raises:
            ConfigError: The partition or the offset is not a JSON object.
        """
        partition = canonical_json(self.partition, "source partition")
        return b'{"offset":%b,"partition":%b}' % (canonical_json(self.offset, "source offset"), partition)

    @classmethod
    def parse(cls, data: bytes, path: str) -> SourceOffset:
        """
        Parse the data of the znode at ``path``.

        Raises:
            ProtocolError: The data is invalid, or the last part of the path is not the digest of the partition.
        """
        fields = parse_object(data, path)
        found = cls(typed_field(fields, "partition", dict, path), typed_field(fields, "offset", dict, path))
        try:
            canonical_json(found.offset, "source offset")
            digest = partition_digest(found.partition)
        except ConfigError as error:
            raise ProtocolError(f"{path}: {error}") from error
        if digest != path.rpartition("/")[2]:
            raise ProtocolError(f"{path}: the source partition in it belongs into the znode {digest}")
        return found


def partition_digest(partition: JsonObject) -> str:
    """
    Return the name of a source partition's znode: the SHA-1 of the partition's canonical JSON, in hex.

    Raises:
        ConfigError: The partition is not a JSON object.
    """
    return sha1(canonical_json(partition, "source partition"), usedforsecurity=False).hexdigest()


def canonical_json(value: JsonObject, what: str) -> bytes:
    """
    Encode a JSON object such that equal objects have equal bytes: with sorted keys, and without blanks.

    Raises:
        ConfigError: The value is not a JSON object; ``what`` names the value in the error.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what}: a JSON object was expected, found {type(value).__name__}")
    try:
        text = json.dumps(_plain(value, what), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return ensure_binary(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        # The value may have an integer with too many digits, half of a surrogate pair, or too many levels.
        raise ConfigError(f"{what}: it has no form in JSON ({error})") from error


def _plain(value: object, what: str) -> object:
    """Return a JSON value as plain dictionaries and lists. json.dumps would accept other values, and change them."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if isfinite(value):
            return value
        case Mapping() if all(isinstance(key, str) for key in value):
            return {key: _plain(inner, what) for key, inner in value.items()}
        case list() | tuple():
            return [_plain(inner, what) for inner in value]
    raise ConfigError(f"{what}: {value!r:.80} has no form in JSON; names have to be texts, and numbers finite")


def _versioned(data: bytes, path: str) -> dict[str, Any]:
    fields = parse_object(data, path)
    if typed_field(fields, "version", int, path) != _VERSION:
        raise ProtocolError(f"{path}: version {_VERSION} was expected, found {fields['version']!r:.40}")
    return fields


def _is_text(value: object) -> bool:
    """Return whether a value is text that UTF-8 can encode. UTF-8 cannot encode half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(fields: Mapping[str, Any], name: str, path: str) -> str:
    value: str = typed_field(fields, name, str, path)
    if not _is_text(value):
        raise ProtocolError(f"{path}: field {name!r} has half of a surrogate pair: {value!r:.80}")
    return value


def _texts(found: object, name: str, path: str) -> dict[str, str]:
    """
    Return settings of texts. If a value is not text, raise ProtocolError without the values, because the values may be
    secrets.
    """
    if not isinstance(found, dict) or not all(_is_text(key) and _is_text(value) for key, value in found.items()):
        raise ProtocolError(f"{path}: field {name!r} should have settings, texts by name")
    return found


def _count(fields: Mapping[str, Any], name: str, path: str) -> int:
    value: int = typed_field(fields, name, int, path)
    if not 0 <= value <= LARGEST_OFFSET:
        raise ProtocolError(f"{path}: field {name!r} should be from 0 to {LARGEST_OFFSET}, found {value}")
    return value


def _choice(fields: Mapping[str, Any], name: str, choices: type[_Choice], path: str) -> _Choice:
    value: str = typed_field(fields, name, str, path)
    try:
        return choices(value)
    except ValueError:
        raise ProtocolError(
            f"{path}: field {name!r} should be one of {', '.join(choices)}, found {value!r:.80}"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """
    A worker's description of itself.

    ``session_timeout_ms`` is the timeout that the server granted. ``token_digest`` identifies the token that the
    worker's REST interface requires, or is "" if the interface requires no token. ``coordination`` is ``zookeeper`` or
    ``brokers``. Workers of an earlier version write neither, so ``token_digest`` and ``coordination`` may be None.
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
        found = named_fields(self, started_at_ms="started_at")
        return encode_object(
            {"version": _VERSION} | {name: value for name, value in found.items() if value is not None}
        )

    @classmethod
    def parse(cls, data: bytes, path: str) -> WorkerInfo:
        """
        Return what readers need about a worker: its URL, host, token's digest, and what coordinates its group.

        Raises:
            ProtocolError: The znode has no URL, or a host, digest or coordination that is not a text.
        """
        fields = parse_object(data, path)
        host, digest, coordination = (
            None if fields.get(name) is None else typed_field(fields, name, str, path)
            for name in ("host", "token_digest", "coordination")
        )
        url = typed_field(fields, "url", str, path)
        return cls(url=url, host=host or "", token_digest=digest, coordination=coordination)


def workers_by_token(workers: Iterable[WorkerInfo]) -> list[list[str]]:
    """Return one list of addresses for each token that workers require, with the most frequent token first."""
    found = _by((worker.token_digest, worker.address) for worker in workers)
    return sorted(found.values(), key=lambda same: (-len(same), same))


def workers_by_coordination(workers: Iterable[WorkerInfo]) -> dict[str, list[str]]:
    """Return the addresses of workers by their coordination. The result lacks workers of unknown coordination."""
    return dict(sorted(_by((worker.coordination, worker.address) for worker in workers).items()))


def _by(addresses: Iterable[tuple[str | None, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value, address in sorted(addresses, key=lambda each: each[1]):
        if value is not None:
            found.setdefault(value, []).append(address)
    return found
