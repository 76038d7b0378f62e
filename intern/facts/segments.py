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

from intern.core import captures, knowledge
from intern.core.decisions import MessagesForgotten, MessagesWithdrawn, PairFiled, PairMoved
from intern.core.ids import ChannelId, ConversationId, GuildId, MessageId, UserId
from intern.core.text.lookalikes import LookalikeText, lookalike_key, normalise_lookalikes
from intern.core.text.patterns import regex
from intern.core.text.words import STOP_WORDS, collapse_whitespace
from intern.stores.block_format import select_messages

if TYPE_CHECKING:  # every command loads this module with the settings; its help needs no store
    from intern.stores.archive import Archive
    from intern.stores.tables.knowledge import KnowledgeStore, LoggedDecision
    from intern.stores.tables.members import NameStore

NAMELESS = "somebody"
"""Stands for a person who is named but is not in the conversation."""

LABEL = regex(r"(?<![^\W_])User_[0-9]+(?!_?[^\W_])")

_IMPERSONAL: Mapping[captures.Speaker | None, str] = {"Team": "a team member", "User": "a member", None: NAMELESS}

# The first line may be a title.
_OPENING = regex(r"\A((?:(?!\s*<@)[^\n]{1,100}\n)?)(?:\s*<@[!&]?\s?[0-9]{1,20}>[\s,:]*)+")
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
# Scripts without spaces between words, or between a name and the rest of its sentence.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_LETTER = rf"[^\W_{_UNSPACED}]"
_UNSPACED_SIGN = regex(rf"[{_UNSPACED}]")
# Discord does not show these characters, so they can split a name.
_MARKDOWN = "*~|`\\"
_TELLING_APART = 3  # letters; shorter names are not sought between such characters
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
        self._speakers: dict[str, captures.Speaker] = {}
        self._known: dict[str, _PersonName] = {}
        for author, known in names.items():
            for each in known:
                self._add_name(each, _id_person_key(author))
        for each in segment.others:
            self._add_name(each, _name_person_key(each), whole=True)
        authors = [*segment.author_ids, *[UserId("")] * len(turns)]
        called = _build_name_pattern(each.written for each in self._known.values())
        labels: list[str] = []
        for turn, author in zip(turns, authors, strict=False):
            person = _id_person_key(author) if author else f"unknown {turn.speaker}"
            labels.append(self._assign_label(person))
            self._speakers.setdefault(labels[-1], turn.speaker)
            for _, name, is_id in _find_mentions(turn.text, called):
                self._assign_label(_id_person_key(name) if is_id else self._add_name(name))
        self.labels = tuple(labels)
        """The label of each turn's author."""
        ids = {*names, *segment.author_ids} - {""}
        self._ids = _build_word_pattern("", "|".join(map(re.escape, _sort_longest_first(ids))))
        written = {name.written for name in self._known.values()}
        self._names = _build_name_pattern(written)
        long = (each for each in written if len(each) >= _TELLING_APART)
        self._names_apart = _build_name_pattern(each for each in long if not any(sign in each for sign in _MARKDOWN))
        # `@dataclass` is not a name if the conversation shows it as code.
        code = "\n".join(part for turn in turns for part in _CODE.findall(turn.text))
        self._code = {match["name"].casefold() for match in _AT_IN_CODE.finditer(code)}

    def conceal(self, text: str) -> str:
        """Replace each name and id with its pseudonym, or with `NAMELESS`. A second call changes nothing."""
        text = _replace_matches(_MENTION, lambda match: self._find_id_label(match[1]), text)
        if self._ids is not None:
            text = _replace_matches(self._ids, lambda match: self._find_id_label(match[0].lstrip("@")), text)
        for pattern, left in _MARKUP:
            text = _replace_matches(pattern, methodcaller("expand", left), text)
        for names, without in ((self._names, ""), (self._names_apart, _MARKDOWN)):
            if names is not None:
                text = _replace_matches(names, lambda match: self._find_label(match[0].lstrip("@")), text, without)
        parts = _CODE.split(text)  # every second one is code
        parts[::2] = [_replace_matches(_AT_NAME, lambda at: self._find_label(at["name"]), part) for part in parts[::2]]
        text = "".join(parts)
        known = set(self._labels.values())
        return LABEL.sub(lambda match: match[0] if match[0] in known else NAMELESS, text)

    def conceal_model_text(self, text: str) -> str:
        """Conceal a model's text: `@name` in code counts as a name, unless the conversation has it as code.

        Members' code is code; a model could hide a name there.
        """
        return _CODE.sub(lambda part: self._conceal_code_names(part[0]), self.conceal(text))

    def _conceal_code_names(self, code: str) -> str:
        def replace_name(match: re.Match[str]) -> str:
            return match[0] if match["name"].casefold() in self._code else self._find_label(match["name"])

        return _replace_matches(_AT_IN_CODE, replace_name, code)

    def conceal_with_roles(self, text: str) -> str:
        """Conceal a model's text with roles instead of pseudonyms, for readers who do not know who `User_1` was."""
        return LABEL.sub(lambda match: _IMPERSONAL[self._speakers.get(match[0])], self.conceal_model_text(text))

    def _add_name(self, name: str, person: str | None = None, *, whole: bool = False) -> str:
        """Remember a name and its shorter forms, and return its person. `whole`: without shorter forms."""
        for form in _find_name_forms(name, whole=whole):
            for written in (form, form.lower(), form.upper()):
                self._known.setdefault(lookalike_key(written), _PersonName(written, person or _name_person_key(name)))
        known = self._known.get(lookalike_key(name))
        return known.person if known else _name_person_key(name)

    def _assign_label(self, person: str) -> str:
        return self._labels.setdefault(person, f"User_{len(self._labels) + 1}")

    def _find_id_label(self, user_id: str) -> str:
        return self._labels.get(_id_person_key(user_id), NAMELESS)

    def _find_label(self, name: str) -> str:
        if LABEL.fullmatch(name):
            return name
        known = self._known.get(lookalike_key(name))
        return self._labels.get(known.person if known else "", NAMELESS)


class _PersonName(NamedTuple):
    written: str
    person: str


def _id_person_key(author: str) -> str:
    return f"id {author}"


def _name_person_key(name: str) -> str:
    return f"name {name.casefold()}"


def _find_mentions(text: str, called: _WholeWordPattern | None) -> list[tuple[int, str, bool]]:
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


def find_outside_names(text: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in a text, of these names of people outside the conversation.

    A name of letters alone may be an ordinary word. It counts only in an address: `@name`, or `name:` or `name,` at
    the beginning of a line.
    """
    seen, named = normalise_lookalikes(text).text, dict.fromkeys(map(collapse_whitespace, names))
    return tuple(each for each in named if _is_distinctive_name(each) or _is_addressed(each, seen))


def _is_distinctive_name(name: str) -> bool:
    signs = [unicodedata.category(char)[0] for char in name]
    return signs.count("L") >= _SHORTEST and any(sign not in "LM" for sign in signs)


def _is_addressed(name: str, seen: str) -> bool:
    spelled = _build_spelling_pattern(collapse_whitespace(normalise_lookalikes(name).text))
    if len(name) < _SHORTEST or not spelled:
        return False
    called = rf"(?im)^\s{{0,3}}{spelled}\s?[:,]|(?<![\w@/.`])@{spelled}(?!_?{_LETTER})"
    return re.search(called, seen) is not None


def _find_name_forms(name: str, *, whole: bool) -> Iterator[str]:
    """Return a name, and its form without a tail such as `_` or `[m]`."""
    name = collapse_whitespace(name)
    for form in dict.fromkeys((name,) if whole else (name, _TAILS.sub("", name))):
        if len(form) >= (_SHORTEST if form == name else _SHORTEST_CORE) and not LABEL.fullmatch(form):
            yield form


def _replace_matches(
    pattern: re.Pattern[str] | _WholeWordPattern, left: Callable[[re.Match[str]], str], text: str, without: str = ""
) -> str:
    """Replace the matches in the text's normalised look; keep the rest as it was written."""
    look: LookalikeText = normalise_lookalikes(text, without)
    parts, at = list[str](), 0
    for match in pattern.finditer(look.text):
        start, end = look.find_original_span(*match.span())
        parts += (text[at:start], left(match))
        at = end
    return "".join((*parts, text[at:])) if parts else text


def _build_name_pattern(names: Iterable[str]) -> _WholeWordPattern | None:
    """Make a pattern that finds names by their look: in any case, except names that are also words."""
    written = {collapse_whitespace(normalise_lookalikes(each).text) for each in names}
    written = {each for each in written if any(map(str.isalnum, each))}
    strict = {each for each in written if len(each) <= _SHORTEST or each.casefold() in STOP_WORDS}
    return _build_word_pattern(_join_alternatives(written - strict), _join_alternatives(strict))


def _build_word_pattern(loose: str, strict: str) -> _WholeWordPattern | None:
    """Make a pattern that matches whole words, the `loose` ones in any case."""
    found = "|".join(filter(None, (f"(?i:{loose})" if loose else "", f"(?:{strict})" if strict else "")))
    return _WholeWordPattern(found) if found else None


class _WholeWordPattern:
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
        return re.finditer(pattern, text)  # `re` caches the pattern


def _join_alternatives(names: Collection[str]) -> str:
    return "|".join(map(_build_spelling_pattern, _sort_longest_first(names)))


def _sort_longest_first(names: Collection[str]) -> list[str]:
    # Longest first: a name must not hide a longer one that begins with it.
    return sorted(names, key=lambda each: (-len(each), each))


def _build_spelling_pattern(name: str) -> str:
    """Make a pattern of a name, with any space between words and any form of initials (`J. R.`, `J.R.`, `JR`)."""
    parts = enumerate(map(re.escape, _INITIAL.split(name)))
    return "".join(rf"{part}\.?\s*" if n % 2 else part.replace(r"\ ", r"\s+") for n, part in parts)


CaptureT = TypeVar("CaptureT", bound=captures.Capture)
IsWithdrawn = Callable[[MessageId], bool]


class ExtractionOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of extraction: the conversations that it reads, and how fast."""

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
    origin: knowledge.Origin = "capture"
    turns: tuple[captures.Turn, ...]
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

    def select_message_ids(self, turns: Iterable[int]) -> tuple[MessageId, ...]:
        """Return the messages of these turns; all, if other programs' archives do not say which message is where."""
        if len(self.turns) != len(self.message_ids):
            return self.message_ids
        return tuple(self.message_ids[each] for each in turns)

    @property
    def content_hash(self) -> str:
        """A hash that changes with the texts, the speakers and the message ids."""
        said = [(turn.speaker, turn.text) for turn in self.turns]
        return sha256(msgspec.json.encode((said, self.message_ids))).hexdigest()

    def make_distilled_record(self, agent_id: str) -> knowledge.DistilledConversation:
        """Return the record of the conversation that is stored beside the results."""
        return knowledge.DistilledConversation(
            id=self.id,
            agent_id=agent_id,
            origin=self.origin,
            guild_id=self.guild_id,
            channel_id=self.channel_id,
            message_ids=tuple(each for each in self.message_ids if each not in self.ours),
            last_message_at=self.last_message_at,
            content_hash=self.content_hash,
        )


def remove_person_ids(turns: Sequence[captures.Turn], author_ids: Sequence[UserId]) -> tuple[captures.Turn, ...]:
    """Return the turns without ids of people: the mention that opens one goes, and others become roles."""
    speakers: dict[str, captures.Speaker] = {each: turn.speaker for each, turn in zip(author_ids, turns, strict=False)}

    def replace_mention(match: re.Match[str]) -> str:
        if match["id"] and match["id"] not in speakers:
            return match[0]
        return "a team member" if speakers.get(match["mentioned"] or match["id"]) == "Team" else "the member"

    texts = (_PERSON.sub(replace_mention, _OPENING.sub(r"\1", turn.text) or turn.text) for turn in turns)
    return tuple(captures.Turn(turn.speaker, text) for turn, text in zip(turns, texts, strict=True))


def read_current_segment(
    conversation_id: ConversationId, archive: Archive, decisions: KnowledgeStore
) -> Segment | None:
    """Return the newest filed version of a conversation without its withdrawn messages; None without one. Blocks.

    A newer version that waits for the model or for review does not count yet. Raises KnowledgeError.
    """
    pair = archive.latest_capture(conversation_id)
    while pair is not None and not isinstance(decisions.last_decision(pair.qa_id), PairFiled | PairMoved):
        older = archive.get(pair.replaces) if pair.replaces is not None else None
        pair = older if older is not None and older.timestamp < pair.timestamp else None
    return None if pair is None else build_segment(pair, decisions.is_withdrawn)


def build_segment(pair: captures.CapturedPair, is_withdrawn: IsWithdrawn) -> Segment | None:
    """Return the pair without its withdrawn messages; None if its question or its answer is gone."""
    left = remove_withdrawn(pair, is_withdrawn)
    matches = len(left.turns) == len(left.message_ids)  # in archives of other programs, maybe not
    kept = [n for n, turn in enumerate(left.turns) if turn.text.strip()]
    if not has_user_and_team(left.turns[n] for n in kept):
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


def remove_withdrawn(capture: CaptureT, is_withdrawn: IsWithdrawn) -> CaptureT:
    """Return the capture without its withdrawn messages. Nothing may be left of it."""
    gone = set(filter(is_withdrawn, capture.message_ids))
    if not gone:
        return capture
    if len(capture.turns) != len(capture.message_ids):
        # Other programs' archives may not match turns to messages, and a deleted message must go.
        return select_messages(capture, ())
    return select_messages(capture, [n for n, message_id in enumerate(capture.message_ids) if message_id not in gone])


def has_user_and_team(turns: Iterable[captures.Turn]) -> bool:
    """Whether it has turns of a user and of the team."""
    return {turn.speaker for turn in turns} == {"User", "Team"}


async def add_known_names(segment: Segment, names: NameStore) -> Segment:
    """Add the known names of its authors, and of the other people that its text names."""
    called = await names.read_names({each for each in segment.author_ids if each})
    authors = dict.fromkeys((*segment.names, *called))
    known = {each: tuple(dict.fromkeys((*segment.names.get(each, ()), *called.get(each, ())))) for each in authors}
    text = segment.text
    there = [name for author, name in await names.find_in_text(text) if author not in known]
    others = await run_sync(find_outside_names, text, there)
    return structs.replace(segment, names=known, others=(*segment.others, *others))


def find_concerned_conversations(placed: LoggedDecision, archive: Archive) -> tuple[ConversationId, ...]:
    """Return the conversations that a decision concerns. Blocks; raises KnowledgeError."""
    decision = placed.decision
    if isinstance(decision, MessagesWithdrawn | MessagesForgotten):
        found = (each for message_id in decision.message_ids for each in archive.find_conversations(message_id))
        return tuple(dict.fromkeys(found))
    pair = archive.get(decision.qa_id)
    return () if pair is None else (pair.conversation_id,)
