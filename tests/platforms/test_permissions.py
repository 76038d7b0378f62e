from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from anyio import Event, create_task_group, move_on_after, wait_all_tasks_blocked
from hypothesis import given, strategies as st

from intern.core.errors import ChatUnavailableError
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.messages import Channel
from intern.platforms.discord.channel_visibility import ChannelVisibility
from intern.platforms.discord.permissions import (
    ADMINISTRATOR,
    READ,
    READ_MESSAGE_HISTORY,
    VIEW_CHANNEL,
    Overwrite,
    compute_permissions,
    may_read,
)
from intern.platforms.discord.shards import LOST
from tests.worlds.actors import finishing

Json = dict[str, Any]

GUILD, OTHER_GUILD = GuildId("1"), GuildId("2")
EVERYONE = RoleId(GUILD)
HELP, STAFF, FORUM = ChannelId("10"), ChannelId("11"), ChannelId("12")
SEND = 1 << 11


def denied(bits: int = VIEW_CHANNEL, *, to: str = GUILD) -> Json:
    return {"id": to, "type": 0, "allow": "0", "deny": str(bits)}


def allowed(bits: int = READ, *, to: str = GUILD) -> Json:
    return {"id": to, "type": 0, "allow": str(bits), "deny": "0"}


def raw_channel(channel_id: ChannelId, *overwrites: Json, kind: int = 0) -> Json:
    return {"id": channel_id, "type": kind, "guild_id": GUILD, "permission_overwrites": list(overwrites)}


def raw_role(role_id: str = GUILD, bits: int = READ) -> Json:
    return {"id": role_id, "name": "@everyone", "permissions": str(bits)}


def guild(*channels: Json, roles: Sequence[Json] | None = None) -> Json:
    return {
        "id": GUILD,
        "roles": [raw_role(), raw_role("5", ADMINISTRATOR)] if roles is None else list(roles),
        "channels": list(channels),
    }


def heard(*told: tuple[str, Json], listed: Sequence[ChannelId] = ()) -> ChannelVisibility:
    audience = ChannelVisibility(listed)
    for name, payload in told:
        audience.receive(name, payload)
    return audience


def place(channel_id: str = HELP, **over: Any) -> Channel:
    fields: Json = {"id": ChannelId(channel_id), "guild_id": GUILD, "kind": "channel"}
    return Channel(**(fields | over))


def thread(parent_id: ChannelId | None, **over: Any) -> Channel:
    return place("99", kind="thread", parent_id=parent_id, **over)


# The computation


def allows(  # each bit by itself, step by step, as Discord's reference words it
    bit: int,
    roles: dict[RoleId, int],
    overwrites: Sequence[Overwrite],
    held: Sequence[RoleId],
    member: UserId | None,
) -> bool:
    base = [roles[role] for role in [EVERYONE, *held] if role in roles]
    if any(permitted & ADMINISTRATOR for permitted in base):
        return True
    answer = any(permitted & bit for permitted in base)

    for overwrite in overwrites:
        if overwrite.id == EVERYONE:
            if int(overwrite.deny) & bit:
                answer = False
            if int(overwrite.allow) & bit:
                answer = True

    mine = [overwrite for overwrite in overwrites if overwrite.id in held and overwrite.id != EVERYONE]
    if any(int(overwrite.deny) & bit for overwrite in mine):
        answer = False
    if any(int(overwrite.allow) & bit for overwrite in mine):
        answer = True

    for overwrite in overwrites:
        if member is not None and overwrite.id == member:
            if int(overwrite.deny) & bit:
                answer = False
            if int(overwrite.allow) & bit:
                answer = True
    return answer


BITS = [ADMINISTRATOR, VIEW_CHANNEL, SEND, READ_MESSAGE_HISTORY, 1 << 70]
some_bits = st.lists(st.sampled_from(BITS), max_size=3).map(lambda chosen: sum(set(chosen)))
some_roles = st.dictionaries(st.sampled_from([EVERYONE, RoleId("5"), RoleId("6"), RoleId("7")]), some_bits)
some_overwrites = st.lists(
    st.builds(Overwrite, st.sampled_from([GUILD, "5", "6", "7", "50", "51"]), some_bits.map(str), some_bits.map(str)),
    unique_by=lambda overwrite: overwrite.id,
)


@given(
    some_roles,
    some_overwrites,
    st.lists(st.sampled_from([RoleId("5"), RoleId("6"), EVERYONE]), unique=True),
    st.sampled_from([None, UserId("50")]),
)
def test_each_bit_is_what_discords_reference_makes_it(
    roles: dict[RoleId, int], overwrites: list[Overwrite], held: list[RoleId], member: UserId | None
) -> None:
    computed = compute_permissions(GUILD, roles, overwrites, held=held, member=member)
    for bit in BITS:
        assert bool(computed & bit) is allows(bit, roles, overwrites, held, member)


@given(some_roles, some_overwrites)
def test_everyone_reads_where_both_bits_are_theirs(roles: dict[RoleId, int], overwrites: list[Overwrite]) -> None:
    audience = heard(
        (
            "GUILD_CREATE",
            guild(
                raw_channel(HELP, *({"id": o.id, "type": 0, "allow": o.allow, "deny": o.deny} for o in overwrites)),
                roles=[raw_role(role, bits) for role, bits in roles.items()],
            ),
        )
    )
    expected = all(allows(bit, roles, overwrites, (), None) for bit in (VIEW_CHANNEL, READ_MESSAGE_HISTORY))
    assert audience.admits(place()) is expected


def test_reading_takes_the_view_and_the_history() -> None:
    assert may_read(READ)
    assert may_read(-1)
    assert not may_read(VIEW_CHANNEL)
    assert not may_read(READ_MESSAGE_HISTORY)


# Gateway events


def test_open_channels_and_their_threads_are_open() -> None:
    audience = heard(
        ("GUILD_CREATE", guild(raw_channel(HELP), raw_channel(STAFF, denied()), raw_channel(FORUM, kind=15)))
    )

    assert audience.admits(place(HELP))
    assert audience.admits(thread(HELP))
    assert audience.admits(place("99", kind="post", parent_id=FORUM))
    assert not audience.admits(place(STAFF))
    assert not audience.admits(thread(STAFF))


def test_an_overwrite_for_others_opens_nothing() -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(STAFF, denied(), allowed(to="5"), allowed(to="50")))))
    assert not audience.admits(place(STAFF))


def test_a_channel_opened_on_a_closed_server_is_open() -> None:
    audience = heard(
        ("GUILD_CREATE", guild(raw_channel(HELP, allowed()), raw_channel(STAFF), roles=[raw_role(bits=0)]))
    )
    assert audience.admits(place(HELP))
    assert not audience.admits(place(STAFF))


def test_a_private_thread_is_closed_wherever_it_hangs() -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP))), listed=[STAFF])
    assert not audience.admits(thread(HELP, private=True))
    assert not audience.admits(thread(STAFF, private=True))
    assert heard(listed=[ChannelId("99")]).admits(thread(HELP, private=True))


def test_what_nobody_told_of_is_closed() -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP))))
    assert not ChannelVisibility().admits(place())
    assert not audience.admits(place("77"))
    assert not audience.admits(thread(None))
    assert not audience.admits(place(guild_id=None))
    assert not audience.admits(place(guild_id=OTHER_GUILD))


async def test_whoever_waits_for_a_server_goes_on_once_discord_tells_of_it() -> None:
    audience, went_on = ChannelVisibility(), Event()

    async def wait() -> None:
        await audience.wait_for_permissions(GUILD)
        went_on.set()

    async with finishing(wait):
        audience.receive("GUILD_CREATE", guild() | {"id": OTHER_GUILD})
        audience.receive("GUILD_CREATE", guild() | {"unavailable": True})
        await wait_all_tasks_blocked()
        assert not went_on.is_set()
        audience.receive("GUILD_CREATE", guild())
    await audience.wait_for_permissions(GUILD)
    await audience.wait_for_permissions(None)


async def is_told(audience: ChannelVisibility, guild_id: GuildId = GUILD) -> bool:
    """Return whether reads need not wait."""
    with move_on_after(0) as scope:
        await audience.wait_for_permissions(guild_id)
    return not scope.cancelled_caught


# Finding A1.
async def test_while_a_session_is_lost_its_servers_are_waited_for_and_no_others() -> None:
    audience = ChannelVisibility()
    for shard, guild_id in enumerate((GUILD, OTHER_GUILD)):
        audience.track_session(shard, "READY")
        audience.receive("GUILD_CREATE", guild() | {"id": guild_id}, shard)
    audience.track_session(0, LOST)
    assert [await is_told(audience, each) for each in (GUILD, OTHER_GUILD)] == [False, True]

    audience.track_session(0, "RESUMED")
    assert await is_told(audience)

    audience.track_session(0, LOST)
    audience.track_session(0, "READY")
    assert not await is_told(audience), "a new session has not told of it yet"
    audience.receive("GUILD_CREATE", guild())
    assert await is_told(audience)

    audience.receive("GUILD_DELETE", {"id": GUILD, "unavailable": True})
    assert not await is_told(audience), "nothing is heard of it during its outage"
    assert await is_told(audience, OTHER_GUILD)


# Finding A1.
@pytest.mark.parametrize("ends", ["resumed", "a new session", "closed"])
async def test_whoever_waits_for_a_lost_session_goes_on_at_once_when_the_wait_is_over(ends: str) -> None:
    audience, outcomes = heard(("GUILD_CREATE", guild())), list[str]()
    audience.track_session(0, LOST)

    async def wait() -> None:
        try:
            await audience.wait_for_permissions(GUILD)
            outcomes.append("told")
        except ChatUnavailableError:
            outcomes.append("unavailable")

    async with create_task_group() as tg:
        tg.start_soon(wait)
        tg.start_soon(wait)
        await wait_all_tasks_blocked()
        assert outcomes == []
        match ends:
            case "resumed":
                audience.track_session(0, "RESUMED")
            case "a new session":
                audience.track_session(0, "READY")
                audience.receive("GUILD_CREATE", guild())
            case _:
                audience.close()
    assert outcomes == ["unavailable" if ends == "closed" else "told"] * 2


_HAPPENINGS = ("turns private", "turns public", "breaks off", "is resumed", "begins anew", "tells of the server")


# Finding A1.
@given(happened=st.lists(st.sampled_from(_HAPPENINGS), max_size=12))
async def test_whatever_the_order_of_losses_and_permissions_who_needs_not_wait_knows_who_may_read(
    happened: list[str],
) -> None:
    audience, is_public, has_session, connected = ChannelVisibility(), True, False, False
    missed: list[tuple[str, Json]] = []

    def tell(name: str, payload: Json) -> None:
        # The server's event contains changes from before it.
        if connected:
            audience.receive(name, payload)
        else:
            missed.append((name, payload))

    def channel() -> Json:
        return raw_channel(HELP, *([] if is_public else [denied()]))

    for what in happened:
        match what:
            case "turns private" | "turns public":
                is_public = what == "turns public"
                tell("CHANNEL_UPDATE", channel())
            case "breaks off":
                connected = False
                audience.track_session(0, LOST)
            case "is resumed" if has_session and not connected:
                connected = True
                for name, payload in missed:
                    audience.receive(name, payload)
                missed.clear()
                audience.track_session(0, "RESUMED")
            case "begins anew":
                connected = has_session = True
                missed.clear()
                audience.track_session(0, "READY")
            case "tells of the server" if connected:
                audience.receive("GUILD_CREATE", guild(channel()))
            case _:
                pass
        assert not await is_told(audience) or audience.admits(place()) is is_public


def test_listed_channels_are_open_though_everybody_is_kept_out() -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP), raw_channel(STAFF, denied()))), listed=[STAFF])
    assert audience.admits(place(STAFF))
    assert audience.admits(thread(STAFF))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("CHANNEL_UPDATE", raw_channel(HELP, denied())),
        ("CHANNEL_UPDATE", raw_channel(HELP, denied(READ_MESSAGE_HISTORY))),
        ("CHANNEL_DELETE", raw_channel(HELP)),
        ("GUILD_ROLE_UPDATE", {"guild_id": GUILD, "role": raw_role(bits=SEND)}),
        ("GUILD_CREATE", guild(raw_channel(HELP, denied()))),
        ("GUILD_CREATE", guild()),
        ("GUILD_CREATE", guild(raw_channel(HELP), roles=[])),
        ("GUILD_DELETE", {"id": GUILD}),
    ],
)
def test_a_channel_that_turns_private_is_closed_at_once(name: str, payload: Json) -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP))))
    assert audience.admits(thread(HELP))
    audience.receive(name, payload)
    assert not audience.admits(place(HELP))
    assert not audience.admits(thread(HELP))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("CHANNEL_UPDATE", raw_channel(STAFF)),
        ("CHANNEL_CREATE", raw_channel(STAFF)),
        ("GUILD_ROLE_UPDATE", {"guild_id": GUILD, "role": raw_role(bits=ADMINISTRATOR)}),
        ("GUILD_CREATE", guild(raw_channel(STAFF))),
    ],
)
def test_a_channel_that_turns_public_is_open_at_once(name: str, payload: Json) -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(STAFF, denied()))))
    assert not audience.admits(place(STAFF))
    audience.receive(name, payload)
    assert audience.admits(place(STAFF))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("GUILD_ROLE_UPDATE", {"guild_id": GUILD, "role": raw_role("5", 0)}),
        ("GUILD_ROLE_CREATE", {"guild_id": GUILD, "role": raw_role("6", ADMINISTRATOR)}),
        ("GUILD_ROLE_DELETE", {"guild_id": GUILD, "role_id": "5"}),
        ("GUILD_ROLE_UPDATE", {"guild_id": OTHER_GUILD, "role": raw_role(OTHER_GUILD, 0)}),
        ("CHANNEL_UPDATE", raw_channel(ChannelId("77"), denied())),
        ("CHANNEL_UPDATE", raw_channel(HELP, denied()) | {"guild_id": OTHER_GUILD}),
        ("THREAD_UPDATE", {"id": "99", "type": 11, "guild_id": GUILD, "parent_id": HELP}),
        ("MESSAGE_CREATE", {"id": "1"}),
        ("GUILD_DELETE", {"id": GUILD, "unavailable": True}),
        ("GUILD_CREATE", {"id": GUILD, "unavailable": True}),
    ],
)
def test_what_concerns_others_changes_nothing(name: str, payload: Json) -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP), raw_channel(STAFF, denied()))))
    audience.receive(name, payload)
    assert audience.admits(place(HELP))
    assert not audience.admits(place(STAFF))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("CHANNEL_UPDATE", {"id": HELP, "guild_id": GUILD}),
        ("CHANNEL_UPDATE", {"id": HELP, "guild_id": GUILD, "permission_overwrites": [{"id": GUILD, "deny": "-1"}]}),
        ("GUILD_ROLE_UPDATE", {"guild_id": GUILD, "role": {"id": GUILD, "permissions": None}}),
    ],
)
def test_what_cannot_be_read_closes(name: str, payload: Json) -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(HELP))))
    with pytest.raises(msgspec.ValidationError):
        audience.receive(name, payload)
    assert not audience.admits(place(HELP))


def test_a_channel_that_cannot_be_read_costs_itself_alone() -> None:
    audience = heard(("GUILD_CREATE", guild(raw_channel(STAFF) | {"permission_overwrites": "?"}, raw_channel(HELP))))
    assert audience.admits(place(HELP))
    assert not audience.admits(place(STAFF))
