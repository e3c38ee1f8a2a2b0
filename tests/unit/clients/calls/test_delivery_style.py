"""A consumer delivers in one style."""

from __future__ import annotations

import itertools

import pytest

from kiel_groups.clients.calls.callers import DeliveryStyle, StyleChoice
from kiel_groups.errors import ConfigError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("first", "other"), list(itertools.permutations(DeliveryStyle, 2)))
def test_the_first_use_decides(first: DeliveryStyle, other: DeliveryStyle) -> None:
    """The same style again is legal; another one is an error that names both and what to do."""
    choice = StyleChoice()
    choice.choose(first)
    choice.choose(first)
    with pytest.raises(ConfigError, match="use one of the two") as error:
        choice.choose(other)
    assert first.value in str(error.value)
    assert other.value in str(error.value)
    choice.choose(first)
