"""Reports of claims whose start position is unknown."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kiel_groups.errors import BrokerError
from kiel_groups.members import alarms
from kiel_groups.members.alarms import UnopenedClaims
from kiel_groups.metrics import Metrics
from kiel_groups.model import TopicPartition

pytestmark = pytest.mark.unit

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_each_claim_has_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """
    A claim that cannot be opened has one warning, with the reason. A later claim of the same partition has another one.
    """
    monkeypatch.setattr(alarms, "NEW_TOPIC_S", 0.0)
    claims = UnopenedClaims("g", Metrics(), cast(Any, None))
    for errors in (
        {P0: BrokerError("no leader")},
        {P0: BrokerError("still no leader"), P1: BrokerError("nor of this")},
    ):
        claims.attempt_failed("t", errors)
    assert [message.split("(")[1] for message in caplog.messages] == [
        "t:0): no leader; the brokers are asked again",
        "t:1): nor of this; the brokers are asked again",
    ]
    claims.forget([P0])
    claims.attempt_failed("t", {P0: BrokerError("once more")})
    assert "(t:0): once more" in caplog.messages[-1]


async def test_a_temporary_failure_has_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """
    A claim that cannot be opened at first has no warning, because the partitions of a new topic have no leaders for
    some tenths of a second.
    """
    metrics = Metrics()
    UnopenedClaims("g", metrics, cast(Any, None)).attempt_failed("t", {P0: BrokerError("no leader")})
    assert caplog.messages == []
    assert metrics.counter("claims_not_opened") == 1
    assert ("claims_unopened", (), 1.0) in list(metrics.samples())
