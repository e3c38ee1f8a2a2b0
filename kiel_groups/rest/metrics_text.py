"""Serve the metrics of a consumer, a producer or a worker in Prometheus' text format."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING

from kiel_groups.metrics import Latency, Metrics
from kiel_groups.rest.calls import Answer, RestCall, RestError, Route
from kiel_groups.rest.metric_meanings import MEANINGS
from kiel_groups.rest.server import RestServer
from kiel_groups.rest.settings import RestSettings

if TYPE_CHECKING:
    from prometheus_client.core import Metric


#: The type of the text, which every release of Prometheus reads.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_answer(families: Iterable[Metric]) -> Answer:
    """
    Return an answer with these metrics and those of the process, such as its memory, in Prometheus' text format.

    Raises:
        RestError: The package prometheus-client is missing.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.registry import Collector
    except ImportError:
        text = "the metrics need the package prometheus-client, which kiel-groups[service] installs"
        raise RestError(HTTPStatus.NOT_IMPLEMENTED, text) from None

    class Once(Collector):
        def collect(self) -> Iterable[Metric]:
            return families

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    ProcessCollector(registry=registry)
    return Answer(generate_latest(registry).decode(), content_type=_CONTENT_TYPE)


def registry_families(*registries: tuple[Mapping[str, str], Metrics]) -> Iterator[Metric]:
    """
    Yield the metrics of registries as metric families of prometheus-client. Each registry comes with its own labels.
    """
    return sample_families(
        (name, {**own, **dict(labels)}, value) for own, metrics in registries for name, labels, value in metrics.read()
    )


def sample_families(samples: Iterable[tuple[str, Mapping[str, str], int | float | Latency]]) -> Iterator[Metric]:
    """
    Yield samples, each with its name, labels and value, as metric families of prometheus-client.

    The names begin with ``kiel_``. An integer becomes a counter, whose name in the text ends in ``_total``. A duration
    becomes a summary in seconds. Other numbers become gauges.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

    rows = sorted(samples, key=lambda row: (row[0], sorted(row[1].items())))
    for name, found in groupby(rows, key=lambda row: row[0]):
        same = list(found)
        labels = sorted({label for _, given, _ in same for label in given})
        is_summary = isinstance(same[0][2], Latency)
        full = f"kiel_{name}_seconds" if is_summary else f"kiel_{name}"
        # A registry may have metrics of the application, too.
        meaning = MEANINGS[full].text.replace("``", "") if full in MEANINGS else name.replace("_", " ").capitalize()
        if is_summary:
            summary = SummaryMetricFamily(full, meaning, labels=labels)
            for _, given, value in same:
                assert isinstance(value, Latency)
                summary.add_metric([given.get(label, "") for label in labels], value.count, value.total_s)
            yield summary
            continue
        kind = CounterMetricFamily if isinstance(same[0][2], int) else GaugeMetricFamily
        family = kind(full, meaning, labels=labels)
        for _, given, value in same:
            assert not isinstance(value, Latency)
            family.add_metric([given.get(label, "") for label in labels], value)
        yield family


def metrics_route(metrics: Metrics) -> Route:
    """Return the route ``/metrics``, which answers with the metrics of a registry."""

    async def get_metrics(_: RestCall) -> Answer:
        return metrics_answer(registry_families(({}, metrics)))

    return Route("/metrics", {"GET": get_metrics})


@asynccontextmanager
async def serving_metrics(metrics: Metrics, port: int | None) -> AsyncIterator[None]:
    """
    Serve the metrics of a registry on a port of 127.0.0.1 during the block. With None, serve nothing.

    Raises:
        ConfigError: The port is in use.
    """
    if port is None:
        yield
        return
    server = RestServer(RestSettings(port=port))
    server.start([metrics_route(metrics)])
    try:
        yield
    finally:
        await server.close()
