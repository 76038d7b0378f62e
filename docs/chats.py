"""`python -m docs.chats`: pictures of what members and the team see in Discord, drawn in a style of our own.

The bot works on the sample documents, without a model, beside a double of Discord. The pictures hold the words that it
posted there, but for the line that says that it has no model. A test plays the scenes again and compares.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from anyio import Event, create_task_group, fail_after

from docs.screenshots import FOLDER, the_same_day
from intern.actors.pipeline import run_pipeline
from intern.answering.closest_passage import CLOSEST
from intern.core.captures import CapturedPair
from intern.runtime.bot import open_discord_parts
from intern.settings.loading import load_settings
from intern.sources.refresh import RefreshReport
from tests.double import interactions
from tests.double.discord import DiscordDouble
from tests.double.world import Interaction, Message, User
from tests.worlds.bot import Watching
from tests.worlds.clock import HandClock

SOURCES = Path(__file__).parents[1] / "sample"
QUESTION = "How do I change the port that the relay listens on?"
PRIVATE = "How do I back up the relay?"
UNKNOWN = "Since the relay runs on a Raspberry Pi, agents are rejected with `clock skew too large`. Any ideas?"
LESSON = (
    "A Raspberry Pi has no battery-backed clock, so after a power cut its time is wrong until NTP has run. Install "
    "chrony, run `chronyc makestep`, then `lumen-relay agents reset-skew`."
)
AGAIN = "My agents get rejected because of clock skew after the Pi lost power. What can I do?"
CORRECTION = (
    "Not any more: since version 2.6, agents that were rejected after a power cut come back by themselves. "
    "Install chrony, run `chronyc makestep`, and wait a minute."
)
ONCE_MORE = "After a power cut, my agents are rejected on version 2.6. Do they come back by themselves?"

_THUMB = "M1 7h3v8H1z M5 7l3-6c1.6 0 2.2 1 2 2.2L9.5 6.5H14c1 0 1.5.8 1.3 1.7l-1.5 5.4c-.2.8-.8 1.4-1.6 1.4H5z"
_MARKS = {"`": "code", "**": "bold", "_": "link"}
_THUMBS = {"👍": 1, "👎": -1}  # which way up
_WIDTH, _LEFT, _TEXT, _LINE = 720, 20, 64, 21.0  # pixels: the picture, its margin, where texts begin, a line's height
_STYLE = """\
svg { color-scheme: light dark }
text { font: 14px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #1f2933 }
.name { font-weight: 600 } .quiet { fill: #52606d; font-size: 12px } .bold { font-weight: 600 }
.code { font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #7a3e00 }
.card { fill: #ffffff; stroke: #cbd2d9 } .only { fill: #eef4fb; stroke: #3e6b9e; stroke-dasharray: 4 3 }
.button { fill: #e4e7eb; stroke: #9aa5b1 } .badge { fill: #3e6b9e } .face { font-weight: 600; fill: #ffffff }
.badge-text { fill: #ffffff; font-size: 11px } .rule { stroke: #cbd2d9 }
.thumb { fill: #d9a520; stroke: #7a5b00; stroke-width: .6 }
.link { text-decoration: underline }
.member { fill: #52606d } .team { fill: #2c6e49 } .bot { fill: #3e6b9e }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb } .quiet { fill: #a9b4c0 } .code { fill: #ffd479 }
  .card { fill: #10161d; stroke: #3e4c59 } .only { fill: #16222f; stroke: #7fb0e6 }
  .button { fill: #243040; stroke: #52606d } .rule { stroke: #3e4c59 }
}"""


class Said(NamedTuple):
    """A message as it stands in the picture."""

    author: str
    kind: Literal["member", "team", "bot"]
    text: str
    buttons: Sequence[str] = ()
    only: str = ""
    """The one member who sees it."""
    reply_to: str = ""
    reaction: str = ""


class Did(NamedTuple):
    """A line between messages: an act of a member, or the place of the next messages."""

    text: str


Scene = Sequence[Said | Did]


# Playing.


class Community:
    """A server with a bot at work, and what was said there."""

    def __init__(self, discord: DiscordDouble, clock: HandClock, seen: Watching) -> None:
        self.discord, self.seen, self._clock = discord, seen, clock
        self.mira = discord.world.new_member("mira", roles=[discord.team_role.id])

    def member(self, name: str) -> User:
        """Let a member join."""
        return self.discord.world.new_member(name)

    async def says(self, author: User, text: str, reply_to: Message | None = None) -> Message:
        """Post a message in #help, or where the message stands that it replies to."""
        self._clock.turn(seconds=60)
        place = self.discord.world.channels[reply_to.channel_id] if reply_to else self.discord.help
        return await self.discord.say(author, text, reply_to=reply_to, channel=place)

    async def teaches(self, text: str, reply_to: Message) -> Message:
        """Let the team reply, and wait until that is learned."""
        captured, refreshed = len(self.seen.all_of(CapturedPair)), len(self.seen.all_of(RefreshReport))
        said = await self.says(self.mira, text, reply_to)
        await self.seen.one_of(CapturedPair, after=captured)
        await self.seen.one_of(RefreshReport, after=refreshed)
        return said

    async def answered(self, question: Message) -> tuple[Message, Sequence[Said | Did]]:
        """Wait for the answer in its thread. Return it, and how it looks."""
        answer = await self.discord.wait_for_answer(question)
        thread = self.discord.thread_of(question)
        assert thread is not None
        return answer, (Did(f"Thread: {thread.name}"), _by_bot(answer))

    async def shown(self, used: Interaction) -> Said:
        """Wait for what only the member sees who used it."""
        await self.discord.until(lambda: interactions.shown(used))
        message = used.follow_ups[-1] if used.follow_ups else used.original
        assert message is not None
        return _by_bot(message, only=used.user.username)


def _by_bot(message: Message, only: str = "") -> Said:
    text = re.sub(r"\A[^\n]*" + re.escape(CLOSEST) + r": [^\n]*\n\n", "", message.content)
    text = re.sub(r"<https?://[^>]*/channels/[^>]*>", "_the\u00a0team's\u00a0message_", the_same_day(text))
    return Said("intern", "bot", text, interactions.buttons_of(message), only)


@asynccontextmanager
async def community() -> AsyncGenerator[Community]:
    """Let the bot work on the sample documents, until the block ends."""
    clock, seen, stop = HandClock(), Watching(), Event()
    with TemporaryDirectory() as folder:
        async with DiscordDouble(now=clock.now) as discord:
            discord.bucket("POST", "/channels/*/messages", limit=50, per=1)
            here = Community(discord, clock, seen)
            settings = load_settings(
                environ={},
                overrides={
                    "data": {"dir": folder},
                    "kb": {"sources_dir": str(SOURCES), "settle_seconds": 0},
                    "llm": {"provider": "offline"},
                    # Vectors and nuggets come when there is time, and answers differ without.
                    "embeddings": {"provider": "none"},
                    "extraction": {"auto": False},
                    "discord": {
                        "token": discord.token,
                        "rest_url": discord.rest_url,
                        "guild_ids": [discord.guild.id],
                        "team_role_ids": [discord.team_role.id],
                        "message_batch_wait_seconds": 0,
                    },
                },
            )
            with fail_after(120):
                async with (
                    open_discord_parts(settings, events=seen, clock=clock, first_pause=0.1) as parts,
                    create_task_group() as tg,
                ):
                    tg.start_soon(partial(run_pipeline, parts, stop=stop))
                    await discord.wait_ready(1)
                    await seen.one_of(RefreshReport)
                    yield here
                    stop.set()


async def scenes() -> Mapping[str, Scene]:
    """Play the scenes. Return each by the name of its picture."""
    async with community() as here:
        return {
            "chat-answer.svg": await _answer(here),
            "chat-ask.svg": await _ask(here),
            **await _lesson(here),
        }


async def _answer(here: Community) -> Scene:
    alice = here.discord.alice
    question = await here.says(alice, QUESTION)
    answer, shown = await here.answered(question)
    why = await interactions.press(here.discord, alice, answer, _button(answer, "Why?"))
    return [Said("alice", "member", QUESTION), *shown, Did("alice presses Why?"), await here.shown(why)]


async def _ask(here: Community) -> Scene:
    bob = here.discord.bob
    known = await interactions.ask(here.discord, bob, PRIVATE)
    answer = await here.shown(known)
    unknown = await interactions.ask(here.discord, bob, UNKNOWN)
    return [
        Did(f"bob types /ask {PRIVATE}"),
        answer,
        Did(f"bob types /ask {UNKNOWN.replace('`', '')}"),
        await here.shown(unknown),
    ]


async def _lesson(here: Community) -> Mapping[str, Scene]:
    question = await here.says(here.discord.bob, UNKNOWN)
    lesson = await here.teaches(LESSON, question)
    again = await here.says(here.member("carol"), AGAIN)
    answer, shown = await here.answered(again)
    learned = [
        Said("bob", "member", UNKNOWN),
        Said("mira", "team", LESSON, reply_to="bob"),
        Did("The next day, in other words"),
        Said("carol", "member", AGAIN),
        *shown,
    ]
    used = await interactions.use_on(here.discord, here.mira, "Learn from this", lesson)
    by_hand = await here.shown(used)
    await here.teaches(CORRECTION, answer)
    once_more = await here.says(here.member("dave"), ONCE_MORE)
    _, corrected = await here.answered(once_more)
    return {
        "chat-learned.svg": learned,
        "chat-correction.svg": [
            *shown,
            Said("mira", "team", CORRECTION, reply_to="intern"),
            Did("Later, in #help"),
            Said("dave", "member", ONCE_MORE),
            *corrected,
        ],
        "chat-learn-from-this.svg": [
            Said("mira", "team", LESSON, reply_to="bob"),
            Did("mira opens the menu of her message: Apps, Learn from this"),
            by_hand,
        ],
    }


def _button(message: Message, label: str) -> str:
    (found,) = [each for row in message.components for each in row["components"] if each.get("label") == label]
    return str(found["custom_id"])


# Drawing.


def drawn(scene: Scene) -> str:
    """Draw a scene as an SVG, legible in light and dark."""
    lines: list[str] = []
    y = 20.0
    for each in scene:
        if isinstance(each, Said):
            pieces, y = _message(each, y)
        else:
            pieces, y = _did(each, y, first=each is scene[0])
        lines += pieces
    height = y + 6
    words = ". ".join(each.text for each in scene)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">',
            f"<title>{escape(words)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            f'<rect class="card" x="1" y="1" width="{_WIDTH - 2}" height="{height - 2:g}" rx="10"/>',
            *lines,
            "</svg>\n",
        ]
    )


def _did(did: Did, y: float, *, first: bool) -> tuple[list[str], float]:
    lines = list(_wrapped(did.text, _WIDTH - 2 * _LEFT))
    drawn_lines = [_text(_LEFT, y + 20 + n * 18, line, "quiet") for n, line in enumerate(lines)]
    rule = f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{y + 2:g}" y2="{y + 2:g}"/>'
    return [*drawn_lines] if first else [rule, *drawn_lines], y + 40 + (len(lines) - 1) * 18


def _message(said: Said, y: float) -> tuple[list[str], float]:
    lines: list[str] = []
    top = y
    if said.reply_to:
        lines.append(_text(_TEXT, y + 12, f"↳ in reply to {said.reply_to}", "quiet"))
        y += 18
    lines += [
        f'<circle class="{said.kind}" cx="{_LEFT + 16}" cy="{y + 16:g}" r="16"/>',
        f'<text class="face" text-anchor="middle" x="{_LEFT + 16}" y="{y + 21:g}">{said.author[0].upper()}</text>',
        _text(_TEXT, y + 12, said.author, "name"),
    ]
    if said.kind != "member":
        x = _TEXT + _measured(said.author) * 1.1 + 10
        lines.append(f'<rect class="badge" x="{x:g}" y="{y:g}" width="38" height="16" rx="3"/>')
        label = f'<text class="badge-text" text-anchor="middle" x="{x + 19:g}" y="{y + 12:g}">{said.kind}</text>'
        lines.append(label)
    y += 16
    for line in _shown_lines(said.text):
        y += _LINE if line else _LINE / 2
        lines.append(_rich(_TEXT, y, line))
    y += 12
    if said.buttons:
        x = float(_TEXT)
        for button in said.buttons:
            width = _measured(button) + 26
            lines.append(f'<rect class="button" x="{x:g}" y="{y:g}" width="{width:g}" height="30" rx="5"/>')
            lines.append(_label(button, x + width / 2, y + 20))
            x += width + 8
        y += 42
    if said.only:
        lines.append(_text(_TEXT, y + 8, f"Only {said.only} sees this", "quiet"))
        y += 20
        place = f'x="{_LEFT - 8}" y="{top - 10:g}" width="{_WIDTH - 2 * _LEFT + 16}" height="{y - top + 8:g}"'
        lines.insert(0, f'<rect class="only" {place} rx="8"/>')
    return lines, y + 14


def _shown_lines(text: str) -> Iterator[str]:
    """Take a text apart into lines that fit."""
    for line in text.strip().splitlines():
        yield from _wrapped(line, _WIDTH - _TEXT - 2 * _LEFT) or [""]


def _wrapped(text: str, width: float) -> list[str]:
    """Break a text between words; words within code stay together with its marks."""
    lines = [""]
    for word in re.findall(r"[ ]*(?:`[^`]*`[^ `]*|[^ ]+)", text):
        if lines[-1] and _measured(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word if lines[-1] else word.lstrip()
    return lines


def _measured(text: str) -> float:
    """Return about how wide a text is, in pixels: a bit too wide for most fonts."""
    narrow, broad = set("iljtfr.,:;'|!()[]· "), set("mwMWÄÖÜ@%")
    return sum(4.8 if each in narrow else 12.0 if each in broad or not each.isascii() else 8.4 for each in text)


def _label(button: str, x: float, y: float) -> str:
    """Draw a button's label; thumbs as shapes, since not every machine has a font with emoji."""
    if button not in _THUMBS:
        return f'<text text-anchor="middle" x="{x:g}" y="{y:g}">{escape(button)}</text>'
    turned = f"translate({x - 8:g} {y - 13 if button == '👍' else y + 3:g}) scale(1 {_THUMBS[button]})"
    return f'<path class="thumb" transform="{turned}" d="{_THUMB}"><title>{button}</title></path>'


def _rich(x: float, y: float, line: str) -> str:
    """Draw a line with code and bold words."""
    spans: list[str] = []
    for piece in re.findall(r"`[^`]+`|\*\*[^*]+\*\*|(?<![^ ])_[^_]+_(?![^ ])|[^`*_]+|[`*_]", line):
        kind = next((kind for mark, kind in _MARKS.items() if piece.startswith(mark) and piece != mark), "")
        words = escape(piece.strip("`*_") if kind else piece)
        spans.append(f'<tspan class="{kind}">{words}</tspan>' if kind else words)
    return f'<text x="{x:g}" y="{y:g}" xml:space="preserve">{"".join(spans)}</text>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def pictures() -> Mapping[str, str]:
    """Play the scenes, and draw them."""
    return {name: drawn(scene) for name, scene in asyncio.run(scenes()).items()}


def main() -> int:
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
        print(f"wrote docs/images/{name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
