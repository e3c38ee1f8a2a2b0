"""A target in memory with the claims of mirrors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from kiel_groups.mirror.target import TargetCluster
from kiel_groups.mirror.values import Claim

__all__ = ["CLAIM", "FakeTarget", "cluster_of"]

CLAIM = Claim("m", "a", "old:9092", 17)


class FakeTarget:
    """A target with some claims. Each change of a claim makes the topic of claims longer; errors are raised first."""

    servers = "new:9092"

    def __init__(self, claims: Mapping[str, Claim], *errors: Exception) -> None:
        self.stored, self._errors = dict(claims), list(errors)
        self.end, self.reads = 1, 0
        self.history = [self.stored["copy"].direction] if "copy" in claims else []

    def claims_end(self) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return self.end

    def claims(self) -> dict[str, Claim]:
        self.reads += 1
        return dict(self.stored)

    def store(self, claim: Claim) -> None:
        self.stored["copy"] = claim
        self.end += 1

    def change_claims(self, change: Callable[[Mapping[str, Claim]], Mapping[str, Claim]]) -> dict[str, Claim]:
        changed = change(self.stored)
        self.stored |= changed
        self.end += len(changed)
        self.history += [claim.direction for claim in changed.values()]
        return dict(self.stored)


def cluster_of(target: FakeTarget) -> TargetCluster:
    return cast("TargetCluster", target)
