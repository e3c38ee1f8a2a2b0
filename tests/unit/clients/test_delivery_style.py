"""A consumer delivers in one style."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from kiel_groups.clients.calls.callers import DeliveryStyle
from kiel_groups.clients.record_calls import RecordCalls
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("first", "other"), list(itertools.permutations(DeliveryStyle, 2)))
def test_the_first_use_decides(first: DeliveryStyle, other: DeliveryStyle) -> None:
    """The same style again is legal; another one is an error that names both and what to do."""
    choice = RecordCalls(cast(Any, None), "Consumer", 1)
    choice._choose(first)
    choice._choose(first)
    with pytest.raises(ConfigError, match="use one of the two") as error:
        choice._choose(other)
    assert first.value in str(error.value)
    assert other.value in str(error.value)
    choice._choose(first)
