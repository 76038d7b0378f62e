"""From an answer to messages on Discord: what they say, and how each of them gets there exactly once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct

from intern.conversations.context import History
from intern.domain import ChannelId, ChatMessage, Citation, MessageId, Reply, ReplyTarget
from intern.errors import DiscordRefusedError, DiscordUnknownOutcomeError
from intern.observe.log import get_logger
from intern.text.splitting import split_message

_log = get_logger(__name__)

_THREAD_NAME_LIMIT = 100
_TITLE_LIMIT = 80
_PAGE = 100  # what Discord gives at most
_PAGES = 5  # how far we look for a message of ours that may have been posted


class Outlet(Protocol):
    """The way out: both calls raise the DiscordError family."""

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str, /) -> ChannelId:
        """The thread that hangs on a message; made if there is none."""
        ...

    async def send(self, channel_id: ChannelId, text: str, nonce: str, /) -> MessageId:
        """Post a message that pings nobody and shows no previews. For some minutes, a nonce posts only once."""
        ...


class LedgerPart(Protocol):
    """One message of a reply, as the ledger holds it."""

    @property
    def n(self) -> int:
        """From 0, in reading order."""
        ...

    @property
    def text(self) -> str:
        """At most 2,000 characters."""
        ...

    @property
    def nonce(self) -> str:
        """Always the same for the same question and `n`."""
        ...

    @property
    def message_id(self) -> MessageId | None:
        """None until Discord confirmed the message."""
        ...


class LedgerPost(Protocol):
    """A reply, as the ledger holds it."""

    @property
    def question_id(self) -> MessageId:
        """The message that the reply answers."""
        ...

    @property
    def channel_id(self) -> ChannelId:
        """Where the question stands."""
        ...

    @property
    def target(self) -> ReplyTarget:
        """Whether a thread has to be made."""
        ...

    @property
    def parts(self) -> Sequence[LedgerPart]:
        """All of them, sent or not."""
        ...

    @property
    def thread_id(self) -> ChannelId | None:
        """Where the parts go; None while the thread may still have to be made."""
        ...

    @property
    def state(self) -> Literal["open", "finished", "dropped"]:
        """Whether there is anything left to do."""
        ...


class Ledger(Protocol):
    """What is to be posted, on disk before Discord hears of it. All methods raise KnowledgeError."""

    async def begin(
        self, question_id: MessageId, channel_id: ChannelId, target: ReplyTarget, parts: Sequence[str], /
    ) -> LedgerPost:
        """Keep all parts of a reply. A question that has a post already gets that one, unchanged."""
        ...

    async def thread_made(self, question_id: MessageId, thread_id: ChannelId, /) -> None:
        """The parts go there."""
        ...

    async def part_sent(self, question_id: MessageId, n: int, message_id: MessageId, /) -> None:
        """Discord holds part `n` as this message."""
        ...

    async def finished(self, question_id: MessageId, /) -> None:
        """All of the reply stands in its thread."""
        ...

    async def dropped(self, question_id: MessageId, reason: str, /) -> None:
        """The reply will not be posted, or not further."""
        ...

    async def get(self, question_id: MessageId, /) -> LedgerPost | None:
        """The post of a question, whatever became of it."""
        ...

    async def unfinished(self) -> Sequence[LedgerPost]:
        """What is still to be posted, wholly or in part, oldest first."""
        ...


class PostOutcome(Struct, frozen=True, kw_only=True):
    """What became of a reply."""

    status: Literal["posted", "already_posted", "dropped"]
    reason: str = ""
    """Why it was dropped: `question_deleted`, `team_answered`, `refused`."""
    thread_id: ChannelId | None = None


async def post(reply: Reply, outlet: Outlet, ledger: Ledger, history: History) -> PostOutcome:
    """Post a reply, or finish posting it. One question gets at most one reply, however often this is called.

    Raises DiscordUnavailableError or DiscordUnknownOutcomeError where calling again later is worthwhile, KnowledgeError
    where the ledger cannot be used.
    """
    question = reply.question
    known = await ledger.get(question.id)
    begun = known or await ledger.begin(question.id, question.channel_id, reply.target, reply_parts(reply))
    return await _Delivery(begun, outlet, ledger, history, fresh=known is None).run(question.text)


async def resume(outlet: Outlet, ledger: Ledger, history: History) -> int:
    """Finish all replies that the ledger holds half posted, and say how many there were. Raises as `post` does."""
    begun = await ledger.unfinished()
    for entry in begun:
        await _Delivery(entry, outlet, ledger, history, fresh=False).run(None)
    return len(begun)


def thread_name(question: str) -> str:
    """A thread's name for a question: one line of 1 to 100 characters, without mentions and markup."""
    text = re.sub(r"<a?:(\w+):\d+>", r":\1:", question[:1000])  # a custom emoji
    text = re.sub(r"<[@#/][^>\n]{1,100}>|<t:-?\d+(?::\w)?>|<id:\w+>", " ", text)
    text = re.sub(r"@(?=everyone|here)", "", text)
    text = re.sub(r"[`*~|\\]+|^\s*(?:>|#{1,3}\s|-#\s)+", " ", text, flags=re.MULTILINE)
    line = " ".join("".join(filter(_shows, text)).split())
    if not any(character.isalnum() for character in line):
        return "Answer"
    return _cut(line, _THREAD_NAME_LIMIT)


def reply_parts(reply: Reply) -> list[str]:
    """The messages that a reply consists of: its text, then its sources. Only what is cited can be clicked."""
    links = {url for citation in reply.citations if (url := _url_of(citation))}
    whole = "\n\n".join(filter(str.strip, (unlinked(reply.text, links), _sources(reply.citations))))
    # A cut may fall into a code span and so lay bare what it held; hence the second look at each part.
    return [piece for part in split_message(whole) for piece in split_message(unlinked(part, links))]


# What Discord's own parser takes for code, an escape, or something to click, in its order of precedence. Whatever it
# takes for code is left alone; elsewhere, no link remains that is not among the allowed ones.
_TOKENS = re.compile(
    r"(?P<escape>\\[^0-9A-Za-z\s])"
    r"|(?P<code>```(?:[a-z0-9_+\-.#]+?\n)?\n*[^\n][\s\S]*?\n*```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`))"
    r"|(?P<lone>`+)"  # opens no code: neither does a shorter run of the same ticks
    r"|(?P<masked>\[(?P<label>[^\[\]\n]*)\]\(\s*<?(?P<target>[^\s()<>]*:[^\s()<>]*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\))"
    r"|(?P<auto><(?P<inner>[^<>\s]+(?::/|@)[^<>\s]*)>)"
    r"|(?P<bare>(?:[a-z][a-z0-9+.-]{0,30}:|(?<![:/\w])(?=discord))"
    r"(?://|(?:discord(?:app)?\.(?:gg|com/invite)/))[^\s<]+)"
    r"|(?P<seam>\](?=\())",
    re.IGNORECASE,
)
_TRAILING = ".,:;!?\"')]}*_~|"


def unlinked(text: str, allowed: Collection[str]) -> str:
    """The text with each link that is not allowed shown as code, without its `https://`."""
    for _ in range(3):
        cleaned = _TOKENS.sub(lambda token: _token(token, allowed), text)
        if cleaned == text:
            return text
        text = cleaned
    # Markup so tangled that each pass lays bare something new: no scheme, no link.
    return text.replace("://", ": //").replace("](", "] (")


def _token(token: re.Match[str], allowed: Collection[str]) -> str:
    whole = token[0]
    match token.lastgroup:
        case "masked":
            if token["target"] in allowed and "/" not in token["label"]:
                return whole
            return f"{unlinked(token['label'], allowed)} ({_as_code(token['target'])})".lstrip()
        case "auto":
            return whole if token["inner"] in allowed else _as_code(token["inner"])
        case "bare":
            url = whole.rstrip(_TRAILING)
            return whole if url in allowed else _as_code(url) + whole[len(url) :]
        case "seam":
            return "] "
        case _:
            return whole


def _as_code(url: str) -> str:
    bare = re.sub(r"^(?:https?:)?[/\\]+", "", url.replace("`", ""), flags=re.IGNORECASE)
    return f"`{bare or 'link'}`"


def _sources(citations: Sequence[Citation]) -> str:
    lines = dict.fromkeys(_source(citation) for citation in citations)
    if not lines:
        return ""
    return "\n".join(["Sources:", *(f"- {line}" for line in lines)])


def _source(citation: Citation) -> str:
    """Title, id and link of a source; of a web page the id is the link."""
    url = _url_of(citation)
    title = _plain(citation.title)
    name = _plain(citation.source_id)
    shown = [title] if title and title != name else []
    if url and citation.source_id.endswith(url):
        return " ".join([*shown, f"<{url}>"])
    shown.append(f"(`{name}`)" if shown else f"`{name}`")
    return " ".join([*shown, *([f"<{url}>"] if url else [])])


def _url_of(citation: Citation) -> str | None:
    url = citation.url or ""
    return url if re.fullmatch(r"https?://[^\s<>`]+", url, re.IGNORECASE) else None


def _plain(text: str) -> str:
    """Somebody's title or file name on one line, with nothing in it that Discord reads as markup."""
    line = " ".join("".join(filter(_shows, re.sub(r"[`*~|\\<>\[\]]", "", text))).split())
    return _cut(re.sub(r"(?i)(?:https?:)?//", "", line), _TITLE_LIMIT)


def _shows(character: str) -> bool:
    """False for what has no width or turns the line around; spaces of all kinds count as shown."""
    return character.isspace() or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn"}


def _cut(line: str, limit: int) -> str:
    """At most `limit` UTF-16 units, the narrowest way to count; cut at a word where one ends near."""
    if _units(line) <= limit:
        return line
    while _units(line) > limit - 1:
        line = line[: max(0, min(len(line) - 1, limit - 1))]
    head, _, tail = line.rpartition(" ")
    return (head if head and len(tail) < limit // 4 else line).rstrip(" ,;:.-") + "…"


def _units(line: str) -> int:
    return len(line.encode("utf-16-le", "surrogatepass")) // 2


@dataclass
class _Delivery:
    """One try to bring one reply to Discord."""

    begun: LedgerPost
    outlet: Outlet
    ledger: Ledger
    history: History
    fresh: bool
    """Nobody can have posted any of it before."""
    sent: set[MessageId] = field(default_factory=set[MessageId])

    async def run(self, question: str | None) -> PostOutcome:
        """Post what is not posted yet. `question` names the thread; None: read it on Discord, if need be."""
        begun = self.begun
        if begun.state != "open":
            return PostOutcome(status="already_posted", reason=begun.state, thread_id=begun.thread_id)
        if reason := await self._obstacle():
            return await self._drop(reason)
        try:
            thread = begun.thread_id or await self._thread(question)
            await self._send_all(thread)
        except DiscordRefusedError as error:
            _log.warning("reply_refused", message_id=begun.question_id, error=str(error))
            return await self._drop("refused")
        await self.ledger.finished(begun.question_id)
        return PostOutcome(status="posted", thread_id=thread)

    async def _drop(self, reason: str) -> PostOutcome:
        await self.ledger.dropped(self.begun.question_id, reason)
        return PostOutcome(status="dropped", reason=reason)

    async def _obstacle(self) -> str:
        """Why not to post any more, by one look at the question's channel; empty if nothing stands against it."""
        question_id = self.begun.question_id
        try:
            said = await self.history.after(self.begun.channel_id, MessageId(str(int(question_id) - 1)), limit=_PAGE)
        except DiscordRefusedError:
            said = ()  # the channel is gone, or closed to us
        if not any(message.id == question_id for message in said):
            return "question_deleted"
        if any(part.message_id for part in self.begun.parts):
            return ""  # half an answer helps nobody
        return "team_answered" if any(map(self._answers, said)) else ""

    def _answers(self, message: ChatMessage) -> bool:
        if message.author.type != "team_member" or message.id == self.begun.question_id:
            return False
        return self.begun.target == "in_place" or message.reply_to == self.begun.question_id

    async def _thread(self, question: str | None) -> ChannelId:
        channel, message_id = self.begun.channel_id, self.begun.question_id
        if self.begun.target == "in_place":
            return channel
        if question is None:
            message = await self.history.message(channel, message_id)
            question = message.text if message else ""
        name = thread_name(question)
        try:
            thread = await self.outlet.start_thread(channel, message_id, name)
        except DiscordUnknownOutcomeError:
            # A message has one thread at most: asking again is harmless.
            thread = await self.outlet.start_thread(channel, message_id, name)
        await self.ledger.thread_made(message_id, thread)
        return thread

    async def _send_all(self, thread: ChannelId) -> None:
        self.sent = {part.message_id for part in self.begun.parts if part.message_id}
        # An earlier try may have posted the next part without hearing of it, longer ago than a nonce protects.
        unsure = not self.fresh
        for part in self.begun.parts:
            if part.message_id:
                continue
            message_id = await self._find(part, thread) if unsure else None
            unsure = False
            message_id = message_id or await self._send(part, thread)
            self.sent.add(message_id)
            await self.ledger.part_sent(self.begun.question_id, part.n, message_id)

    async def _send(self, part: LedgerPart, thread: ChannelId) -> MessageId:
        try:
            return await self.outlet.send(thread, part.text, part.nonce)
        except DiscordUnknownOutcomeError:
            return await self._find(part, thread) or await self.outlet.send(thread, part.text, part.nonce)

    async def _find(self, part: LedgerPart, thread: ChannelId) -> MessageId | None:
        """The message after the question that says this part already, if there is one."""
        cursor = self.begun.question_id
        for _ in range(_PAGES):
            page = await self.history.after(thread, cursor, limit=_PAGE)
            for message in page:
                if message.author.is_self and message.id not in self.sent and message.text.strip() == part.text.strip():
                    return message.id
            if not page:
                break
            cursor = page[-1].id
        return None
