"""
Inject faults between clients and real servers: proxies that cut, delay or stall connections, or change answers.

Tests and the chaos runs use them; their names are imported from here. ``cuttable_servers`` has clusters with proxies
between their servers.
They need no privileges, and change only those answers of brokers that the caller's function selects.
"""

from tests.proxies.fault_proxy import Direction, FaultProxy, Side
from tests.proxies.kafka_proxy import Exchange, KafkaProxy, NextFailures, NextRefusals, Partial, damaging, failing

__all__ = [
    "FaultProxy",
    "Direction",
    "Side",
    "KafkaProxy",
    "NextFailures",
    "NextRefusals",
    "Exchange",
    "Partial",
    "damaging",
    "failing",
]
