"""Segments: the parts of conversations that may be learned from, and the pseudonyms of their people.

A segment has no withdrawn messages, and mostly one message id for each turn.

The names in it become `User_1`, `User_2` and so on: one pseudonym for each person. This is applied to the prompt and
again to the reply. A concealed text has no id, no mention and no known name, also where look-alike letters spell it. A
name that is reversed, spelled out or transliterated is not recognised.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
from anyio.to_thread import run_sync
from msgspec import Meta, Struct, structs

from intern.core import records
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, UserId
from intern.core.text.patterns import regex
from intern.core.text.words import STOP_WORDS, Look, likeness_key, look_of, one_line
from intern.stores.blocks import only

if TYPE_CHECKING:  # every command loads this module with the settings; its help needs no store
    from intern.stores.archive import Archive
    from intern.stores.sqlite.chat import NameStore
    from intern.stores.sqlite.knowledge import Knowledge, Placed

NAMELESS = "somebody"
"""Stands for a person who is named but is not in the conversation."""

LABEL = regex(r"(?<![^\W_])User_[0-9]+(?!_?[^\W_])")

_IMPERSONAL: Mapping[records.Speaker | None, str] = {"Team": "a team member", "User": "a member", None: NAMELESS}

_OPENING = regex(r"\A(?:\s*<@[!&]?\s?[0-9]{1,20}>[\s,:]*)+")
_PERSON = regex(r"<@!?\s?(?P<mentioned>[0-9]{1,20})>|(?<![\w/])@?(?P<id>[0-9]{15,20})(?!\w)")
# Discord's markup that holds ids (its reference, "Message Formatting"), each with its replacement.
_MENTION = regex(r"<@!?\s?([0-9]{1,20})>")
_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = (
    (regex(r"<@&\s?[0-9]{1,20}>"), "a role"),
    (regex(r"<#\s?[0-9]{1,20}>"), "a channel"),
    (regex(r"<a?:(\w{1,32}):[0-9]{1,20}>"), r":\1:"),
    (regex(r"</([^:<>\n]{1,100}):[0-9]{1,20}>"), r"/\1"),
    (regex(r"https?://(?:\w{1,20}\.)?discord(?:app)?\.com/(?:channels|users)/[\w@/]{1,100}"), "a link to Discord"),
    (regex(r"@(everyone|here)\b", re.IGNORECASE), r"\1"),
    # Any id by itself, as Discord gave them since 2016 and will until 2084.
    (regex(r"(?<![0-9])[0-9]{17,19}(?![0-9])"), "an id"),
)

# `@nick`, but no address (`me@example.org`), package (`@types/node`), or decorator (`@cache(…)`).
_NICK = r"[^\W_](?:(?:[\w.-]|['’](?!s\b)){0,30}\w)?"
_AT_NAME = regex(rf"(?<![\w@/.`])@(?P<name>{_NICK})(?![\w/(@])")
# In code, the sign before it may be anything that ends a word.
_AT_IN_CODE = regex(rf"(?<![\w@/.])@(?P<name>{_NICK})(?![\w/(@])")
_CODE = regex(r"(```[\s\S]*?(?:```|\Z)|`[^`\n]+`)")
# Characters that IRC allows in a nick and prose does not use, where IRC puts the name of the addressee.
_ADDRESSED = regex(r"^\s{0,3}(?P<name>[\w\[\]\\`^{}|-]{0,30}[_\[\]\\`^{}|])[:,]\s", re.MULTILINE)

_SHORTEST = 2  # a name of one letter is a word of every text
_SHORTEST_CORE = 4
# Scripts in which words, or a name and what is said of it, stand without a space between.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W_{_UNSPACED}]"
_UNSPACED_SIGN = regex(rf"[{_UNSPACED}]")
# Discord does not show these characters, so they can split a name.
_MARKDOWN = "*~|`\\"
_TELLING_APART = 3  # letters; shorter names are not looked for between such characters
_INITIAL = regex(r"(?<!\w)(\w)\.\s*(?=\w)")
_TAILS = regex(r"(?:[_`^|]+|-M|\[m\]|\|\w*)$")


class Pseudonyms:
    """The people of a conversation, each with a pseudonym."""

    def __init__(self, segment: Segment) -> None:
        """Name everyone who speaks or is mentioned.

        If authors are unknown, the team counts as one person, and so do the members.
        """
        turns, names = segment.turns, segment.names
        self._labels: dict[str, str] = {}
        self._speakers: dict[str, records.Speaker] = {}
        self._known: dict[str, _Name] = {}
        for author, known in names.items():
            for each in known:
                self._know(each, _by_id(author))
        for each in segment.others:
            self._know(each, _by_name(each), whole=True)
        authors = [*segment.author_ids, *[UserId("")] * len(turns)]
        called = _searched(each.written for each in self._known.values())
        labels: list[str] = []
        for turn, author in zip(turns, authors, strict=False):
            person = _by_id(author) if author else f"unknown {turn.speaker}"
            labels.append(self._label(person))
            self._speakers.setdefault(labels[-1], turn.speaker)
            for _, name, is_id in _mentioned(turn.text, called):
                self._label(_by_id(name) if is_id else self._know(name))
        self.labels = tuple(labels)
        """Of each turn's author."""
        ids = {*names, *segment.author_ids} - {""}
        self._ids = _any_of("", "|".join(map(re.escape, _longest_first(ids))))
        written = {name.written for name in self._known.values()}
        self._names = _searched(written)
        long = (each for each in written if len(each) >= _TELLING_APART)
        self._names_apart = _searched(each for each in long if not any(sign in each for sign in _MARKDOWN))
        # `@dataclass` is not a name if the conversation shows it as code.
        code = "\n".join(part for turn in turns for part in _CODE.findall(turn.text))
        self._code = {match["name"].casefold() for match in _AT_IN_CODE.finditer(code)}

    def conceal(self, text: str) -> str:
        """Replace each name and id with its pseudonym, or with `NAMELESS`. A second call changes nothing."""
        text = _replaced(_MENTION, lambda match: self._labels.get(_by_id(match[1]), NAMELESS), text)
        if self._ids is not None:
            text = _replaced(self._ids, lambda match: self._labels.get(_by_id(match[0].lstrip("@")), NAMELESS), text)
        for pattern, left in _MARKUP:
            text = _replaced(pattern, methodcaller("expand", left), text)
        for names, without in ((self._names, ""), (self._names_apart, _MARKDOWN)):
            if names is not None:
                text = _replaced(names, lambda match: self._label_of(match[0].lstrip("@")), text, without)
        text = _outside_code(text, lambda part: _replaced(_AT_NAME, lambda match: self._label_of(match["name"]), part))
        known = set(self._labels.values())
        return LABEL.sub(lambda match: match[0] if match[0] in known else NAMELESS, text)

    def conceal_retold(self, text: str) -> str:
        """Conceal a model's text: `@name` in code counts as a name, unless the conversation has it as code.

        Members' code is code; a model could hide a name there.
        """
        return _CODE.sub(lambda part: self._without_names_in(part[0]), self.conceal(text))

    def _without_names_in(self, code: str) -> str:
        def shown(match: re.Match[str]) -> str:
            return match[0] if match["name"].casefold() in self._code else self._label_of(match["name"])

        return _replaced(_AT_IN_CODE, shown, code)

    def impersonal(self, text: str) -> str:
        """Conceal a model's text with roles instead of pseudonyms, for readers who do not know who `User_1` was."""
        return LABEL.sub(lambda match: _IMPERSONAL[self._speakers.get(match[0])], self.conceal_retold(text))

    def _know(self, name: str, person: str | None = None, *, whole: bool = False) -> str:
        """Remember a name and its shorter forms, and return its person. `whole`: without shorter forms."""
        for form in _forms(name, whole=whole):
            for written in (form, form.lower(), form.upper()):
                self._known.setdefault(likeness_key(written), _Name(written, person or _by_name(name)))
        known = self._known.get(likeness_key(name))
        return known.person if known else _by_name(name)

    def _label(self, person: str) -> str:
        return self._labels.setdefault(person, f"User_{len(self._labels) + 1}")

    def _label_of(self, name: str) -> str:
        if LABEL.fullmatch(name):
            return name
        known = self._known.get(likeness_key(name))
        return self._labels.get(known.person if known else "", NAMELESS)


class _Name(NamedTuple):
    written: str
    person: str


def _by_id(author: str) -> str:
    return f"id {author}"


def _by_name(name: str) -> str:
    return f"name {name.casefold()}"


def _mentioned(text: str, called: _Words | None) -> list[tuple[int, str, bool]]:
    """Find who is addressed, in order: where, by what, and whether that is an id.

    `called` finds known names, also of several words.
    """
    found = [(match.start(), match[1], True) for match in _MENTION.finditer(text)]
    outside = text
    for taken in (_MENTION, _CODE):
        outside = taken.sub(lambda match: " " * len(match[0]), outside)
    for match in called.finditer(outside) if called is not None else ():
        if match[0].startswith("@"):
            found.append((match.start(), match[0].lstrip("@"), False))
            outside = outside[: match.start()] + " " * len(match[0]) + outside[match.end() :]
    for pattern in (_AT_NAME, _ADDRESSED):
        for match in pattern.finditer(outside):
            name = match["name"]
            if name.casefold() not in {"everyone", "here"} and not LABEL.fullmatch(name):
                found.append((match.start(), name, False))
    return sorted(found)


def others_in(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in a text, of these names of people outside the conversation.

    A name of letters alone may be an ordinary word. It counts only in an address: `@name`, or `name:` or `name,` at
    the beginning of a line.
    """
    seen = look_of(text).text
    return tuple(each for each in dict.fromkeys(map(one_line, names)) if _is_telling(each) or _is_addressed(each, seen))


def _is_telling(name: str) -> bool:
    signs = [unicodedata.category(char)[0] for char in name]
    return signs.count("L") >= _SHORTEST and any(sign not in "LM" for sign in signs)


def _is_addressed(name: str, seen: str) -> bool:
    spelled = _spelled(one_line(look_of(name).text))
    if len(name) < _SHORTEST or not spelled:
        return False
    called = rf"(?im)^\s{{0,3}}{spelled}\s?[:,]|(?<![\w@/.`])@{spelled}(?!_?{_LETTER})"
    return re.search(called, seen) is not None


def _forms(name: str, *, whole: bool) -> Iterator[str]:
    """Return a name, and its form without a tail such as `_` or `[m]`."""
    name = one_line(name)
    for form in dict.fromkeys((name,) if whole else (name, _TAILS.sub("", name))):
        if len(form) >= (_SHORTEST if form == name else _SHORTEST_CORE) and not LABEL.fullmatch(form):
            yield form


def _replaced(
    pattern: re.Pattern[str] | _Words, left: Callable[[re.Match[str]], str], text: str, without: str = ""
) -> str:
    """Replace the matches in the text's normalised look; keep the rest as it was written."""
    look: Look = look_of(text, without)
    parts, at = list[str](), 0
    for match in pattern.finditer(look.text):
        start, end = look.span(*match.span())
        parts += (text[at:start], left(match))
        at = end
    return "".join((*parts, text[at:])) if parts else text


def _searched(names: Iterable[str]) -> _Words | None:
    """Make a pattern that finds names by their look: in any case, except names that are also words."""
    written = {one_line(look_of(each).text) for each in names}
    written = {each for each in written if any(map(str.isalnum, each))}
    strict = {each for each in written if len(each) <= _SHORTEST or each.casefold() in STOP_WORDS}
    return _any_of(_alternatives(written - strict), _alternatives(strict))


def _any_of(loose: str, strict: str) -> _Words | None:
    """Make a pattern that matches whole words, the `loose` ones in any case."""
    found = "|".join(filter(None, (f"(?i:{loose})" if loose else "", f"(?:{strict})" if strict else "")))
    return _Words(found) if found else None


class _Words:
    """A pattern of whole words.

    Python takes milliseconds to compile the ranges of all unspaced scripts, so a text without them is matched without.
    """

    def __init__(self, found: str) -> None:
        self._found = found

    def finditer(self, text: str) -> Iterable[re.Match[str]]:
        """Find them as a compiled pattern does."""
        # An underscore inside a word is part of it (`max_size`); at its edge it is not (`_max_`).
        if _UNSPACED_SIGN.search(text) is None:
            pattern = rf"(?<![^\W_])(?<![^\W_]_)@?(?:{self._found})(?!_?[^\W_])"
        else:
            begins = rf"(?:(?<!{_LETTER})(?<!{_LETTER}_)@?|(?=[{_UNSPACED}]))"
            pattern = rf"{begins}(?:{self._found})(?:(?<=[{_UNSPACED}])|(?!_?{_LETTER}))"
        return re.finditer(pattern, text)  # which remembers the pattern


def _alternatives(names: Collection[str]) -> str:
    return "|".join(map(_spelled, _longest_first(names)))


def _longest_first(names: Collection[str]) -> list[str]:
    # Longest first: a name must not hide a longer one that begins with it.
    return sorted(names, key=lambda each: (-len(each), each))


def _spelled(name: str) -> str:
    """Make a pattern of a name, with any space between words and any form of initials (`J. R.`, `J.R.`, `JR`)."""
    parts = enumerate(map(re.escape, _INITIAL.split(name)))
    return "".join(rf"{part}\.?\s*" if n % 2 else part.replace(r"\ ", r"\s+") for n, part in parts)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    return "".join(part if n % 2 else change(part) for n, part in enumerate(_CODE.split(text)))


CaptureT = TypeVar("CaptureT", bound=records.Capture)
IsWithdrawn = Callable[[MessageId], bool]


class ExtractionOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What extraction reads, and how fast."""

    auto: bool = True
    """Extract nuggets and facts as conversations are filed. `intern index --extract` reads those filed before."""
    min_turns: Annotated[int, Meta(ge=1)] = 2
    """The fewest messages of a conversation that is read."""
    max_per_minute: Annotated[int, Meta(ge=1)] = 10
    """The most conversations that a model reads a minute, for commands and for the running bot."""
    existing_facts: Annotated[int, Meta(ge=0, le=60)] = 50
    """The most known facts in a prompt, those most like the conversation."""
    from_questions: bool = False
    """Read also threads where intern answered and no team member did."""


class Segment(Struct, frozen=True, kw_only=True):
    """A conversation to learn from, oldest first. Mostly `turns` and `message_ids` run side by side."""

    id: ConversationId
    origin: records.Origin = "capture"
    turns: tuple[records.Turn, ...]
    message_ids: tuple[MessageId, ...]
    author_ids: tuple[UserId, ...] = ()
    """The author of each message, or empty; "" for an unknown author."""
    last_message_at: datetime
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    names: Mapping[UserId, tuple[str, ...]] = {}
    """The known names of its authors."""
    others: tuple[str, ...] = ()
    """Names of other people that may occur in it."""
    ours: frozenset[MessageId] = frozenset()
    """Messages of intern itself. They give context; nothing is learned from them."""

    @property
    def text(self) -> str:
        """All texts, without their authors."""
        return "\n".join(turn.text for turn in self.turns)

    def messages_of(self, turns: Iterable[int]) -> tuple[MessageId, ...]:
        """Return the messages of these turns; all, if other programs' archives do not say which message is where."""
        if len(self.turns) != len(self.message_ids):
            return self.message_ids
        return tuple(self.message_ids[each] for each in turns)

    @property
    def content_hash(self) -> str:
        """A hash that changes with the texts, the speakers and the message ids."""
        said = [(turn.speaker, turn.text) for turn in self.turns]
        return sha256(msgspec.json.encode((said, self.message_ids))).hexdigest()

    def pseudonyms(self) -> Pseudonyms:
        """Name its people."""
        return Pseudonyms(self)

    def distilled(self, agent_id: str) -> records.Distilled:
        """Return the record of the conversation that is stored beside the results."""
        return records.Distilled(
            id=self.id,
            agent_id=agent_id,
            origin=self.origin,
            guild_id=self.guild_id,
            channel_id=self.channel_id,
            message_ids=tuple(each for each in self.message_ids if each not in self.ours),
            last_message_at=self.last_message_at,
            content_hash=self.content_hash,
        )


def without_ids(turns: Sequence[records.Turn], author_ids: Sequence[UserId]) -> tuple[records.Turn, ...]:
    """Return the turns without ids of people: the mention that opens one goes, and others become roles."""
    speakers: dict[str, records.Speaker] = {each: turn.speaker for each, turn in zip(author_ids, turns, strict=False)}

    def role(match: re.Match[str]) -> str:
        if match["id"] and match["id"] not in speakers:
            return match[0]
        return "a team member" if speakers.get(match["mentioned"] or match["id"]) == "Team" else "the member"

    texts = (_PERSON.sub(role, _OPENING.sub("", turn.text) or turn.text) for turn in turns)
    return tuple(records.Turn(turn.speaker, text) for turn, text in zip(turns, texts, strict=True))


def standing_segment(conversation_id: ConversationId, archive: Archive, decisions: Knowledge) -> Segment | None:
    """Return the newest filed version of a conversation without its withdrawn messages; None without one. Blocks.

    A newer version that waits for the model or for review does not count yet. Raises KnowledgeError.
    """
    pair = archive.latest_of(conversation_id)
    while pair is not None and not isinstance(decisions.of(pair.qa_id), records.Filed | records.Moved):
        older = archive.get(pair.replaces) if pair.replaces is not None else None
        pair = older if older is not None and older.timestamp < pair.timestamp else None
    return None if pair is None else segment_of(pair, decisions.is_withdrawn)


def segment_of(pair: records.CapturedPair, is_withdrawn: IsWithdrawn) -> Segment | None:
    """Return the pair without its withdrawn messages; None if its question or its answer is gone."""
    left = without_withdrawn(pair, is_withdrawn)
    matches = len(left.turns) == len(left.message_ids)  # in archives of other programs, maybe not
    kept = [n for n, turn in enumerate(left.turns) if turn.text.strip()]
    if not is_whole(left.turns[n] for n in kept):
        return None
    return Segment(
        id=pair.conversation_id,
        turns=tuple(left.turns[n] for n in kept),
        message_ids=tuple(left.message_ids[n] for n in kept) if matches else left.message_ids,
        author_ids=tuple(left.author_ids[n] for n in kept) if matches and left.author_ids else (),
        last_message_at=left.answered_at,
        guild_id=left.guild_id,
        channel_id=left.channel_id,
    )


def without_withdrawn(capture: CaptureT, is_withdrawn: IsWithdrawn) -> CaptureT:
    """Return the capture without its withdrawn messages. Nothing may be left of it."""
    gone = set(filter(is_withdrawn, capture.message_ids))
    if not gone:
        return capture
    if len(capture.turns) != len(capture.message_ids):
        # Other programs' archives may not match turns to messages, and a deleted message must go.
        return only(capture, ())
    return only(capture, [n for n, message_id in enumerate(capture.message_ids) if message_id not in gone])


def is_whole(turns: Iterable[records.Turn]) -> bool:
    """Whether it has turns of a user and of the team."""
    return {turn.speaker for turn in turns} == {"User", "Team"}


async def named(segment: Segment, names: NameStore) -> Segment:
    """Add the known names of its authors, and of the other people that its text names."""
    called = await names.of({each for each in segment.author_ids if each})
    known = {
        each: tuple(dict.fromkeys((*segment.names.get(each, ()), *called.get(each, ()))))
        for each in (*segment.names, *(author for author in called if author not in segment.names))
    }
    text = segment.text
    there = [name for author, name in await names.in_text(text) if author not in known]
    others = await run_sync(others_in, text, there)
    return structs.replace(segment, names=known, others=(*segment.others, *others))


def concerned(placed: Placed, archive: Archive) -> tuple[ConversationId, ...]:
    """Return the conversations that a decision concerns. Blocks; raises KnowledgeError."""
    decision = placed.decision
    if isinstance(decision, records.Withdrawn | records.Forgotten):
        found = (each for message_id in decision.message_ids for each in archive.conversations_of(message_id))
        return tuple(dict.fromkeys(found))
    pair = archive.get(decision.qa_id)
    return () if pair is None else (pair.conversation_id,)
