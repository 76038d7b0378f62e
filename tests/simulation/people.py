"""A community that lives by dice: what its people do on a Discord, and a record of it that laws are held against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Protocol

from msgspec import Struct

from intern.actors.activity import ActivityReporter
from intern.core.flow import Reply
from intern.core.ids import ChannelId, MessageId, RoleId, UserId
from intern.core.messages import Author, Channel, ChatMessage
from intern.settings.settings import Settings

MEMBERS = ("alice", "bob", "carol", "dave")
TEAM = ("mira", "noor")
DOCUMENTS = {
    "ports.md": "# Ports\n\nThe relay listens on port 7480. Set `listen` in relay.toml to change it, @everyone.\n",
    "spool.md": "# Spool\n\nPurge the spool with `lumen-relay spool purge`. Agents keep their queue meanwhile.\n",
}
_DOCUMENTED = (
    "How do I change the port that the relay listens on?",
    "How do I purge the spool?",
)
_WORDS = (
    "anchor barrel candle dagger ember falcon garnet harbor island jacket kettle lantern magnet needle orchid pepper "
    "quartz rocket saddle timber umbrella velvet walnut yonder zephyr bishop cobalt dragon fiddle goblet hammer igloo"
)

Act = Callable[[], Awaitable[None]]


class Change(Struct, kw_only=True):
    """An edit or a deletion, and when a bot heard of it; it may have died before it could do anything."""

    at: float
    heard: float | None = None
    life: int = 0
    session: str = ""
    """The gateway session that it was told to."""


class Said(Struct, kw_only=True):
    """The record of a message that a person wrote."""

    message: ChatMessage
    texts: list[str]
    """All it ever said, the newest last."""
    goes_on: Said | None = None
    """It follows the same author's message there within the window."""
    names: UserId | None = None
    """The member whom a team member answers by a mention, without Discord's reply."""
    deleted: float | None = None
    changes: list[Change] = []
    while_private: bool = False

    @property
    def id(self) -> MessageId:
        return self.message.id

    @property
    def author(self) -> Author:
        return self.message.author

    @property
    def place(self) -> ChannelId:
        return self.message.channel_id


class Stage(Protocol):
    """A Discord that people act on."""

    def say(
        self,
        author: Author | str,
        text: str,
        *,
        channel_id: ChannelId | None = None,
        reply_to: MessageId | None = None,
    ) -> ChatMessage: ...

    def open_post(self, author: Author | str, title: str, text: str) -> ChatMessage: ...

    def open_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId: ...

    def edit(self, channel_id: ChannelId, message_id: MessageId, text: str) -> ChatMessage: ...

    def delete(self, channel_id: ChannelId, *message_ids: MessageId) -> None: ...

    def archive(self, thread: ChannelId) -> None: ...

    def set_private(self, channel_id: ChannelId) -> None: ...

    def threads(self, parent_id: ChannelId | None = None) -> Sequence[Channel]: ...

    def posts(self) -> Sequence[ChatMessage]:
        """Everything that the bot has written, oldest first."""
        ...


class Looking(ActivityReporter):
    """Remembers which messages each reply was for, over all of the bot's lives."""

    def __init__(self) -> None:
        super().__init__()
        self.replied: dict[MessageId, tuple[MessageId, ...]] = {}

    def report_post(self, reply: Reply, outcome: str) -> None:
        super().report_post(reply, outcome)
        if outcome == "posted":
            self.replied[reply.question.id] = reply.settles


class People(ABC):
    """The members, and all their acts. `robot` is a bot of another owner."""

    handoff: RoleId
    mention = "@intern"
    """The text by which people call the bot."""

    def __init__(self, seed: int, stage: Stage, *, places: Sequence[ChannelId], robot: Author | str) -> None:
        self.rng = Random(seed)
        self.stage = stage
        self.places = list(places)
        self.looking = Looking()
        self.said: dict[MessageId, Said] = {}
        self.private_from: dict[ChannelId, float] = {}
        self.transcript: list[str] = []
        self.strays: list[str] = []
        """Forbidden acts of a process."""
        self._robot = robot
        self._serial = 0

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """As the bot has them in the folder that the last life left."""

    @abstractmethod
    def seconds(self) -> float:
        """Since the beginning."""

    @abstractmethod
    def had_effect(self, change: Change) -> bool:
        """Return whether a bot heard of a change, and lived long enough to handle it."""

    @abstractmethod
    def came_too_late(self, post: ChatMessage, question: Said) -> bool:
        """Return whether the bot could have seen, before it began with this post, that the question is gone."""

    @abstractmethod
    def spoke_in_private(self, post: ChatMessage) -> bool:
        """Return whether the bot could have known, when it wrote this, that not everybody may read it."""

    def is_beside_replies(self, post: ChatMessage) -> bool:
        """Return whether it is no reply: a note to who writes in private, or an answer that its asker shared."""
        del post
        return False

    def is_excused(self, said: Said) -> bool:
        """Return whether Discord did not let the bot read what it takes to do something about a message."""
        del said
        return False

    def crashes_after(self, said: Said) -> int:
        """Return the number of times that the bot died after that was written, as far as it may count."""
        del said
        return 0

    @abstractmethod
    def pinged_by(self, post: ChatMessage) -> Sequence[str]:
        """Return the members that a message of the bot's notified."""

    @abstractmethod
    def _changed(self) -> Change:
        """Return a change that happens now."""

    # Questions of the laws.

    def standing(self, wanted: Callable[[Said], bool] = lambda _: True) -> list[Said]:
        """Return the messages that people did not delete, oldest first."""
        return [said for said in self.said.values() if said.deleted is None and wanted(said)]

    def is_private(self, place: ChannelId) -> bool:
        """Return whether some members may not read there now."""
        return place in self.private_from or self.parent_of(place) in self.private_from

    def parent_of(self, place: ChannelId) -> ChannelId | None:
        """Return the parent channel of a thread."""
        return next((thread.parent_id for thread in self.stage.threads() if thread.id == place), None)

    def place_of(self, said: Said) -> Channel:
        """Return the channel or thread of a message."""
        threads = (thread for thread in self.stage.threads() if thread.id == said.place)
        return next(threads, Channel(id=said.place, guild_id=said.message.guild_id, kind="channel"))

    # Acts of people.

    @property
    def acts(self) -> Mapping[Act, int]:
        """The possible acts of people, with their weights."""
        return {
            self._ask: 24,
            self._teach: 24,
            self._explain: 4,
            self._go_on: 8,
            self._chat: 6,
            self._edit: 7,
            self._delete: 8,
            self._sleep_in: 2,
        }

    def note(self, what: str) -> None:
        self.transcript.append(f"{self.seconds():9.3f} {what}")

    def text(self, beginning: str, *, words: int = 6) -> str:
        """Return a text that no one said before."""
        self._serial += 1
        some = " ".join(self.rng.sample(_WORDS.split(), words))
        return " ".join(filter(None, (beginning, some, f"word{self._serial}x")))

    def question(self) -> str:
        """Return a text that asks, sometimes for something in a document."""
        known = self.rng.random() < 0.5
        return self.text(self.rng.choice(_DOCUMENTED), words=0) if known else self.text("How do I use")

    def say(self, author: str | Author, text: str, place: ChannelId, reply_to: Said | None = None) -> Said:
        message = self.stage.say(author, text, channel_id=place, reply_to=reply_to.id if reply_to else None)
        return self.keep(message)

    def keep(self, message: ChatMessage) -> Said:
        said = Said(
            message=message, texts=[message.text], changes=[], while_private=self.is_private(message.channel_id)
        )
        self.said[message.id] = said
        to = f" to {message.reply_to}" if message.reply_to else ""
        self.note(f"{message.author.name} in {message.channel_id}: {message.id}{to} {message.text!r}")
        return said

    def rewrite(self, said: Said, text: str) -> None:
        said.texts.append(text)
        said.changes.append(self._changed())
        self.note(f"edit {said.id} {text!r}")
        said.message = self.stage.edit(said.place, said.id, text)

    def remove(self, said: Said) -> None:
        change = self._changed()
        said.deleted = change.at
        said.changes.append(change)
        self.note(f"delete {said.id}")
        self.stage.delete(said.place, said.id)

    def make_private(self, place: ChannelId) -> None:
        self.private_from[place] = self.seconds()
        self.stage.set_private(place)

    async def _ask(self) -> None:
        author, text = self.rng.choice(MEMBERS), self.question()
        if self.rng.random() < 0.3:
            text = f"{self.mention} {text}"
        dice = self.rng.random()
        threads = [thread.id for thread in self.stage.threads()]
        if dice < 0.15:
            said = self.keep(self.stage.open_post(author, "a post", text))
        elif dice < 0.35 and threads:
            said = self.say(author, text, self.rng.choice(threads))
        else:
            said = self.say(author, text, self.rng.choice(self.places))
        if self.rng.random() < 0.2 and not self.parent_of(said.place):
            self.stage.open_thread(said.place, said.id, "a thread")

    async def _teach(self) -> None:
        asked = self.standing(lambda said: said.author.type == "community_user")[-12:]
        if not asked:
            return
        question = self.rng.choice(asked)
        place, member = question.place, self.rng.choice(TEAM)
        thread = ChannelId(question.id)
        if thread in {each.id for each in self.stage.threads()} and self.rng.random() < 0.5:
            first = self.say(member, self.text("You can take"), thread)
        elif self.rng.random() < 0.3:
            first = self.say(member, f"<@{question.author.id}> {self.text('You can take')}", place)
            first.names = question.author.id
        else:
            first = self.say(member, self.text("You can take"), place, question)
        if self.rng.random() < 0.3:
            self.say(member, self.text("And then also"), first.place).goes_on = first

    async def _explain(self) -> None:
        answers = self.standing(lambda said: said.author.type == "team_member" and said.message.reply_to is not None)
        if answers:
            answer = self.rng.choice(answers[-4:])
            self.say(answer.author, self.text("More exactly"), answer.place, answer)

    async def _go_on(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-4:]
        if recent:
            before = self.rng.choice(recent)
            own = [each for each in self.said.values() if (each.author, each.place) == (before.author, before.place)]
            said = self.say(before.author, self.text("I also mean"), before.place)
            window = timedelta(seconds=self.settings.discord.message_batch_wait_seconds)
            if own[-1] is before and said.message.at - before.message.at <= window:
                said.goes_on = before

    async def _chat(self) -> None:
        author: str | Author = self.rng.choice((*MEMBERS, *TEAM, self._robot))
        earlier = self.standing()[-6:]
        target = self.rng.choice(earlier) if earlier and self.rng.random() < 0.6 else None
        place = target.place if target else self.rng.choice(self.places)
        self.say(author, self.text("By the way"), place, target)

    async def _edit(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-10:]
        if recent:
            self.rewrite(self.rng.choice(recent), self.text("Rather I say"))

    async def _delete(self) -> None:
        recent = self.standing(lambda said: said.author.type != "bot")[-10:]
        if recent:
            self.remove(self.rng.choice(recent))

    async def _sleep_in(self) -> None:
        if threads := self.stage.threads():
            thread = self.rng.choice(threads)
            self.note(f"{thread.id} is archived")
            self.stage.archive(thread.id)


def write_documents(folder: Path) -> None:
    """Write the documents that the bot may answer from."""
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for name, text in DOCUMENTS.items():
        (sources / name).write_text(text)
