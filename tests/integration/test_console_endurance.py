"""A console that stays open: a large group, two tabs, a service that is restarted, and a group that is made anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from playwright.async_api import Page, expect

from kiel_groups.embedded import Cluster
from kiel_groups.group.znodes.contents import GroupSettings, GroupState, MemberAssignment, MemberInfo, Znode
from kiel_groups.group.znodes.layout import GroupLayout
from kiel_groups.model import TopicPartition
from kiel_groups.ops.actions.cluster_address import ZOOKEEPER, ClusterAddress
from kiel_groups.ops.loaded_groups import LoadedGroups
from kiel_groups.ops.views.znodes import view_group
from kiel_groups.rest.settings import RestSettings
from kiel_groups.service.cluster_state import ClusterHistory
from kiel_groups.service.served_cluster import Observer
from kiel_groups.service.service import Service
from tests.helpers.browser import NEEDS_CHROMIUM, TOKEN, browsing, console, new_page, served
from tests.helpers.members import group_of
from tests.helpers.rest_requests import address_of
from tests.helpers.waiting import eventually

pytestmark = [pytest.mark.integration, NEEDS_CHROMIUM, pytest.mark.slow]

Unique = Callable[[str], str]

GROUP, MEMBERS, PARTITIONS = "group", 1_000, 10_000

#: The rows of members, and the cells of partitions.
ROWS, CELLS = "section[aria-labelledby=members] tbody tr", "ol.grid li"

#: Hides a tab, or shows it again, as far as its scripts can tell.
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""

#: Delays the frames of a tab, and ends that after an hour, as far as its scripts can tell.
DELAY_FRAMES = """() => {
    window.late = [];
    window.frame = requestAnimationFrame;
    window.requestAnimationFrame = draw => late.push(draw);
}"""
AFTER_AN_HOUR = """() => {
    const now = performance.now.bind(performance);
    performance.now = () => now() + 3_600_000;
    window.requestAnimationFrame = frame;
    late.forEach(draw => frame(draw));
}"""


def group_at(seen_ms: int, members: int, partitions: int) -> LoadedGroups:
    """Return a load of one settled group, whose partitions are in 4 topics."""
    layout, folder = GroupLayout(GROUP), f"/consumers/{GROUP}"
    names = [f"{GROUP}_host-{at:03}-{1_700_000_000_000 + at}-{at:x}" for at in range(members)]
    all_of_them = [TopicPartition(f"topic-{at % 4}", at // 4) for at in range(partitions)]
    settings = GroupSettings(store="zookeeper", mode="cooperative", auto_offset_reset="earliest")
    state = GroupState(generation=1, state="done", leader=names[0], allocator="sticky", created_at_ms=seen_ms)
    znodes = {layout.config: Znode(settings.encode()), layout.group_state: Znode(state.encode())}
    for at, name in enumerate(names):
        mine = all_of_them[at::members]
        info = MemberInfo(
            member_id=name, session_timeout_ms=6_000, subscription=("topic-0",), host=f"h-{at}", pid=1, started_at_ms=1
        )
        znodes[layout.member(name)] = Znode(info.encode(), at + 1)
        znodes[layout.assignment(name)] = Znode(MemberAssignment(1, name, frozenset(mine)).encode())
        for each in mine:
            znodes[f"{folder}/owners/{each.topic}/{each.partition}"] = Znode(f"{name}-0".encode(), at + 1)
            znodes[f"{folder}/offsets/{each.topic}/{each.partition}"] = Znode(b"7", modified_ms=seen_ms)
    return LoadedGroups((view_group(GROUP, znodes, dict.fromkeys(all_of_them, 9)),), 3, seen_ms=seen_ms)


@asynccontextmanager
async def fed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Service, Callable[[int, int], None]]]:
    """Provide a service without a cluster, and a function that gives it a group of so many members and partitions."""
    monkeypatch.setattr(Observer, "start", lambda _: None)
    service = Service(RestSettings(port=0), {"main": ClusterAddress(ZOOKEEPER, "127.0.0.1:1", 1.0)})
    service.start()
    history, times_ms = ClusterHistory(), count(1_700_000_000_000, 5_000)

    def feed(members: int, partitions: int) -> None:
        state = history.take(group_at(next(times_ms), members, partitions), 0.1)
        service._clusters["main"]._take(state, None)

    try:
        yield service, feed
    finally:
        await service.close()


async def is_same_page(page: Page) -> bool:
    """Return whether a page has not been loaded again since the first call, which returns False."""
    return bool(await page.evaluate("[window.isSame, window.isSame = true][0] || false"))


async def test_a_thousand_members_and_ten_thousand_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page works by keyboard; a change keeps the focus, what is typed, and the place in the grid."""
    async with fed(monkeypatch) as (service, feed), browsing() as browser:
        feed(MEMBERS, PARTITIONS)
        page, errors = await new_page(browser, f"{service.url}/clusters/main/groups/{GROUP}", width=360)
        await expect(page.locator(ROWS)).to_have_count(MEMBERS)
        assert await page.locator(CELLS).count() == PARTITIONS
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        await expect(page.locator("#live")).to_have_text("live")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.locator("#partitions-area").focus()
        await page.keyboard.press("End")
        scrolled = "document.getElementById('partitions-area').scrollTop"
        # The policy of the page forbids Playwright's own function that waits.
        await eventually(lambda: page.evaluate(f"{scrolled} > 1000"), "the grid is scrolled")
        await page.locator("#a-rebalance").focus()
        await page.keyboard.press("Enter")
        reason = page.get_by_label("Cause in the history")
        await reason.fill("a release")
        assert not await is_same_page(page)
        feed(MEMBERS - 1, PARTITIONS)
        await expect(page.locator(ROWS)).to_have_count(MEMBERS - 1)
        assert await is_same_page(page)
        await expect(reason).to_have_value("a release")
        await expect(reason).to_be_focused()
        assert await page.evaluate(scrolled) > 1_000
        await page.keyboard.press("Escape")
        await expect(page.locator("#a-rebalance")).to_be_focused()
        assert errors == []


async def test_a_hidden_tab_has_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is seen again, it shows what it has missed, and follows changes, also if it had no frame meanwhile."""
    async with fed(monkeypatch) as (service, feed), browsing() as browser:
        feed(3, 8)
        page, errors = await new_page(browser, f"{service.url}/clusters/main/groups/{GROUP}")
        await expect(page.locator("#live")).to_have_text("live")
        await page.evaluate(DELAY_FRAMES)
        feed(2, 8)
        await expect(page.locator(ROWS)).to_have_count(2)
        await page.evaluate(HIDE, True)
        feed(4, 8)
        await eventually(lambda: not service._events._streams, "the stream has ended")
        await expect(page.locator(ROWS)).to_have_count(2)
        await page.evaluate(AFTER_AN_HOUR)
        await page.evaluate(HIDE, False)
        for members in (4, 5):
            feed(members, 8)
            await expect(page.locator(ROWS)).to_have_count(members)
        assert errors == []


async def test_two_tabs_and_a_group_that_is_made_anew(fresh_cluster: Cluster, unique: Unique) -> None:
    """Each tab shows what was changed in the other one, and keeps its own dialog; a group of the same name follows."""
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 4)
    async with console(fresh_cluster) as (url, browser):
        async with group_of(fresh_cluster, name, [topic]) as group:
            members = [await group.join(), await group.join()]
            await group.balanced(topic, 4)
            first, errors = await new_page(browser, url)
            await first.get_by_role("link", name=name, exact=True).click()
            second = await first.context.new_page()
            await second.goto(first.url)
            await second.locator("#a-rebalance").click()
            await second.get_by_label("Cause in the history").fill("by hand")
            drained = str(members[1].consumer.member_id)
            row = first.locator(ROWS).filter(has_text=drained)
            await row.get_by_role("button").click()
            await first.get_by_label("Token").fill(TOKEN)
            await first.get_by_role("button", name="Show what changes").click()
            await first.get_by_role("button", name="Make the change").click()
            await expect(first.locator("#outcome")).to_contain_text("Done.")
            await expect(second.locator(ROWS).filter(has_text=drained)).to_contain_text("drained")
            await expect(second.get_by_label("Cause in the history")).to_have_value("by hand")
            # The token is in the storage of the other tab only.
            await expect(second.get_by_label("Token")).to_have_value("")
            await second.get_by_label("Token").fill(TOKEN)
            await second.get_by_role("button", name="Show what changes").click()
            await second.get_by_role("button", name="Make the change").click()
            await expect(second.locator("#outcome")).to_contain_text("Done.")
            await expect(first.locator("#history ~ div")).to_contain_text("by hand")
            await first.keyboard.press("Escape")
            await second.keyboard.press("Escape")
        await expect(second.locator(ROWS)).to_have_count(0)
        await first.locator("#a-delete").click()
        await first.get_by_role("button", name="Show what changes").click()
        await first.get_by_role("button", name="Make the change").click()
        await expect(first.locator("#outcome")).to_contain_text("Done.")
        await expect(second.get_by_role("heading", level=1)).to_contain_text("not there")
        assert not await is_same_page(second)
        async with group_of(fresh_cluster, name, [topic]) as group:
            await group.join()
            await expect(second.locator(ROWS)).to_have_count(1)
            assert await is_same_page(second)
            await expect(second.locator(CELLS).get_by_text("1", exact=True)).to_have_count(4)
        assert errors == []


async def test_the_service_is_restarted_under_an_open_page(fresh_cluster: Cluster, unique: Unique) -> None:
    """The page says that it has no connection, connects again, and shows the newest state; what was typed stays."""
    topic, name = unique("topic"), unique("group")
    await fresh_cluster.create_topic(topic, 2)
    async with group_of(fresh_cluster, name, [topic]) as group, browsing() as browser:
        await group.join()
        await group.balanced(topic, 2)
        async with served(fresh_cluster) as url:
            page, errors = await new_page(browser, url)
            await page.get_by_role("link", name=name, exact=True).click()
            await expect(page.locator(ROWS)).to_have_count(1)
            await expect(page.locator("#live")).to_have_text("live")
            await page.locator("#a-reset").click()
            await page.get_by_label("Topics").fill(f"{topic}:1")
            assert not await is_same_page(page)
        await expect(page.locator("#live")).to_contain_text("no connection")
        await group.join()
        await group.balanced(topic, 2)
        async with served(fresh_cluster, address_of(url)[1]):
            await expect(page.locator("#live")).to_have_text("live")
            await expect(page.locator(ROWS)).to_have_count(2)
            await expect(page.get_by_label("Topics")).to_have_value(f"{topic}:1")
            await page.get_by_label("Token").fill(TOKEN)
            await page.get_by_role("button", name="Show what changes").click()
            await expect(page.locator("#outcome")).to_contain_text(f"{topic}:1: ")
            assert await is_same_page(page)
    # The browser reports each request without an answer, and htmx each event of a lost stream.
    assert [error for error in errors if "net::ERR" not in error and error != "[object Event]"] == []
