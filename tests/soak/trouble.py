"""The failures around the bot, chosen by a seed: Discord's connections and replies, and the model's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Literal

from anyio import sleep

from tests.double.discord import DiscordDouble
from tests.worlds.endpoint import Reply, cut, drop, junk, refuse

_ROUTES = (
    ("GET", "/channels/*"),
    ("GET", "/channels/*/messages"),
    ("GET", "/channels/*/messages"),
    ("GET", "/channels/*/messages/*"),
    ("GET", "/guilds/*/members/*"),
    ("POST", "/channels/*/messages"),
    ("POST", "/channels/*/messages"),
    ("POST", "/channels/*/messages/*/threads"),
)
_CLOSES = (1001, 4000, 4007, 4008, 4009)  # those that a client may come back from


class Weather:
    """The state of the model's endpoint. One thread changes it, and the endpoint's thread reads it."""

    def __init__(self, random: Random) -> None:
        self.now: Literal["fine", "slow", "failing"] = "fine"
        self.asked = 0
        self.failed = 0
        self._random = random

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Return the endpoint's own reply, or trouble."""
        self.asked += 1
        dice = self._random.random()
        if dice < {"fine": 0.005, "slow": 0.05, "failing": 0.8}[self.now]:
            self.failed += 1
            return self._trouble()
        slow = self.now == "slow" and dice < 0.5
        return Reply(delay=self._random.uniform(1, 4) if slow else self._random.uniform(0.02, 0.1))

    def _trouble(self) -> Reply:
        troubles = (
            refuse(503),
            refuse(500),
            refuse(429, retry_after="1"),
            refuse(429),
            drop(),
            junk(),
            cut(),
            Reply(delay=15),
        )
        return self._random.choice(troubles)


class Trouble:
    """Breaks something every few seconds, and remembers how often."""

    def __init__(self, random: Random, discord: DiscordDouble, weather: Weather) -> None:
        self.made: Counter[str] = Counter()
        self._random = random
        self._discord = discord
        self._weather = weather

    async def make(self, every: float) -> None:
        """Make trouble until cancelled; then end all of it."""
        acts = self._acts
        try:
            while True:
                await sleep(self._random.expovariate(1 / every))
                name = self._random.choices(list(acts), [weight for _, weight in acts.values()])[0]
                self.made[name] += 1
                await acts[name][0]()
        finally:
            self._weather.now = "fine"
            self._discord.forget_faults()

    @property
    def _acts(self) -> Mapping[str, tuple[Callable[[], Awaitable[None]], int]]:
        """The possible failures, with their weights."""
        return {
            "gateway broken off": (self._drop, 3),
            "gateway closed": (self._close, 3),
            "gateway asks to reconnect": (self._discord.reconnect, 3),
            "session invalid": (self._invalidate, 3),
            "Discord away": (self._be_away, 1),
            "429 for a route": (self._limit_route, 4),
            "429 for all": (self._limit_all, 1),
            "5xx": (self._fail, 6),
            "5xx after the work": (self._fail_afterwards, 3),
            "request broken off": (self._drop_request, 4),
            "endpoint slow": (self._slow, 2),
            "endpoint failing": (self._failing, 2),
        }

    async def _drop(self) -> None:
        self._discord.drop_gateway()

    async def _close(self) -> None:
        self._discord.gateway.close(self._random.choice(_CLOSES))

    async def _invalidate(self) -> None:
        self._discord.gateway.invalidate(resumable=self._random.random() < 0.5)

    async def _be_away(self) -> None:
        async with self._discord.outage():
            await sleep(self._random.uniform(0.5, 5))

    async def _limit_route(self) -> None:
        method, route = self._random.choice(_ROUTES)
        self._discord.rate_limit(method, route, retry_after=self._random.uniform(0.3, 2))

    async def _limit_all(self) -> None:
        self._discord.rate_limit("*", "/channels/*/messages", retry_after=self._random.uniform(0.3, 1), scope="global")

    async def _fail(self) -> None:
        method, route = self._random.choice(_ROUTES)
        status, times = self._random.choice((500, 502, 503, 504)), self._random.choice((1, 1, 2, 5))
        self._discord.fail_next(method, route, status=status, times=times)

    async def _fail_afterwards(self) -> None:
        method, route = self._random.choice(_ROUTES[-3:])
        self._discord.fail_next(method, route, status=502, when="after")

    async def _drop_request(self) -> None:
        method, route = self._random.choice(_ROUTES)
        when: Literal["before", "after"] = self._random.choice(("before", "after"))
        self._discord.fail_next(method, route, drop=True, when=when)

    async def _slow(self) -> None:
        await self._weather_for("slow", self._random.uniform(2, 8))

    async def _failing(self) -> None:
        await self._weather_for("failing", self._random.uniform(2, 8))

    async def _weather_for(self, weather: Literal["slow", "failing"], seconds: float) -> None:
        self._weather.now = weather
        await sleep(seconds)
        self._weather.now = "fine"
