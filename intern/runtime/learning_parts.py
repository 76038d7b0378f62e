"""The actors that learn from team answers: archive, pictures, topics, reviews, nuggets and facts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from intern.actors.activity import ActivityReporter
from intern.actors.captioner import Captioner
from intern.actors.capturer import capturer
from intern.actors.classifier import Classifier
from intern.actors.extractor import ExtractionWorker
from intern.actors.integrator import Integrator
from intern.actors.pipeline import Start
from intern.actors.reviewer import Reviewer
from intern.chat.platform import ChatPlatform
from intern.learning.approvals import ApprovalQueue
from intern.learning.attached_files import FileReader
from intern.learning.captioning import AttachmentCaptioner
from intern.models.prompt import Model
from intern.runtime.channel_admission import fetch_admitted_message
from intern.runtime.chat_parts import ReadingProgress
from intern.service.writer import Writer


async def build_learning_parts(
    chat: ChatPlatform,
    reading: ReadingProgress,
    writer: Writer,
    model: Model,
    *,
    files: FileReader,
    approvals: ApprovalQueue,
    events: ActivityReporter,
) -> Mapping[str, Start]:
    """Build the actors that learn. Raises KnowledgeError."""
    stores, learning, extraction, admits = writer.stores, writer.learning, writer.extraction, reading.audience.admits_id
    kb, kb_model = stores.settings.kb, stores.settings.kb_model
    sees = kb_model.images and kb_model.kind == "endpoint"
    captions = AttachmentCaptioner(model, files, stores.pending, sees=sees, mask=kb.mask_secrets)
    return {
        "capturer": partial(
            capturer,
            keep=learning.keep,
            known=captions.read_captions,
            pending=stores.pending,
            settle=reading.settler.settle_captured,
            events=events,
        ),
        "captioner": Captioner(
            pending=stores.pending,
            captions=captions,
            keep=learning.keep,
            look_up=partial(fetch_admitted_message, chat.look_up, admits),
            events=events,
        ).run,
        "classifier": Classifier(
            archive=learning.read_pairs_after,
            after=stores.find_last_decided(),
            again=learning.find_next_due,
            choose=learning.choose_topic,
            attempts=stores.attempts,
            events=events,
        ).run,
        "integrator": Integrator(filer=learning, attempts=stores.attempts, events=events).run,
        "extractor": ExtractionWorker(
            decisions=extraction.read_steps_after,
            after=await extraction.position(),
            again=extraction.find_next_due,
            extraction=extraction,
            attempts=stores.attempts,
            events=events,
        ).run,
        "reviewer": Reviewer(approvals=approvals, reviews=learning, admits=admits, events=events).run,
    }
