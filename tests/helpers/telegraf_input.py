"""Send the requests of Telegraf's input for Burrow, and read their answers with the types that it declares."""

from __future__ import annotations

import base64
from typing import Any, NamedTuple, TypeVar

from tests.helpers.rest_requests import ask

__all__ = ["Measured", "gather"]

T = TypeVar("T", int, str, list[Any], dict[str, Any])

#: Telegraf's numbers of statuses. Others are 0 there.
_CODES = {"OK": 1, "NOT_FOUND": 2, "WARN": 3, "ERR": 4, "STOP": 5, "STALL": 6}


class Measured(NamedTuple):
    """A measurement: its name, tags and fields."""

    name: str
    tags: dict[str, str]
    fields: dict[str, int | str]


async def gather(url: str, password: str = "") -> list[Measured]:
    """
    Return what Telegraf measures at this URL.

    It lists the clusters, then the topics and groups of each, then it asks for each topic and for the lag of each
    group. Any answer but 200 is an error. A field that is missing or null has no value; another type is an error.

    Args:
        url: The address of the service, without a path.
        password: Telegraf's setting ``password``, or "" without credentials.
    """
    credentials = base64.b64encode(f"telegraf:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"} if password else {}

    async def document(path: str) -> dict[str, Any]:
        got = await ask(f"{url}/v3/kafka{path}", headers=headers)
        assert got.status == 200, (path, got)
        return _of(got.document, dict)

    measured = []
    for cluster in _texts(await document(""), "clusters"):
        for topic in _texts(await document(f"/{cluster}/topic"), "topics"):
            found = _field(await document(f"/{cluster}/topic/{topic}"), "offsets", list)
            for partition, offset in enumerate(found):
                tags = {"cluster": cluster, "topic": topic, "partition": str(partition)}
                measured.append(Measured("burrow_topic", tags, {"offset": _of(offset, int)}))
        for group in _texts(await document(f"/{cluster}/consumer"), "consumers"):
            status = _field(await document(f"/{cluster}/consumer/{group}/lag"), "status", dict)
            measured += _of_group(cluster, group, status)
    return measured


def _of_group(cluster: str, group: str, status: dict[str, Any]) -> list[Measured]:
    tags = {"cluster": cluster, "group": group}
    partitions = [_of(each, dict) for each in _field(status, "partitions", list)]
    measured = [_of_partition(tags, each) for each in partitions]
    fields = {
        **_status(status),
        "partition_count": _field(status, "partition_count", int) or len(partitions),
        "total_lag": _field(status, "totallag", int),
        "lag": _field(_field(status, "maxlag", dict), "current_lag", int),
        "offset": sum(int(each.fields["offset"]) for each in measured),
        "timestamp": max((int(each.fields["timestamp"]) for each in measured), default=0),
    }
    return [Measured("burrow_group", tags, fields), *measured]


def _of_partition(tags: dict[str, str], partition: dict[str, Any]) -> Measured:
    end, number = _field(partition, "end", dict), _field(partition, "partition", int)
    for sample in (end, _field(partition, "start", dict)):
        for name in ("offset", "timestamp", "lag"):
            _field(sample, name, int)
    own = {"topic": _field(partition, "topic", str), "partition": str(number), "owner": _field(partition, "owner", str)}
    fields = {
        **_status(partition),
        "lag": _field(partition, "current_lag", int),
        "offset": _field(end, "offset", int),
        "timestamp": _field(end, "timestamp", int),
    }
    return Measured("burrow_partition", {**tags, **own}, fields)


def _status(found: dict[str, Any]) -> dict[str, int | str]:
    status = _field(found, "status", str)
    return {"status": status, "status_code": _CODES.get(status, 0)}


def _texts(document: dict[str, Any], name: str) -> list[str]:
    return [_of(each, str) for each in _field(document, name, list)]


def _field(document: dict[str, Any], name: str, kind: type[T]) -> T:
    return kind() if document.get(name) is None else _of(document[name], kind)


def _of(value: object, kind: type[T]) -> T:
    assert type(value) is kind, (value, kind)
    return value
