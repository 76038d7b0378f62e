"""Permissions of a channel, computed by Discord's rules (its reference, "Permissions")."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from intern.core.ids import GuildId, RoleId, UserId

ADMINISTRATOR: Final = 1 << 3
VIEW_CHANNEL: Final = 1 << 10
SEND_MESSAGES: Final = 1 << 11
READ_MESSAGE_HISTORY: Final = 1 << 16
MENTION_EVERYONE: Final = 1 << 17
CONNECT: Final = 1 << 20
CREATE_PUBLIC_THREADS: Final = 1 << 35
SEND_MESSAGES_IN_THREADS: Final = 1 << 38
READ: Final = VIEW_CHANNEL | READ_MESSAGE_HISTORY
"""The permissions that reading a channel and its history takes."""

_SPOKEN: Final = frozenset({2, 13})  # voice and stage channels: only members who may connect read their chat

_ALL: Final = -1
Bits = Annotated[str, Meta(pattern=r"\A[0-9]{1,40}\Z")]  # decimal, and longer than 64 bits one day


class Overwrite(Struct, frozen=True):
    """A channel's change of permissions for one role or member; the role of everyone has the server's own id."""

    id: str
    allow: Bits = "0"
    deny: Bits = "0"


def compute_permissions(
    guild_id: GuildId,
    roles: Mapping[RoleId, int],
    overwrites: Iterable[Overwrite],
    *,
    held: Collection[RoleId] = (),
    member: UserId | None = None,
) -> int:
    """Return the permission bits in a channel for a holder of these roles and of everyone's role.

    Without roles and member: of everyone. The server's owner, who may do everything, is not known here.
    """
    everyone = RoleId(guild_id)
    bits = 0
    for role in (everyone, *held):
        bits |= roles.get(role, 0)
    if bits & ADMINISTRATOR:
        return _ALL
    by_id = {overwrite.id: overwrite for overwrite in overwrites}
    groups: tuple[Iterable[str], ...] = ((everyone,), set(held) - {everyone}, (member,) if member else ())
    for group in groups:
        met = [by_id[one] for one in group if one in by_id]
        for overwrite in met:
            bits &= ~int(overwrite.deny)
        # Among roles, one that allows wins over all that deny.
        for overwrite in met:
            bits |= int(overwrite.allow)
    return bits


def may_read(bits: int, kind: int | None = None) -> bool:
    """Return whether these permissions allow to read a channel of Discord's type `kind`, and its history."""
    needed = READ | CONNECT if kind in _SPOKEN else READ
    return bits & needed == needed
