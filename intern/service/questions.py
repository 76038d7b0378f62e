"""The questions of members: all with their outcomes, the details of one, and the open gaps.

A gap is a group of open questions that ask the same. An operator answers it in the name of the team, or dismisses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.captures import Capture, Turn
from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import MessageId, UserId, position_at, reply_conversation
from intern.core.text.similarity import group_similar_texts
from intern.service.job_kinds import CAPTURE, CLOSE_GAPS, GapClosing
from intern.service.recordings import RecordingDetails, Recordings
from intern.service.stores import build_message_link
from intern.settings.settings import Settings
from intern.stores.database import Database
from intern.stores.tables.answers import AnswerRecord, AnswerStore, GapState, QuestionChannel, QuestionFilter
from intern.stores.tables.citations import CitationStore, PostedCitation
from intern.stores.tables.feedback import FeedbackStore, Votes
from intern.stores.tables.jobs import GivesT, JobKind, TakesT
from intern.stores.tables.members import NameStore, RoleStore
from intern.stores.tables.outbox import Outbox

# For front ends, which use these to select questions.
__all__ = ["QuestionChannel", "QuestionFilter"]

PAGE = 50
"""The number of questions on a page."""

MAX_ANSWER_CHARS = 6_000
_ANSWERED_HERE = "page-"  # no message of Discord has such an id, so no link leads to it


class QuestionLine(Struct, frozen=True, kw_only=True):
    """A question in a list."""

    question: AnswerRecord
    votes: Votes
    sources: tuple[PostedCitation, ...]
    """The sources that its answer cites."""


class QuestionList(Struct, frozen=True, kw_only=True):
    """A page of the selected questions, newest first."""

    rows: tuple[QuestionLine, ...]
    total: int
    offset: int
    reasons: Mapping[str, int]
    """The number of all questions by reason for no answer; the reason is empty for answered ones."""
    places: tuple[QuestionChannel, ...]


class QuestionPage(Struct, frozen=True, kw_only=True):
    """All stored data of one question. At least one of `record` and `recording` is there."""

    question_id: MessageId
    record: AnswerRecord | None
    """Its words are not stored for chatter, `/ask`, or a question that is too old."""
    answer: str
    """The reply as posted; empty if none was posted, or its text was forgotten."""
    citations: tuple[PostedCitation, ...]
    votes: Votes
    link: str
    """The link to the message on Discord; empty if it is unknown or missing, as for a command."""
    recording: RecordingDetails | None
    """The newest recording of it."""

    @property
    def at(self) -> datetime | None:
        """The time of the latest event about it."""
        return self.record.changed_at if self.record else None

    @property
    def reason(self) -> str:
        """The reason for no answer; empty if there is one."""
        if self.record is None and self.recording is not None:
            return "" if self.recording.outcome == "answered" else self.recording.outcome
        return self.record.reason if self.record else ""


class GapList(Struct, frozen=True, kw_only=True):
    """Open questions, grouped by similarity."""

    groups: tuple[tuple[AnswerRecord, ...], ...]
    """The most frequent first; each newest first."""
    total: int
    """All groups."""
    questions: int
    """All questions in them."""
    team: Mapping[str, UserId]
    """The team members who may be named as the author of an answer, by name."""


class RunJob(Protocol):
    """Has a job done."""

    async def __call__(self, kind: JobKind[TakesT, GivesT], given: TakesT, /) -> GivesT | Literal["waiting"]:
        """Return the result of the job, or "waiting" if that takes too long."""
        ...


class AskedQuestions:
    """The questions of members in a database. Methods raise KnowledgeError."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        recordings: Recordings,
        run_job: RunJob,
        clock: Clock,
    ) -> None:
        """`run_job` has a job done."""
        self._settings, self._recordings, self._run_job, self._clock = settings, recordings, run_job, clock
        self._records, self._votes = AnswerStore(db, clock=clock), FeedbackStore(db, clock=clock)
        self._names, self._roles = NameStore(db), RoleStore(db, clock=clock)
        self._cited, self._posts = CitationStore(db, clock=clock), Outbox(db, clock=clock)
        self._grouped: tuple[tuple[str, ...], list[list[int]]] = ((), [])

    async def find(self, wanted: QuestionFilter, *, offset: int = 0, limit: int = PAGE) -> QuestionList:
        """Return some questions with votes and sources."""
        rows, total = await self._records.list_questions(wanted, limit, offset)
        ids = [each.question_id for each in rows]
        votes, cited = await self._votes.read_votes_each(ids), await self._cited.read_citations(ids)
        lines = (
            QuestionLine(question=q, votes=votes.get(q.question_id, Votes()), sources=cited.get(q.question_id, ()))
            for q in rows
        )
        reasons, places = await self._records.count_reasons(), await self._records.list_channels()
        return QuestionList(rows=tuple(lines), total=total, offset=offset, reasons=reasons, places=places)

    async def read_question(self, message_id: MessageId) -> QuestionPage:
        """Return a question by any of its messages or of the reply's. Raises ConfigError if no data is stored."""
        record = await self._records.find(message_id)
        question_id = record.question_id if record else message_id
        recorded = await self._recordings.find_for_question(question_id)
        if record is None and recorded is None:
            raise ConfigError(f"nothing is kept of a question {message_id[:40]!r}")
        post = await self._posts.get(question_id)
        told = post is not None and post.state == "finished"
        return QuestionPage(
            question_id=question_id,
            record=record,
            answer="\n".join(part.text for part in post.parts) if post is not None and told else "",
            citations=(await self._cited.read_citations([question_id])).get(question_id, ()),
            votes=await self._votes.read_votes(question_id),
            link=self._link(record, question_id),
            recording=recorded,
        )

    async def gaps(self, most: int) -> GapList:
        """Return the gaps, at most `most` of them."""
        groups = await self._group_questions()
        questions = sum(map(len, groups))
        return GapList(
            groups=tuple(groups[:most]), total=len(groups), questions=questions, team=await self._read_team()
        )

    async def _read_team(self) -> Mapping[str, UserId]:
        """Return the known team members by name; with the id, if others have the same name."""
        discord = self._settings.discord
        roles = discord.team_role_ids
        seen = await self._roles.read_recent() if roles else ()
        holders = {each.user_id for each in seen if not set(roles).isdisjoint(each.roles)}
        lost = {each.user_id for each in seen} - holders
        answered = [each for each in await self._names.read_team_ids() if each not in lost] if roles else []
        members = {*discord.team_member_ids, *holders, *answered}
        names = await self._names.read_names(members)
        called = {each: names.get(each, (each,))[0] for each in members}
        same = Counter(called.values())
        team = {name if same[name] == 1 else f"{name} ({each})": each for each, name in called.items()}
        return dict(sorted(team.items(), key=lambda member: member[0].casefold()))

    async def find_gap(self, question_id: MessageId) -> tuple[AnswerRecord, ...]:
        """Return the gap with this question. Raises ConfigError if there is none."""
        for group in await self._group_questions():
            if any(each.question_id == question_id for each in group):
                return group
        raise ConfigError("this question is no gap any more: it was answered, dismissed or deleted")

    async def close_gap(self, question_id: MessageId) -> None:
        """Close the gap with this question. Raises ConfigError as `find_gap` does."""
        await self._close(await self.find_gap(question_id), "dismissed")

    async def answer_gap(self, question_id: MessageId, text: str, by: str) -> None:
        """Answer the gap with this question in the name of a team member, by name or id, and capture that answer.

        Raises ConfigError for an impossible answer, and the ModelError family.
        """
        text, team = text.strip(), await self._read_team()
        author = team.get(by, UserId(by))
        if not text or len(text) > MAX_ANSWER_CHARS:
            raise ConfigError(f"write an answer of at most {MAX_ANSWER_CHARS} characters")
        if author not in team.values():
            raise ConfigError("choose a member of the team who answers")
        group, now = await self.find_gap(question_id), self._clock.now()
        asked = next(each for each in group if each.question_id == question_id)
        said = [pair for pair in zip(asked.message_ids, asked.texts or (), strict=True) if pair[1]]
        asker = asked.author_id or UserId("")
        capture = Capture(
            conversation_id=reply_conversation(asked.message_ids[0]),
            turns=(*(Turn("User", words) for _, words in said), Turn("Team", self._settings.kb.mask_text(text))),
            message_ids=(*(each for each, _ in said), MessageId(f"{_ANSWERED_HERE}{position_at(now)}")),
            author_ids=(*[asker] * len(said), author),
            answered_at=now,
            guild_id=asked.guild_id,
            channel_id=asked.channel_id,
        )
        if await self._run_job(CAPTURE, capture) is None:
            raise ConfigError("nothing was captured, as the question was deleted meanwhile")
        await self._close(group, "answered")

    async def _close(self, gap: Sequence[AnswerRecord], how: GapState) -> None:
        ids = tuple(each.question_id for each in gap)
        await self._run_job(CLOSE_GAPS, GapClosing(question_ids=ids, how=how))

    async def format_gaps(self) -> str:
        """Return all gaps as a Markdown document: a heading and its questions for each."""
        groups = await self._group_questions()
        lines = ["# Questions without an answer", "", f"{self._clock.now():%Y-%m-%d}. Secrets are masked.", ""]
        for group in groups:
            times = "once" if len(group) == 1 else f"{len(group)} times"
            lines += [f"## {_one_line(group[0].text)}", "", f"Asked {times}, last {group[0].at:%Y-%m-%d}."]
            lines += ["", *(f"- {_one_line(each.text)}" for each in group[1:]), *([""] if group[1:] else [])]
        return "\n".join(lines)

    async def _group_questions(self) -> list[tuple[AnswerRecord, ...]]:
        questions = await self._records.list_open()
        texts = tuple(each.text for each in questions)
        if texts != self._grouped[0]:  # it takes a while, and mostly finds nothing new
            self._grouped = (texts, await run_sync(group_similar_texts, texts))
        return [tuple(questions[place] for place in places) for places in self._grouped[1]]

    def _link(self, record: AnswerRecord | None, question_id: MessageId) -> str:
        if record is not None and record.outcome.endswith("for one member"):
            return ""  # it has the command's id, which leads nowhere
        server, channel = (record.guild_id, record.channel_id) if record else (None, None)
        return build_message_link(self._settings, server, channel, question_id)


def _one_line(text: str) -> str:
    """Return a member's words as one line of Markdown that starts no block."""
    line = " ".join(text.split())
    return "".join(f"\\{each}" if each in "\\`*_[]<>#|!" else each for each in line)
