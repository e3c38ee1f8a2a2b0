"""A target in memory with the claims of mirrors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import Claim

__all__ = ["CLAIM", "FakeTarget", "cluster_of"]

CLAIM = Claim("m", "a", "old:9092", 17)


class FakeTarget:
    """A target with some claims. The claims are another object after each change; errors are raised first."""

    servers = "new:9092"

    def __init__(self, claims: Mapping[str, Claim], *errors: Exception) -> None:
        self.stored, self._errors = dict(claims), list(errors)
        #: Why topics are not those that were claimed.
        self.other: Mapping[str, str] = {}
        self.history = [self.stored["copy"].direction] if "copy" in claims else []

    def latest_claims(self) -> dict[str, Claim]:
        if self._errors:
            raise self._errors.pop(0)
        return self.stored

    def claims(self) -> dict[str, Claim]:
        return dict(self.stored)

    def replaced(self, claims: Mapping[str, Claim]) -> dict[str, str]:
        return {name: text for name, text in self.other.items() if name in claims}

    def store(self, claim: Claim) -> None:
        self.stored = self.stored | {"copy": claim}

    def change_claims(self, change: Callable[[Mapping[str, Claim]], Mapping[str, Claim]]) -> dict[str, Claim]:
        changed = change(self.stored)
        self.stored = self.stored | changed
        self.history += [claim.direction for claim in changed.values()]
        return dict(self.stored)


def cluster_of(target: FakeTarget) -> TargetCluster:
    return cast("TargetCluster", target)
