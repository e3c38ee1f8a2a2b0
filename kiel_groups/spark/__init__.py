"""Kafka 0.8 in Spark: the data source ``kiel``, and jobs made of it. Needs the extra ``spark``."""

from typing import TYPE_CHECKING, Any

from kiel_groups.lazily import lazily
from kiel_groups.spark.environment import check_libraries

if TYPE_CHECKING:
    from kiel_groups.spark.source import KielDataSource

__all__ = ["KielDataSource"]

_HOMES = {
    "KielDataSource": "kiel_groups.spark.source",
}

_get, __dir__ = lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        check_libraries()
    return _get(name)
