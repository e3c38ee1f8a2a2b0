"""States of a member of a broker-coordinated group, in the order in which it goes through them."""

from __future__ import annotations

from dataclasses import replace

from kiel_groups.group.member_state import NO_GENERATION, CoordinatorCode, Holding, MemberState, Phase

#: The codes that a member knows, two that it does not, and no answer at all.
CODES: tuple[int | None, ...] = (*CoordinatorCode, 8, 81, None)

NEW = MemberState()
FOUND = MemberState(coordinator=1, discovery=1)
WAITING = replace(FOUND, phase=Phase.JOINING, join=1)
#: Its coordinator has named it, and it joins with this id.
NAMED = replace(WAITING, member_id="m", join=2)
JOINED = replace(WAITING, phase=Phase.SYNCING, member_id="m", generation=5)
HAPPY = replace(JOINED, phase=Phase.STABLE, holding=Holding.ASSIGNED)
REBALANCING = replace(HAPPY, holding=Holding.DRAINING, rejoin_due=True)
#: Its partitions are given back, and a commit has no answer yet.
BUSY = replace(REBALANCING, holding=Holding.NOTHING, in_flight=1)
CLOSING = replace(HAPPY, holding=Holding.DRAINING, is_leaving=True)
#: After a failed sync, whose failure has not voided the member's id.
AGAIN = replace(JOINED, phase=Phase.UNJOINED, rejoin_due=True, is_pausing=True, pause=1, failures=1)
GONE = replace(HAPPY, phase=Phase.UNJOINED, holding=Holding.NOTHING, member_id="", generation=NO_GENERATION)
LEFT = replace(HAPPY, phase=Phase.LEAVING, holding=Holding.NOTHING, is_leaving=True)
