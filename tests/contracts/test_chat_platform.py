"""The adapters are held to the contract of chat platforms: the one in memory, and Discord by hikari over sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from anyio import create_task_group, fail_after

from intern.core.errors import ChatError, ChatRefusedError, ChatUnavailableError, ChatUnknownOutcomeError
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId
from intern.core.text.secret_values import Secret
from intern.platforms.discord.gateway import HikariDiscord
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.sandbox import NONCE_LIFETIME, Call as MemoryCall
from tests.contracts.chat_platform import Call, ChatPlatformContract, Community, Said, Trouble
from tests.double.discord import DiscordDouble
from tests.double.world import Message
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.anyio


class InMemory(Community):
    """People in the sandbox."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = HandClock()
        self.platform = self._sandbox = Sandbox(self._clock, team=["tess"])
        self.channel = self._sandbox.general

    async def say(self, who: str, text: str, *, reply_to: Said | None = None, place: ChannelId | None = None) -> Said:
        self._clock.turn(seconds=1)
        said = self._sandbox.say(who, text, channel_id=place, reply_to=reply_to.id if reply_to else None)
        return Said(said.channel_id, said.id)

    async def edit(self, said: Said, text: str) -> None:
        self._sandbox.edit(*said, text)

    async def delete(self, *said: Said) -> None:
        self._sandbox.delete(said[0].channel_id, *(each.id for each in said))

    async def open_thread(self, said: Said) -> ChannelId:
        return self._sandbox.open_thread(*said, "a thread")

    async def archive(self, thread: ChannelId) -> None:
        self._sandbox.archive(thread)

    async def set_private(self, private: bool) -> None:  # noqa: FBT001 as the contract has it
        self._sandbox.set_private(self.channel, private)

    def away(self) -> AbstractAsyncContextManager[None]:
        return self._sandbox.offline()

    def fail(self, call: Call, trouble: Trouble) -> None:
        calls: dict[Call, MemoryCall] = {"send": "send", "read": "page", "start_thread": "start_thread"}
        errors: dict[Trouble, type[ChatError]] = {
            "refused": ChatRefusedError,
            "down": ChatUnavailableError,
            "unheard": ChatUnknownOutcomeError,
        }
        self._sandbox.fail(calls[call], errors[trouble]("as the test asked"), done=trouble == "unheard")

    def forget_nonces(self) -> None:
        self._clock.turn(seconds=NONCE_LIFETIME.total_seconds() + 1)

    def buttons_of(self, said: Said) -> int:
        return len(self._sandbox.sent[said.id].buttons)


class OnDiscord(Community):
    """People in the double, which speaks to hikari over sockets."""

    def __init__(self, discord: DiscordDouble, bot: HikariDiscord) -> None:
        super().__init__()
        self._discord = discord
        self.platform = bot
        self.channel = ChannelId(discord.help.id)

    def _message(self, said: Said) -> Message:
        return self._discord.acts.message(*said)

    async def say(self, who: str, text: str, *, reply_to: Said | None = None, place: ChannelId | None = None) -> Said:
        author = self._discord.tess if who == "tess" else self._discord.alice
        answered = self._message(reply_to) if reply_to else None
        said = await self._discord.say(author, text, channel=place, reply_to=answered)
        return Said(ChannelId(said.channel_id), MessageId(said.id))

    async def edit(self, said: Said, text: str) -> None:
        await self._discord.edit(self._message(said), text)

    async def delete(self, *said: Said) -> None:
        await self._discord.delete(*map(self._message, said))

    async def open_thread(self, said: Said) -> ChannelId:
        message = self._message(said)
        return ChannelId(
            (await self._discord.create_thread("a thread", author=self._discord.alice, message=message)).id
        )

    async def archive(self, thread: ChannelId) -> None:
        await self._discord.archive(self._discord.acts.channel(thread))

    async def set_private(self, private: bool) -> None:  # noqa: FBT001 as the contract has it
        await self._discord.make_private(self._discord.help, private=private)

    @asynccontextmanager
    async def away(self) -> AsyncGenerator[None]:
        async with self._discord.outage():
            yield
            self._discord.gateway.forget_sessions()

    def fail(self, call: Call, trouble: Trouble) -> None:
        method, route = {
            "send": ("POST", "/channels/{channel_id}/messages"),
            "read": ("GET", "/channels/{channel_id}/messages"),
            "start_thread": ("POST", "/channels/{channel_id}/messages/{message_id}/threads"),
        }[call]
        match trouble:
            case "refused":
                self._discord.fail_next(method, route, status=403, code=50013)
            case "down":
                self._discord.fail_next(method, route, status=503)
            case "unheard":
                self._discord.fail_next(method, route, when="after", drop=True)

    def forget_nonces(self) -> None:
        self._discord.acts.forget_nonces()

    def buttons_of(self, said: Said) -> int:
        return sum(len(row["components"]) for row in self._message(said).components)


class TestInMemory(ChatPlatformContract):
    @pytest.fixture
    async def community(self) -> AsyncGenerator[Community]:
        community = InMemory()
        with fail_after(5):
            async with create_task_group() as tg:
                tg.start_soon(community.platform.listen, community.hear)
                await community.until(lambda: community.heard)
                yield community
                tg.cancel_scope.cancel()


class TestOnDiscord(ChatPlatformContract):
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def community(self) -> AsyncGenerator[Community]:
        with fail_after(20):
            async with DiscordDouble() as discord:
                options = DiscordOptions(
                    token=Secret(discord.token),
                    guild_ids=(GuildId(discord.guild.id),),
                    team_role_ids=(RoleId(discord.team_role.id),),
                    rest_url=discord.rest_url,
                )
                async with HikariDiscord(options, first_pause=0.05, max_retries=0) as bot, create_task_group() as tg:
                    community = OnDiscord(discord, bot)
                    tg.start_soon(bot.listen, community.hear)
                    await community.until(lambda: community.heard)
                    yield community
                    tg.cancel_scope.cancel()
                # The contract sends a message that is too long on purpose.
                discord.violations = [each for each in discord.violations if "2001 characters" not in each]
