"""``docs/security.rst`` names what the file with the credentials may have."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from kiel_groups.broker_security import BrokerSecurity
from kiel_groups.security_file import ServerSecurity
from kiel_groups.zookeeper.security import ZooKeeperSecurity
from tests.helpers.commands import REPOSITORY

pytestmark = pytest.mark.unit


def test_the_page_lists_all_keys() -> None:
    """Its tables have each key: those for both kinds of servers, and those of one kind, in the same order."""
    page = (REPOSITORY / "docs" / "security.rst").read_text(encoding="utf-8")
    listed = re.findall(r"^``([a-z-]+)``  ", page, re.M)
    shared = len(fields(ServerSecurity))
    known = [*fields(ZooKeeperSecurity), *fields(BrokerSecurity)[shared:]]
    assert listed == [field.name.replace("_", "-") for field in known]
