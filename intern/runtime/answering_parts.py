"""The parts that answer questions: the answerer, attached files, the responder, commands, and posted answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from intern.actors.activity import ActivityReporter
from intern.actors.interaction_worker import InteractionWorker
from intern.actors.pipeline import Start
from intern.actors.responder import Responder
from intern.answering.answerer import Answerer, AttachmentAwareAnswerer
from intern.answering.interaction_handler import InteractionHandler
from intern.answering.posted_answers import AnswerRetractor, PostedAnswers
from intern.answering.replies import ReplyBuilder
from intern.answering.wordings import Wordings
from intern.core.ids import RoleId
from intern.learning.attached_files import FileReader
from intern.runtime.chat_parts import ChatParts, ReadingProgress
from intern.runtime.resources import PlatformPorts
from intern.search.embedder import Embedder
from intern.service.calibration import describe_setup
from intern.service.indexing import open_library
from intern.service.models import Models, answering_options
from intern.service.stores import Stores
from intern.stores.tables.feedback import FeedbackStore


@dataclass(frozen=True, kw_only=True)
class AnsweringParts:
    """The parts that answer questions."""

    actors: Mapping[str, Start]
    answerer: Answerer
    """Answers without a recording; for replays."""
    answers: AttachmentAwareAnswerer
    files: FileReader
    posted: PostedAnswers
    check_posted: Callable[[], Awaitable[object]]
    """Finds posted answers that are outdated, and retracts them if the settings say so."""


def build_answering_parts(
    platform: PlatformPorts,
    reading: ReadingProgress,
    chat: ChatParts,
    stores: Stores,
    models: Models,
    *,
    embedder: Embedder | None,
    wordings: Wordings,
    events: ActivityReporter,
) -> AnsweringParts:
    """Build the parts that answer questions."""
    settings, discord = stores.settings, stores.settings.discord
    library = open_library(
        settings,
        stores.archive,
        stores.knowledge,
        search=stores.search,
        embedder=embedder,
        clock=stores.clock,
        sources=stores.sources,
    )
    options, setup = answering_options(settings), describe_setup(settings)
    answerer = Answerer(models.answering, library, options, models.nearest, stores.judgements, setup)
    files = FileReader(
        *(platform.files, discord.read_files, discord.files_per_hour, discord.paste_hosts),
        digests=stores.pending.digests,
    )
    # Rules cannot describe images, even if the setting is on.
    sees = settings.llm.images and settings.llm.kind == "endpoint"
    recorded = stores.recorder.wrap_answerer(answerer, settings.llm.display_name)
    answers = AttachmentAwareAnswerer(recorded, files, sees=sees)
    posted = PostedAnswers(stores.cited, library, stores.knowledge, emails=settings.kb.mask_emails)
    retractions = AnswerRetractor(stores.cited, chat.delivery.retract, stores.answers, stores.clock)
    handoff = discord.handoff_role_id
    replying = ReplyBuilder(wordings, settings.conversations, handoff_role_id=RoleId(handoff) if handoff else None)
    responder = Responder(
        answers=answers,
        replying=replying,
        outgoing=chat.outgoing,
        done_with=stores.posts.is_done,
        typing=platform.chat.typing,
        records=stores.answers,
        settle=reading.settler.settle,
        events=events,
    )
    commands = _build_commands(platform, reading, stores, answers=answers, wordings=wordings, events=events)
    interactions = InteractionWorker(
        handle=commands.handle, teaches=reading.late.record_capture, responses=platform.interactions
    )
    return AnsweringParts(
        actors={"responder": responder.run, "interactions": interactions.run},
        answerer=answerer,
        answers=answers,
        files=files,
        posted=posted,
        check_posted=partial(retractions.check_and_retract, posted.check) if settings.ai.retract else posted.check,
    )


def _build_commands(
    platform: PlatformPorts,
    reading: ReadingProgress,
    stores: Stores,
    *,
    answers: AttachmentAwareAnswerer,
    wordings: Wordings,
    events: ActivityReporter,
) -> InteractionHandler:
    return InteractionHandler(
        answers=answers,
        history=platform.chat,
        admits=reading.audience.admits,
        outlet=platform.chat,
        feedback=FeedbackStore(stores.db, clock=stores.clock),
        records=stores.answers,
        options=stores.settings.conversations,
        guild_ids=platform.chat.guild_ids,
        wordings=wordings,
        count_question=reading.quota,
        count=events.report_private_answer,
        turned_away=events.report_private_decline,
        manage=platform.manage,
    )
