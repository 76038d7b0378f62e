"""From an answer to messages on Discord: what they say, and how each of them gets there exactly once."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from intern.chat.addressing import named_by
from intern.chat.context import History
from intern.chat.options import STILL_WAITED_FOR
from intern.chat.outgoing import Outgoing
from intern.chat.splitting import split_message
from intern.core.clock import Clock
from intern.core.errors import (
    DiscordError,
    DiscordNotFoundError,
    DiscordRefusedError,
    DiscordUnavailableError,
    DiscordUnknownOutcomeError,
    KnowledgeError,
)
from intern.core.flow import Reply, ReplyTarget
from intern.core.ids import ChannelId, MessageId, RoleId, UserId, by_age, snowflake_time
from intern.core.log import get_logger
from intern.core.messages import Button, ChatMessage, Citation

_log = get_logger(__name__)

_THREAD_NAME_LIMIT = 100
_TITLE_LIMIT = 80
_PAGE = 100  # what Discord gives at most
_PAGES = 5  # how far we look: for a message of ours that may have been posted, from a question's beginning to its end

NO_LONGER = MessageId(str((1 << 63) - 1))
"""A snowflake after all others: whatever the asker adds, it is not waited for."""


class Outlet(Protocol):
    """The way out: all calls raise the DiscordError family."""

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str, /) -> ChannelId:
        """The thread that hangs on a message; made if there is none."""
        ...

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        /,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        """Post a message that shows no previews and pings nobody but `mention_role`, where the text mentions it.

        For some minutes, a nonce posts only once.
        """
        ...

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str, /) -> None:
        """Replace a message of ours by a text, without buttons."""
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

    @property
    def reason(self) -> str:
        """Why it was dropped, or is but a word on why there is no answer."""
        ...

    @property
    def covers(self) -> Collection[MessageId]:
        """All messages that the reply is for."""
        ...

    @property
    def called(self) -> bool:
        """Its asker called the bot."""
        ...

    @property
    def notice(self) -> bool:
        """It says why there is no answer."""
        ...

    @property
    def changed_at(self) -> datetime:
        """When something happened to it last (UTC)."""
        ...

    @property
    def buttons(self) -> tuple[Button, ...]:
        """Under the last part."""
        ...

    @property
    def mention_role(self) -> RoleId | None:
        """Whom the last part pings."""
        ...


class Ledger(Protocol):
    """What is to be posted, on disk before Discord hears of it. All methods raise KnowledgeError."""

    async def begin(
        self,
        question_id: MessageId,
        channel_id: ChannelId,
        target: ReplyTarget,
        parts: Sequence[str],
        /,
        *,
        covers: Sequence[MessageId] = (),
        called: bool = False,
        notice: bool = False,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
        citations: Sequence[Citation] = (),
        asked: str = "",
        author_id: UserId | None = None,
    ) -> LedgerPost:
        """Keep all that it takes to post a reply. A question that has a post already gets that one, unchanged.

        It takes the place of posts for messages in `covers` that nobody has seen anything of.
        """
        ...

    async def replaced(
        self, question_id: MessageId, parts: Sequence[str], /, *, reason: str, in_place: bool = False
    ) -> LedgerPost:
        """A post of which nobody has seen anything becomes a word on why there is no answer, and the reason."""
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

    async def recalled(self, question_id: MessageId, /) -> None:
        """None of the reply was posted, and none will be; the question may get another one."""
        ...

    async def get(self, question_id: MessageId, /) -> LedgerPost | None:
        """The post that a message got, alone or with others, whatever became of it."""
        ...

    async def holds(self, message_id: MessageId, /) -> bool:
        """Whether this message of ours is known as a part of any reply."""
        ...

    async def unfinished(self) -> Sequence[LedgerPost]:
        """What is still to be posted, wholly or in part, oldest first."""
        ...


class PostOutcome(Struct, frozen=True, kw_only=True):
    """What became of a reply."""

    status: Literal["posted", "already_posted", "dropped", "recalled", "held"]
    """`held`: not now, its asker is adding something. `recalled`: the question is asked anew, or was withdrawn."""
    reason: str = ""
    """Why it was dropped (`question_deleted`, `team_answered`, `not_public`, `refused`, `no_thread`, `too_old`,
    `empty`) or recalled, or why a word was posted in place of the answer (`no_thread`, `too_old`)."""
    notice: bool = False
    """What was posted says why there is no answer."""
    thread_id: ChannelId | None = None
    newest: MessageId | None = None
    """Where it is held: the asker's newest message."""


Ended = Callable[[LedgerPost, PostOutcome], Awaitable[None]]
"""Told what became of a reply."""


async def everywhere(_: ChannelId) -> bool:
    """Admits every channel."""
    return True


class Posting:
    """Posts replies by way of the ledger: doing it again is harmless."""

    def __init__(
        self,
        outlet: Outlet,
        ledger: Ledger,
        history: History,
        *,
        outgoing: Outgoing,
        clock: Clock,
        admits: Callable[[ChannelId], Awaitable[bool]] = everywhere,
        max_age: timedelta | None = None,
        late_word: str = "",
        no_thread_word: str = "",
    ) -> None:
        """`admits` says whether we may still speak in a channel: it may have turned private since somebody asked.

        What was begun longer than `max_age` ago, and nobody has seen any of, is not posted any more. Who called the bot
        gets the `late_word` then, and the `no_thread_word`, in place, where no thread can be opened.
        """
        self._outlet = outlet
        self._ledger = ledger
        self._history = history
        self._outgoing = outgoing
        self._clock = clock
        self._admits = admits
        self._max_age = max_age
        self._words = _Words(late_word, no_thread_word)

    async def post(self, reply: Reply, *, waited_for: MessageId | None = None) -> PostOutcome:
        """Post a reply, or finish posting it. One question gets at most one reply, however often this is called.

        A reply whose asker has written something newer than `waited_for` is held: that may be part of the question.
        Raises DiscordUnavailableError or DiscordUnknownOutcomeError where calling again later is worthwhile,
        KnowledgeError where the ledger cannot be used.
        """
        question = reply.question
        known = await self._room_for(question.id)
        begun = known or await self._ledger.begin(
            question.id,
            question.channel_id,
            reply.target,
            reply_parts(reply),
            covers=reply.settles,
            called=reply.called,
            notice=reply.notice,
            buttons=reply.buttons,
            mention_role=reply.mention_role,
            citations=reply.citations,
            asked=reply.asked,
            author_id=question.author.id,
        )
        delivery = self._delivery(begun, fresh=known is None)
        if begun.question_id != question.id and self._outgoing.taken_back(question.id):
            return await delivery.recall(question.id)  # the reply that took its place is on its way by itself
        return await delivery.run(reply, waited_for)

    async def _room_for(self, question_id: MessageId) -> LedgerPost | None:
        """The ledger's post for a question, if it has one that still counts.

        A reply to several messages may have been taken back because one of them was deleted. Until the poster comes to
        it, its row would stand in the way of the reply to what is left.
        """
        known = await self._ledger.get(question_id)
        if known is None or known.question_id == question_id or known.state != "open":
            return known
        if self._outgoing.taken_back(known.question_id) != "withdrawn":
            return known
        if await self._delivery(known, fresh=False).stands():
            return known
        await self._ledger.recalled(known.question_id)
        return None

    async def resume(self, ended: Ended) -> int:
        """Finish all replies that the ledger holds half posted, tell what became of each, and say how many there were.

        One that fails holds up no other. Raises as `post` does, when all were tried.
        """
        begun = await self._ledger.unfinished()
        failure: DiscordError | KnowledgeError | None = None
        for entry in begun:
            delivery = self._delivery(entry, fresh=False)
            try:
                outcome = await delivery.run(None, NO_LONGER)
            except (DiscordUnavailableError, DiscordUnknownOutcomeError, KnowledgeError) as error:
                failure = error
            else:
                await ended(entry, outcome)
        if failure:
            raise failure
        return len(begun)

    async def retract(self, question_id: MessageId, note: str) -> bool:
        """Edit each message of a posted answer to a note; false where nothing could be edited.

        A message that says so already is left alone, so calling it again edits nothing twice. Raises
        DiscordUnavailableError where calling again later is worthwhile, and KnowledgeError.
        """
        post = await self._ledger.get(question_id)
        if post is None or post.state != "finished" or post.notice or post.thread_id is None:
            return False
        said = False
        try:
            if not await self._admits(post.channel_id):
                return False
            for message_id in filter(None, (part.message_id for part in post.parts)):
                message = await self._history.message(post.thread_id, message_id)
                if message is None:
                    continue  # deleted
                if message.text.strip() != note.strip():
                    await self._outlet.rewrite(post.thread_id, message_id, note)
                said = True
        except DiscordRefusedError as error:
            _log.warning("retraction_refused", message_id=question_id, error=str(error))
        return said

    def _delivery(self, entry: LedgerPost, *, fresh: bool) -> _Delivery:
        return _Delivery(
            entry,
            self._outlet,
            self._ledger,
            self._history,
            self._outgoing,
            self._admits,
            self._words,
            fresh=fresh,
            late=self._is_late(entry),
            very_late=self._is_very_late(entry),
        )

    def _is_late(self, entry: LedgerPost) -> bool:
        if self._max_age is None:
            return False
        if entry.reason:  # a word on that it is too late is itself in time for longer
            return self._is_very_late(entry)
        return self._clock.now() - entry.changed_at > self._max_age

    def _is_very_late(self, entry: LedgerPost) -> bool:
        return self._clock.now() - snowflake_time(entry.question_id) > STILL_WAITED_FOR


def thread_name(question: str) -> str:
    """A thread's name for a question: one line of 1 to 100 characters, without mentions and markup."""
    # What is invisible goes first: it may part a mention.
    text = re.sub(r"<a?:(\w+):\d+>", r":\1:", "".join(filter(_shows, question[:1000])))  # a custom emoji
    text = re.sub(r"<[@#/][^>\n]{1,100}>|<t:-?\d+(?::\w)?>|<id:\w+>", " ", text)
    text = re.sub(r"@+(?=everyone|here)", "", text)
    text = re.sub(r"[`*~|\\]+|^\s*(?:>|#{1,3}\s|-#\s)+", " ", text, flags=re.MULTILINE)
    line = " ".join(text.split())
    if not any(character.isalnum() for character in line):
        return "Answer"
    return _cut(line, _THREAD_NAME_LIMIT)


def reply_parts(reply: Reply) -> list[str]:
    """The messages that a reply consists of."""
    return split_message(reply.text) if reply.notice else parts_of(reply.text, reply.citations)


def parts_of(text: str, citations: Sequence[Citation] = ()) -> list[str]:
    """The messages that say a text, and then its sources. Only what is cited can be clicked."""
    links = {url for citation in citations if (url := _url_of(citation))}
    whole = "\n\n".join(filter(str.strip, (unlinked(text, links), _sources(citations))))
    # A cut may fall into a code span and so lay bare what it held; hence the second look at each part.
    return [piece for part in split_message(whole) for piece in split_message(unlinked(part, links))]


# Pages that Discord shows as a card of their own, without any scheme before them.
_CARDS = r"discord(?:app)?\.(?:gg|new|gift|com/(?:invite|template|gifts?))"
# What Discord's own parser takes for code, an escape, or something to click, in its order of precedence. Whatever it
# takes for code is left alone (but see `_code_stays`); elsewhere, no link remains that is not among the allowed ones.
_TOKENS = re.compile(
    r"(?P<escape>\\[^0-9A-Za-z\s])"
    r"|(?P<code>```(?:[a-z0-9_+\-.#]+?\n)?\n*[^\n][\s\S]*?\n*```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`))"
    r"|(?P<lone>`+)"  # opens no code: neither does a shorter run of the same ticks
    r"|(?P<masked>\[(?P<label>[^\[\]\n]*)\]\(\s*<?(?P<target>[^\s()<>]*:[^\s()<>]*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\))"
    r"|(?P<auto><(?P<inner>[^<>\s]+(?::/|@)[^<>\s]*|(?:(?:tel|sms):|\+)[0-9+][^<>\s]*)>)"
    r"|(?P<bare>(?:[a-z][a-z0-9+.-]{0,30}:|(?<![:/0-9a-z])(?=discord))(?://|" + _CARDS + r"/)[^\s<]+)"
    r"|(?P<seam>\](?=\())",
    re.IGNORECASE,
)
_TRAILING = ".,:;!?\"')]}*_~|"


def unlinked(text: str, allowed: Collection[str]) -> str:
    """The text with each link that is not allowed shown as code, without its `https://`."""
    for _ in range(3):
        cleaned = _TOKENS.sub(partial(_token, allowed=allowed, code_stays=_code_stays(text)), text)
        if cleaned == text:
            return text
        text = cleaned
    # Markup so tangled that each pass lays bare something new: no scheme, no link.
    return _inert(text)


def _token(token: re.Match[str], *, allowed: Collection[str], code_stays: bool) -> str:
    whole = token[0]
    match token.lastgroup:
        case "masked":
            return _masked(token, allowed)
        case "auto":
            return whole if token["inner"] in allowed else _as_code(token["inner"])
        case "bare":
            url = whole.rstrip(_TRAILING)
            return whole if url in allowed else _as_code(url) + whole[len(url) :]
        case "seam":
            return "] "
        case "code" if not code_stays:
            return _inert(whole)
        case _:
            return whole


def _masked(token: re.Match[str], allowed: Collection[str]) -> str:
    if token["target"] in allowed and "/" not in token["label"]:
        return token[0]
    return f"{unlinked(token['label'], allowed)} ({_as_code(token['target'])})".lstrip()


# What Discord pairs up, in this order, before it looks for code inside.
_SPANS = re.compile(
    r"\\[^0-9A-Za-z\s]"
    r"|```[\s\S]+?```|(?P<ticks>`+)[\s\S]*?[^`](?P=ticks)(?!`)"
    r"|(?P<pair>\*\*(?:\\.|[^\\])+?\*\*(?!\*)|\*(?!\s)(?:\\.|\*\*|[^*\\])+?(?<!\s) {0,2}\*(?!\*)"
    r"|__(?:\\.|[^\\])+?__(?!_)|_(?:\\.|__|[^_\\])+?_(?![0-9A-Za-z_])"
    r"|~~.+?~~|\|\|.+?\|\||\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()",
    re.DOTALL,
)
# Each may begin within a quote or a pair.
_HEADING = re.compile(r"^[ >*_~|]*(?:#{1,3}|-#)\s+[^\n]*\Z", re.MULTILINE)
_ITEM = re.compile(r"^[ >*_~|]*(?:[*-]|\d+\.) +[^\n]*(?:\n [^\n]*)*\Z", re.MULTILINE)


def _code_stays(text: str) -> bool:
    """Whether Discord, too, takes for code what we do: nothing that begins before it may end in it.

    Emphasis may, and so may the line that a heading, a quote or a list item is. On empty fences clients do not agree.
    Where one piece of code is none, all that follow may begin where they seem to end.
    """
    codes = [token for token in _TOKENS.finditer(text) if token.lastgroup == "code"]
    return not (
        any(re.match(r"```[^\n`]*\s*```", code[0]) for code in codes)
        or any(_ends_with_its_line(text[: code.start()], code[0]) for code in codes)
        or any(_cuts(span, codes) for span in _spans(text, codes))
    )


def _ends_with_its_line(before: str, code: str) -> bool:
    further = code.split("\n")[1:]
    if not further or _HEADING.search(before):
        return bool(further)
    if _ITEM.search(before):
        return not all(line.startswith(" ") for line in further)
    quoted = re.match(r"[ *_~|]*> ", before.rpartition("\n")[2])
    return bool(quoted) and not all(re.match(" *> ", line) for line in further)


def _spans(text: str, codes: Sequence[re.Match[str]]) -> Iterator[tuple[int, int]]:
    """Where each pair and each piece of code begins and ends, as far as it may matter to `codes`."""
    waiting = [(0, len(text))] if codes else []
    while waiting:
        at, end = waiting.pop()
        while (found := _SPANS.search(text, at, end)) and found.start() < codes[-1].start():
            yield found.span()
            at = found.end()
            if found.lastgroup == "pair" and any(found.start() < code.start() < at for code in codes):
                width = 2 if found[0][:2] in {"**", "__", "~~", "||"} else 1
                waiting.append((found.start() + width, at - width))


def _cuts(span: tuple[int, int], codes: Sequence[re.Match[str]]) -> bool:
    return any(span[0] < code.start() < span[1] < code.end() for code in codes)


def _inert(text: str) -> str:
    """The text with nothing in it that can be clicked, wherever it may stand."""
    return re.sub(rf"(?i):(?=//)|\](?=\()|<(?=[^\s<>]+@|\w+:/|tel:|sms:|\+)|{_CARDS}(?=/)", r"\g<0> ", text)


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
    title = plain_line(citation.title)
    name = plain_line(citation.source_id)
    shown = [title] if title and title != name else []
    if url and citation.source_id.endswith(url):
        return " ".join([*shown, f"<{url}>"])
    shown.append(f"(`{name}`)" if shown else f"`{name}`")
    return " ".join([*shown, *([f"<{url}>"] if url else [])])


def _url_of(citation: Citation) -> str | None:
    url = citation.url or ""
    return url if re.fullmatch(r"https?://[^\s<>`]+", url, re.IGNORECASE) else None


def plain_line(text: str) -> str:
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


class _Words(NamedTuple):
    """What is said in place of an answer; nothing where it is empty."""

    late: str
    no_thread: str


@dataclass
class _Delivery:
    """One try to bring one reply to Discord."""

    begun: LedgerPost
    outlet: Outlet
    ledger: Ledger
    history: History
    outgoing: Outgoing
    admits: Callable[[ChannelId], Awaitable[bool]]
    words: _Words
    fresh: bool
    """Nobody can have posted any of it before."""
    late: bool
    """Nobody waits for the answer any more."""
    very_late: bool
    """Nobody waits for any word any more."""
    sent: set[MessageId] = field(default_factory=set[MessageId])

    async def run(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome:
        """Post what is not posted yet. Without the reply itself, what else it takes is read on Discord."""
        begun = self.begun
        if begun.state != "open":
            return PostOutcome(status="already_posted", reason=begun.reason, thread_id=begun.thread_id)
        try:
            # Of half an answer, the rest follows whatever happened since: half an answer helps nobody.
            against = None if await self.stands() else await self._weigh(reply, waited_for)
            return against or await self._deliver(reply)
        except DiscordRefusedError as error:  # gone, or closed to us: not the same as a question that is deleted
            _log.warning("reply_refused", message_id=begun.question_id, error=str(error))
            return await self.drop(self.begun.reason or "refused")

    async def stands(self) -> bool:
        """Whether a part of it stands on Discord already."""
        return any(part.message_id for part in self.begun.parts) or await self._stands_unheard()

    async def _stands_unheard(self) -> bool:
        """Whether an earlier try posted the beginning and got no confirmation, so that it cannot be taken back."""
        begun = self.begun
        place = begun.channel_id if begun.target == "in_place" else begun.thread_id
        if self.fresh or not begun.parts or place is None:
            return False
        return await self._find(begun.parts[0], place) is not None

    async def _weigh(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome | None:
        """What stands against posting it now; None if nothing does, and from then on it cannot be taken back."""
        question_id = self.begun.question_id
        if self.outgoing.taken_back(question_id):
            return await self.recall(question_id)
        if self.late and not await self._say_instead(self.words.late, "too_old"):
            return await self.drop("too_old")
        if against := await self._look(reply, waited_for):
            return against
        return None if self.outgoing.leave(question_id) else await self.recall(question_id)

    async def _deliver(self, reply: Reply | None) -> PostOutcome:
        thread = await self._place(reply.question.text if reply else None)
        if thread is None:
            return await self.drop("no_thread")
        if not await self._send_all(thread):
            return await self.drop("not_public")
        begun = self.begun
        await self.ledger.finished(begun.question_id)
        return PostOutcome(status="posted", reason=begun.reason, notice=begun.notice, thread_id=thread)

    async def drop(self, reason: str) -> PostOutcome:
        """It will not be posted, or not further."""
        if self.outgoing.taken_back(self.begun.question_id):  # another reply may have taken its place in the ledger
            return await self.recall(self.begun.question_id)
        await self.ledger.dropped(self.begun.question_id, reason)
        return PostOutcome(status="dropped", reason=reason)

    async def _say_instead(self, word: str, reason: str, *, in_place: bool = False) -> bool:
        """From now on, this is what is to be posted to who called the bot; false where nothing is."""
        begun = self.begun
        if not (begun.called and word) or begun.reason or self.very_late:
            return False
        # It may stand there though nobody confirmed it: then it is what was said.
        if begun.parts and begun.thread_id and await self._find(begun.parts[0], begun.thread_id):
            return True
        if self.outgoing.taken_back(begun.question_id):  # as in `drop`; who asks us looks again before it leaves
            return True
        self.begun = await self.ledger.replaced(begun.question_id, [word], reason=reason, in_place=in_place)
        return True

    async def recall(self, question_id: MessageId) -> PostOutcome:
        """It was taken back: its question is asked anew, or gone."""
        await self.ledger.recalled(question_id)
        return PostOutcome(status="recalled", reason=self.outgoing.taken_back(question_id) or "")

    async def _look(self, reply: Reply | None, waited_for: MessageId | None) -> PostOutcome | None:
        """What stands against posting it now, by a look at the question's channel; None if nothing does."""
        question_id = self.begun.question_id
        asked = {question_id, *self.begun.covers, *(reply.settles if reply else ())}
        if reason := await self._bar():
            return await self.drop(reason)
        said = await self._said(asked)
        question = next((message for message in said if message.id == question_id), None)
        if question is None:
            return await self.drop("question_deleted")
        if await self._is_answered(question.author.id, said, asked):
            return await self.drop("team_answered")
        newest = _newest_of(question, said, asked)
        if newest and (waited_for is None or by_age(waited_for) < by_age(newest)):
            return PostOutcome(status="held", reason="asker_goes_on", newest=newest)
        return None

    async def _bar(self) -> str:
        """Why nobody needs to look; empty where somebody does."""
        if not self.begun.parts:
            return "empty"
        return "" if await self.admits(self.begun.channel_id) else "not_public"

    async def _said(self, asked: Collection[MessageId]) -> Sequence[ChatMessage]:
        """What was said since the first message of the question, and a page's worth from its last one on."""
        channel, last = self.begun.channel_id, self.begun.question_id
        said: list[ChatMessage] = []
        cursor = _before(min(asked, key=by_age))
        for _ in range(_PAGES):
            if cursor >= _before(last):
                break
            page = await self.history.after(channel, _id(cursor), limit=_PAGE)
            said += page
            # Discord's own messages are left out of a page, so one that is nearly full need not be the last.
            if len(page) < _PAGE // 2:
                return said
            cursor = int(page[-1].id)
        return [*said, *await self.history.after(channel, _id(_before(last)), limit=_PAGE)]

    async def _is_answered(self, asker: UserId, said: Sequence[ChatMessage], asked: Collection[MessageId]) -> bool:
        """Whether the team speaks: in the thread, by reply or mention, or in a thread that hangs on what was asked."""
        in_place = self.begun.target == "in_place"
        for message in said:
            if message.id in asked:
                if not in_place and message.thread_id and await self._team_speaks_in(message.thread_id, asker):
                    return True
            elif _is_of_team(message, asker) and (in_place or _is_for(message, asker, asked)):
                return True
        return False

    async def _team_speaks_in(self, thread: ChannelId, asker: UserId) -> bool:
        # It hangs on a message, whose id it has: nothing in it is older.
        said = await self._after(thread, MessageId(thread))
        return any(_is_of_team(message, asker) for message in said)

    async def _after(self, channel: ChannelId, message_id: MessageId) -> Sequence[ChatMessage]:
        try:
            return await self.history.after(channel, message_id, limit=_PAGE)
        except DiscordRefusedError:
            return ()  # the channel is gone, or closed to us

    async def _place(self, question: str | None) -> ChannelId | None:
        """Where the parts go; None where there is no place, and nobody is owed a word about that."""
        if self.begun.thread_id:
            return self.begun.thread_id
        try:
            return await self._thread(question)
        except DiscordNotFoundError:
            raise
        except DiscordRefusedError as error:
            _log.warning("thread_refused", message_id=self.begun.question_id, error=str(error))
            said = await self._say_instead(self.words.no_thread, "no_thread", in_place=True)
            return self.begun.channel_id if said else None

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

    async def _send_all(self, thread: ChannelId) -> bool:
        """False where the channel turned private before all was said."""
        self.sent = {part.message_id for part in self.begun.parts if part.message_id}
        # An earlier try may have posted the next part without hearing of it, longer ago than a nonce protects.
        unsure = not self.fresh
        for part in self.begun.parts:
            if part.message_id:
                continue
            if not await self.admits(self.begun.channel_id):
                return False
            message_id = await self._find(part, thread) if unsure else None
            unsure = False
            message_id = message_id or await self._sent(part, thread)
            self.sent.add(message_id)
            await self.ledger.part_sent(self.begun.question_id, part.n, message_id)
        return True

    async def _sent(self, part: LedgerPart, thread: ChannelId) -> MessageId:
        try:
            return await self._send(part, thread)
        except DiscordUnknownOutcomeError:
            return await self._find(part, thread) or await self._send(part, thread)

    async def _send(self, part: LedgerPart, thread: ChannelId) -> MessageId:
        if part.n < len(self.begun.parts) - 1:
            return await self.outlet.send(thread, part.text, part.nonce)
        return await self.outlet.send(
            thread, part.text, part.nonce, buttons=self.begun.buttons, mention_role=self.begun.mention_role
        )

    async def _find(self, part: LedgerPart, thread: ChannelId) -> MessageId | None:
        """The message after the question that says this part already, if there is one."""
        cursor = self.begun.question_id
        for _ in range(_PAGES):
            page = await self.history.after(thread, cursor, limit=_PAGE)
            for message in page:
                if not message.author.is_self or message.text.strip() != part.text.strip():
                    continue
                # Other replies in the thread may say the same: that there is no answer.
                if message.id not in self.sent and not await self.ledger.holds(message.id):
                    return message.id
            if not page:
                break
            cursor = page[-1].id
        return None


def _newest_of(question: ChatMessage, said: Sequence[ChatMessage], asked: Collection[MessageId]) -> MessageId | None:
    """Return the asker's newest message after the question that is neither part of it nor addressed to others."""
    asker = question.author.id
    others = {message.id for message in said if message.author.id != asker and not message.author.is_self}
    mine = [
        message.id
        for message in said
        if message.author.id == asker and message.id not in asked and message.reply_to not in others
    ]
    return max((each for each in mine if by_age(each) > by_age(question.id)), key=by_age, default=None)


def _is_for(message: ChatMessage, asker: UserId, asked: Collection[MessageId]) -> bool:
    return message.reply_to in asked or (message.reply_to is None and named_by(message) == asker)


def _is_of_team(message: ChatMessage, asker: UserId) -> bool:
    return message.author.type == "team_member" and message.author.id != asker


def _before(message_id: MessageId) -> int:
    return int(message_id) - 1


def _id(number: int) -> MessageId:
    return MessageId(str(number))
