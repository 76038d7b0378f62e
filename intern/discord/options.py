"""What an operator can set about Discord itself: the table `[discord]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from intern.domain.ids import GuildId, RoleId, UserId
from intern.domain.secret import Secret


class DiscordOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bot account, the servers it serves, and who their team is."""

    token: Secret = Secret()
    guild_ids: tuple[GuildId, ...] = ()
    """Whatever happens on other servers is ignored."""
    team_member_ids: tuple[UserId, ...] = ()
    team_role_ids: tuple[RoleId, ...] = ()
    """Whoever holds one of these roles is of the team, too."""
    message_batch_wait_seconds: Annotated[float, Meta(ge=0)] = 60.0
    """Messages of one author in one channel that follow each other within this pause are one."""
    rest_url: str = "https://discord.com/api/v10"
    """Discord, unless a test says otherwise. The gateway's own address is asked for there."""

    def __post_init__(self) -> None:
        for name in ("guild_ids", "team_member_ids", "team_role_ids"):
            for snowflake in getattr(self, name):
                if not (snowflake.isascii() and snowflake.isdigit() and len(snowflake) <= 20):
                    # Whatever stands there is not repeated: it may be a token in the wrong place.
                    raise ValueError(f"{name} must hold Discord's ids, each of 17 to 20 digits")
        if not self.rest_url.startswith(("http://", "https://")):
            raise ValueError("rest_url must begin with https:// (or http://)")
