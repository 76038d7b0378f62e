"""The extraction prompt: its types, what is put into it, and how its reply is checked. Pure.

The prompt names people `User_1`, messages `m1` and facts `f1`. No real name and no real id goes out, and none comes
back. The reply is untrusted: its texts, ids and statuses are all checked.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated
from uuid import NAMESPACE_URL, uuid5

from msgspec import Meta, Struct

from intern.core.captures import Speaker
from intern.core.ids import NuggetId
from intern.core.knowledge import Fact, FactCategory, Nugget, NuggetStatus, Sentiment, Visibility
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import even_share
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.facts.reconciliation import FactProposal
from intern.facts.segments import LABEL, NAMELESS, Pseudonyms, Segment
from intern.facts.visibility import rate_account_text
from intern.models.prompt import Choices, Prompt

# For one of many: code leaves out items that are too long; a tighter bound would refuse the whole extraction.
_Short = Annotated[str, Meta(max_length=200)]
_Ids = tuple[_Short, ...]
# A line that is not indented begins a message or a fact.
_FIRST_WORD = re.compile(r"^(\w+) ", re.MULTILINE)


class ExtractIn(Struct, frozen=True, kw_only=True):
    """The input of the extraction prompt."""

    transcript: str
    """Oldest message first, each led by its id and by who wrote it."""
    existing_facts: str = ""
    """One line for each of those most like the conversation: its id, date and category, then what it says."""


class NuggetOut(Struct, frozen=True, kw_only=True):
    """A nugget as a model proposes it."""

    topic: Annotated[str, Meta(max_length=200, description="A short title.")]
    topic_summary: Annotated[str, Meta(max_length=600, description="One sentence.")]
    detailed_analysis: Annotated[str, Meta(max_length=4000, description="Several sentences.")]
    status: NuggetStatus
    keywords: Annotated[tuple[_Short, ...], Meta(max_length=30)]
    source_message_ids: Annotated[_Ids, Meta(max_length=200, description="Ids of the messages that it comes from.")]


class FactOut(Struct, frozen=True, kw_only=True):
    """A fact as a model proposes it; code decides what becomes of it."""

    category: FactCategory
    content: Annotated[str, Meta(max_length=800)]
    summary: Annotated[str, Meta(max_length=300, description="One line of at most 100 characters.")]
    visibility: Visibility
    # No bound that a reply is refused for: a server's grammar cannot hold a number to one (llama.cpp's does not), and
    # `facts.reconciliation` replaces a number outside by the nearest one inside.
    confidence: Annotated[float, Meta(description="From 0 to 1.", extra_json_schema={"minimum": 0, "maximum": 1})]
    sentiment: Sentiment
    duplicate_of: Annotated[_Short, Meta(description="Id of the existing fact that says the same, or empty.")]
    supersedes: Annotated[_Short, Meta(description="Id of the existing fact that it updates, or empty.")]
    note: Annotated[str, Meta(max_length=300, description="What changed, or that it comes up again; or empty.")]
    source_message_ids: Annotated[_Ids, Meta(max_length=200, description="Ids of the messages that say it.")]


class ExtractOut(Struct, frozen=True, kw_only=True):
    """The knowledge in a conversation."""

    nuggets: Annotated[tuple[NuggetOut, ...], Meta(max_length=20)]
    facts: Annotated[tuple[FactOut, ...], Meta(max_length=50)]


def _extraction_choices(given: ExtractIn) -> Choices:
    facts = ["", *_FIRST_WORD.findall(given.existing_facts)]
    return {"source_message_ids": _FIRST_WORD.findall(given.transcript), "duplicate_of": facts, "supersedes": facts}


_BOUNDED_BY = ("extraction.existing_facts",)
EXTRACT = Prompt("extract", takes=ExtractIn, gives=ExtractOut, offers=_extraction_choices, bounded_by=_BOUNDED_BY)


MAX_CONVERSATION_CHARS = 12_000
"""The most characters of one conversation in a prompt. Long messages are cut, all at the same length."""

_MOST_MESSAGES = 150  # of a conversation in a prompt: its first and its last messages
_OPENING = 30
_MAX_FACT = 400  # characters of an existing fact in a prompt
_MAX_TOPIC = 120
_MAX_SUMMARY = 400
_MAX_ANALYSIS = 4000
_MAX_KEYWORD = 60
_MOST_KEYWORDS = 12
_MAX_SNIPPET = 300

_NOT_SHOWN = "not shown"

_ROLES: Mapping[Speaker, str] = {"Team": "team", "User": "member"}


def build_extraction_input(segment: Segment, pseudonyms: Pseudonyms, known: Sequence[Fact]) -> ExtractIn:
    """Build the prompt from the conversation and the facts that it may repeat or update, best match first."""
    facts = "\n".join(_format_facts(known, pseudonyms))
    return ExtractIn(transcript=_format_transcript(segment, pseudonyms), existing_facts=facts)


def _format_transcript(segment: Segment, pseudonyms: Pseudonyms) -> str:
    shown = list(range(len(segment.turns)))
    if len(shown) > _MOST_MESSAGES:
        shown = [*shown[:_OPENING], *shown[-(_MOST_MESSAGES - _OPENING) :]]
    # Conceal first, then cut: a cut could leave half a name.
    # `splitlines` splits at every kind of line end, so no text can begin a line of its own.
    texts = {n: "\n  ".join(pseudonyms.conceal(segment.turns[n].text).strip().splitlines()) for n in shown}
    heads = {n: f"m{n + 1} {pseudonyms.labels[n]} ({_speaker_role(segment, n)}): " for n in shown}
    longest = max(map(len, heads.values())) + len("\n")
    limit = even_share([len(text) + longest for text in texts.values()], MAX_CONVERSATION_CHARS) - longest
    return "\n".join(heads[n] + truncate_text(text, limit) for n, text in texts.items())


def _speaker_role(segment: Segment, n: int) -> str:
    return _ROLES[segment.turns[n].speaker] if segment.ours.isdisjoint(segment.select_message_ids([n])) else "assistant"


def _format_facts(known: Sequence[Fact], pseudonyms: Pseudonyms) -> Iterable[str]:
    for n, fact in enumerate(known, 1):
        content = truncate_text(" ".join(pseudonyms.conceal(fact.content).split()), _MAX_FACT)
        retired = "" if fact.is_active else "(retired: not to be said again) "
        yield f"f{n} {fact.last_seen_at:%Y-%m-%d} {fact.category} {retired}{content}"


class CheckedExtraction:
    """The accepted part of a reply, checked against what the model was shown."""

    def __init__(self, reply: ExtractOut, segment: Segment, pseudonyms: Pseudonyms, known: Sequence[Fact]) -> None:
        self.unknown_ids = 0
        """Message ids that are not in the conversation. They were left out."""
        self.hidden = 0
        """Nuggets that would show all members what not all may read."""
        self._segment = segment
        self._pseudonyms = pseudonyms
        # By the names in the prompt, and by the real ids, in case the model knows them from elsewhere.
        places = range(len(segment.turns))
        self._places = {f"m{n + 1}": n for n in places}
        self._places |= {each: n for n in places for each in segment.select_message_ids([n])}
        self._facts = {f"f{n}": fact.id for n, fact in enumerate(known, 1)} | {fact.id: fact.id for fact in known}
        self.nuggets = tuple(each for n, said in enumerate(reply.nuggets) if (each := self._check_nugget(said, n)))
        self.proposals = tuple(filter(None, map(self._check_proposal, reply.facts)))
        said, kept = len(reply.nuggets) + len(reply.facts), len(self.nuggets) + len(self.proposals)
        self.refused = said - kept - self.hidden
        """Nuggets and facts that say nothing, or that name no source message."""

    def _check_nugget(self, said: NuggetOut, n: int) -> Nugget | None:
        """Return the checked nugget; None if it has no source, says nothing, or is not for all members."""
        sources = self._find_sources(said.source_message_ids)
        analysis = truncate_text(self._clean_text(said.detailed_analysis), _MAX_ANALYSIS)
        topic = truncate_text(collapse_whitespace(self._clean_text(said.topic)), _MAX_TOPIC)
        if not sources or not _has_content(analysis) or not _has_content(topic):
            return None
        summary = collapse_whitespace(self._clean_text(said.topic_summary))
        keywords = self._check_keywords(said.keywords)
        # Each field by itself: no sentence continues in the next field.
        if any(rate_account_text(each) != "shared" for each in (topic, summary, analysis, " ".join(keywords))):
            self.hidden += 1
            return None
        segment = self._segment
        people = {self._pseudonyms.labels[each] for each in sources}
        return Nugget(
            # A second extraction gives the same id, so that links keep working.
            id=NuggetId(str(uuid5(NAMESPACE_URL, f"nugget {segment.id} {segment.content_hash} {n}"))),
            conversation_id=segment.id,
            topic=topic,
            timestamp=segment.last_message_at,
            topic_summary=truncate_text(summary, _MAX_SUMMARY) or topic,
            detailed_analysis=analysis,
            status=self._check_status(said.status, sources),
            keywords=keywords,
            source_message_ids=segment.select_message_ids(sources),
            user_ids_involved=tuple(sorted(people, key=lambda label: int(label.removeprefix("User_")))),
            guild_id=segment.guild_id,
            channel_id=segment.channel_id,
        )

    def _check_proposal(self, said: FactOut) -> FactProposal | None:
        """Return the checked proposal; None if it says nothing, or names no source."""
        sources = self._find_sources(said.source_message_ids)
        content = collapse_whitespace(self._make_impersonal(said.content))
        if not sources or not _has_content(self._pseudonyms.conceal(_remove_unprintable(said.content))):
            return None
        return FactProposal(
            category=said.category,
            content=content,
            summary=collapse_whitespace(self._make_impersonal(said.summary)),
            visibility=said.visibility,
            confidence=said.confidence,
            sentiment=said.sentiment,
            context_snippet=self._quote_source(sources, said.note),
            duplicate_of=self._find_fact_id(said.duplicate_of),
            supersedes=self._find_fact_id(said.supersedes),
        )

    def _find_sources(self, ids: Sequence[str]) -> list[int]:
        found: set[int] = set()
        for each in dict.fromkeys(ids):
            place = self._places.get(each.strip())
            if place is None or not self._segment.ours.isdisjoint(self._segment.select_message_ids([place])):
                self.unknown_ids += 1
            else:
                found.add(place)
        return sorted(found)

    def _check_status(self, claimed: NuggetStatus, sources: Sequence[int]) -> NuggetStatus:
        """Return the status: only a team member's message can be the source of a FACT."""
        taught = any(self._segment.turns[n].speaker == "Team" for n in sources)
        return "COMMUNITY_OPINION" if claimed == "FACT" and not taught else claimed

    def _clean_text(self, text: str) -> str:
        return mask_secrets(self._pseudonyms.conceal_model_text(_remove_contact_details(text))).text.strip()

    def _make_impersonal(self, text: str) -> str:
        return self._pseudonyms.conceal_with_roles(_remove_contact_details(text))

    def _check_keywords(self, said: Sequence[str]) -> tuple[str, ...]:
        kept: dict[str, str] = {}
        for each in said:
            keyword = collapse_whitespace(self._clean_text(each))
            if _has_content(keyword) and len(keyword) <= _MAX_KEYWORD:
                kept.setdefault(keyword.casefold(), keyword)
        return tuple(kept.values())[:_MOST_KEYWORDS]

    def _quote_source(self, sources: Sequence[int], note: str) -> str:
        """Quote the last source, followed by the model's note."""
        said = truncate_text(collapse_whitespace(self._clean_text(self._segment.turns[sources[-1]].text)), _MAX_SNIPPET)
        noted = truncate_text(collapse_whitespace(self._clean_text(note)), _MAX_SNIPPET // 2)
        return f"{said} [{noted}]" if noted else said

    def _find_fact_id(self, said: str) -> str | None:
        """Return the fact's id; for a fact that was not in the prompt, an id that no fact has."""
        said = said.strip()
        return self._facts.get(said, _NOT_SHOWN) if said else None


def _remove_contact_details(text: str) -> str:
    """Remove e-mail addresses and unprintable characters, even where the archive keeps them."""
    # Clean first: invisible characters can split an address.
    return mask_secrets(_remove_unprintable(text), secrets=False, emails=True).text


def _has_content(text: str) -> bool:
    """Whether the text says more than masked names."""
    return any(map(str.isalnum, LABEL.sub("", text).replace(NAMELESS, "")))


def _remove_unprintable(text: str) -> str:
    """Remove unprintable characters."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cs"})
