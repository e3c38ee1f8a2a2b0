"""
The layers, lowest first, and the rules for their imports.

A layer imports only itself and the layers below it. Its name is its path below ``kiel_groups``. A package that is
listed in addition to its sub-packages stands for the modules directly in it.
"""

from __future__ import annotations

__all__ = ["APART", "IMPURE", "INDEPENDENT", "LAYERS", "ONLY_IN", "PURE_LAYERS"]

LAYERS = (
    "lazy_imports",
    "wording",
    "backoff",
    "model",
    "errors",
    "exc",
    "config",
    "security_file",
    "broker_security",
    "listeners",
    "metrics",
    "allocators",
    "testing",
    "group/topic_patterns",
    "group/znodes",
    "group",
    "pattern_process",
    "wire/primitives",
    "wire/error_codes",
    "wire/framing",
    "wire/codecs",
    "wire/_messages",
    "wire/message_sets",
    "wire",
    "constants",
    "members/partition_handler",
    "members/alarms",
    "zookeeper",
    "members/topic_matcher",
    "members/offsets",
    "clients/calls",
    "clients/net",
    "members/zookeeper",
    "members/brokers",
    "members/programs",
    "clients/fetch",
    "clients/delivery",
    "clients/produce",
    "clients",
    "sync",
    "ops/views",
    "ops",
    "ops/actions",
    "secret_texts",
    "rest",
    "workers/values",
    "workers/allocation",
    "workers/stores",
    "workers/session",
    "workers/membership",
    "workers/plugins",
    "workers/shipped",
    "workers/runners",
    "workers/execution",
    "workers/rest",
    "workers/execution/worker",
    "workers",
    "mirror",
    "service",
    "spark/environment",
    "spark/spark_calls",
    "spark/checkpoint",
    "spark/side_tables",
    "spark/columns",
    "spark/security_options",
    "spark/options",
    "spark/log_view",
    "spark/offsets",
    "spark/task_planner",
    "spark/worker_connections",
    "spark/read_task",
    "spark/row_writer",
    "spark/batches",
    "spark/member",
    "spark/drivers",
    "spark/readers",
    "spark/source",
    "spark",
    "embedded/processes",
    "embedded/releases",
    "embedded/jars",
    "embedded/java_servers",
    "embedded",
    "demo",
    "cli/parameters",
    "cli/terminal",
    "cli/terminal",
    "cli/app",
    "cli/commands",
    "cli",
)

#: Pairs of layers that do not import each other, although one is below the other.
APART = (
    ("group", "wire"),
    ("clients/produce", "members/brokers"),
    ("clients/produce", "clients/fetch"),
    ("clients/produce", "clients/delivery"),
    ("ops/views", "zookeeper"),
    ("ops/views", "members"),
    ("ops/views", "clients"),
    ("ops", "sync"),
    ("spark", "ops/views"),
)

#: Pairs of modules of one layer that do not depend on each other, neither directly nor through other modules.
INDEPENDENT = (
    ("group/claims", "group/leader_state"),
    ("group/claims", "group/member_state"),
    ("group/leader_state", "group/member_state"),
)

#: Libraries that pure layers do not import. Pure layers get times and random numbers as arguments.
IMPURE = frozenset({"kazoo", "tornado", "asyncio", "threading", "socket", "time", "random"})
PURE_LAYERS = (
    "wording",
    "backoff",
    "model",
    "errors",
    "config",
    "listeners",
    "allocators",
    "group",
    "wire",
    "workers/values",
    "workers/allocation",
    "ops/views",
)

#: The layers that may import each library. Other layers use the library only through these layers.
ONLY_IN = {
    "kazoo": ("zookeeper", "ops"),
    "tornado": ("clients/calls", "workers/shipped/http_sink", "rest", "workers/rest", "service"),
    "aiokafka": ("wire/message_sets/encoder", "wire/message_sets/python_decoder"),
    "cramjam": ("wire/codecs",),
    "confluent_kafka": ("mirror",),
    "pyspark": ("spark",),
    "pyarrow": ("wire/message_sets/arrow_arrays", "spark"),
    "prometheus_client": ("service/group_metrics", "rest/metrics_text"),
    "click": ("cli",),
    "rich": ("ops/views", "embedded", "demo", "cli"),
}
