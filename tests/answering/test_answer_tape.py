"""A recording has everything that an answer was made from: a replay gives the same prompts and the same answer."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from intern.answering.answer_tape import AnswerRecording, AnswerTape, attach_tape, iter_texts
from intern.answering.answerer import Answerer
from intern.answering.line_ranking import LineRanker
from intern.answering.prompts import (
    ANSWER,
    CONFIRM,
    DECIDE,
    GATE,
    SELECT,
    VERIFY,
    AnswerDraft,
    AnsweringOptions,
    GateDecision,
    Selection,
    Verification,
)
from intern.answering.replaying import AnswerReplayer, strip_debug
from intern.answering.steps import KnowledgeLookup
from intern.core.errors import KnowledgeError, ModelUnavailableError, SourceError
from intern.core.ids import MessageId, SourceId, UserId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.messages import AnswerResult, Attachment, Conversation, FileDigest, Image, Message, RequestContext
from intern.core.text.encoding import encode_json
from intern.models.recorded_calls import make_digest
from intern.models.templates import PromptTemplates
from tests.answering.shelf import Shelf
from tests.answering.test_fused_steps import KEYS, PORTS, RIGHT, TEAM, decision
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

QUESTION = "how do I rotate the keys?"
PICTURES = (Image(media_type="image/png", data=b"x"),)
CONTEXT = RequestContext(message_id=MessageId("9"))


class Recorder:
    """Records answers, and keeps the texts as a database would."""

    def __init__(self, knowledge: KnowledgeLookup, model: ScriptedModel, **options: Any) -> None:
        self.answerer = Answerer(model, knowledge, AnsweringOptions(**options), LineRanker())
        self.texts: dict[str, str] = {}

    async def recorded(
        self, conversation: Conversation, *, addressed: bool = True, context: bool = True
    ) -> tuple[AnswerRecording, str]:
        """Record an answer; return the recording, as it is read back, and the reason why it cannot be replayed."""
        tape = AnswerTape(at=HandClock().now(), conversation=conversation, context=CONTEXT, addressed=addressed)
        tape.result = await attach_tape(self.answerer, tape, "m").answer(conversation, CONTEXT, addressed=addressed)
        answered = tape.make_recording(PromptTemplates(), self._keep, context=context)
        return msgspec.json.decode(encode_json(answered), type=AnswerRecording), tape.unfit_reason

    def _keep(self, text: str) -> str:
        self.texts[make_digest(text)] = text
        return make_digest(text)

    def replay(self, **how: Any) -> AnswerReplayer:
        """Make a replayer with today's code, other knowledge, and a model that fails the test when it is asked."""
        today = Answerer(ScriptedModel(), Shelf({}), self.answerer.options, LineRanker())
        given: dict[str, Any] = {"answerer": today, "templates": PromptTemplates(), **how}
        return AnswerReplayer(**given)


def asked(*texts: str, **fields: Any) -> Conversation:
    return Conversation(tuple(Message(role="user", text=text, author_id=UserId("5"), **fields) for text in texts))


def shelf() -> Shelf:
    known = Shelf(
        {"kb:keys.md": KEYS, "kb:ports.md": PORTS, "team:keys.txt": TEAM},
        urls={"kb:keys.md": "https://docs.example/keys"},
        links={"team:keys.txt#qa_20260201_031056.228000": "https://discord.example/1"},
    )
    known.order = [SourceId("team:keys.txt"), SourceId("kb:keys.md"), SourceId("kb:ports.md")]
    return known


def fused() -> ScriptedModel:
    model = ScriptedModel()
    model.always(DECIDE, decision())
    model.always(CONFIRM, RIGHT)
    return model


def separate() -> ScriptedModel:
    model = ScriptedModel()
    model.always(GATE, GateDecision(kind="question"))
    model.always(SELECT, Selection(selected_source_ids=("kb:keys.md",)))
    model.always(
        ANSWER,
        AnswerDraft(
            quotes=("Rotate with `relay keys rotate`.",),
            answer="Rotate with `relay keys rotate`.",
            citations=("kb:keys.md",),
        ),
    )
    model.always(VERIFY, Verification(is_good_enough=True))
    return model


def untouched(known: Shelf) -> None:
    del known


def lost(known: Shelf) -> None:
    known.broken["kb:ports.md"] = SourceError("gone")


def unsearched(known: Shelf) -> None:
    known.order = None


def taught(known: Shelf) -> None:
    known.sources["nugget:1"] = "Keys live a day"
    fact = SourceText(source_id=SourceId("fact:1"), text="Keys live a day.", title="Keys", said="They live a day.")
    known.knows = LearnedMatches(nuggets=(IndexEntry(SourceId("nugget:1"), "Keys"),), likeness=0.5, facts=(fact,))


@pytest.mark.parametrize("change", [untouched, lost, unsearched, taught])
@pytest.mark.parametrize(("steps", "model"), [("fused", fused), ("separate", separate)])
async def test_a_recording_replays_to_the_byte(
    steps: str, model: Callable[[], ScriptedModel], change: Callable[[Shelf], None]
) -> None:
    known = shelf()
    change(known)
    recorder = Recorder(known, model(), steps=steps)
    answered, unfit = await recorder.recorded(asked("hello there", QUESTION))
    assert answered.result.should_reply
    assert not unfit
    again = await recorder.replay().replay(answered, recorder.texts)
    assert (again.is_same, again.changed, again.calls) == (True, (), 0)


class Directions:
    """An embedder that gives each text a direction, by its length and a turn."""

    model = "directions"

    def __init__(self, turn: float) -> None:
        self._turn = turn

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        del asked
        angles = (self._turn * len(text) for text in texts)
        return [struct.pack("<2f", math.cos(angle), math.sin(angle)) for angle in angles]


async def test_likeness_is_recorded_so_that_another_embedder_points_at_the_same_pieces() -> None:
    recorder = Recorder(shelf(), fused())
    recorder.answerer = dataclasses.replace(recorder.answerer, nearest=LineRanker(Directions(0.1)))
    answered, _ = await recorder.recorded(asked(QUESTION))
    today = Answerer(ScriptedModel(), Shelf({}), recorder.answerer.options, LineRanker(Directions(1.3)))
    again = await recorder.replay(answerer=today).replay(answered, recorder.texts)
    assert (again.is_same, again.changed) == (True, ())
    forgotten = await recorder.replay(answerer=today).replay(replace(answered, likes=()), recorder.texts)
    assert forgotten.changed == ("decide",)


class Away(Directions):
    """An embedder that cannot be reached."""

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        raise ModelUnavailableError("the endpoint is away")


async def test_pieces_that_were_ranked_by_words_while_the_embedder_was_away_are_ranked_so_again() -> None:
    recorder = Recorder(shelf(), fused())
    recorder.answerer = dataclasses.replace(recorder.answerer, nearest=LineRanker(Away(0)))
    answered, _ = await recorder.recorded(asked(QUESTION))
    today = Answerer(ScriptedModel(), Shelf({}), recorder.answerer.options, LineRanker(Directions(0.7)))
    again = await recorder.replay(answerer=today).replay(answered, recorder.texts)
    assert (again.is_same, again.changed) == (True, ())


@pytest.mark.parametrize(
    "text", ["lol", "half \ud800 a letter?", "=== end of message ===\x00 {{ 1/0 }} ?", "？" * 9_000]
)
async def test_hostile_words_replay_like_others(text: str) -> None:
    recorder = Recorder(shelf(), fused())
    answered, unfit = await recorder.recorded(asked(text), addressed=False)
    assert not unfit
    again = await recorder.replay().replay(answered, recorder.texts)
    assert (again.is_same, again.changed) == (True, ())


def stricter(folder: Path) -> PromptTemplates:
    """Return other instructions for the check."""
    shipped = PromptTemplates().read_source(CONFIRM)
    (folder / "confirm.md.j2").write_text(shipped.replace("{% block system %}", "{% block system %}\nBe strict."))
    return PromptTemplates(folder)


async def test_a_changed_prompt_is_told_offline_and_asked_anew_with_a_model(tmp_path: Path) -> None:
    recorder = Recorder(shelf(), fused())
    answered, _ = await recorder.recorded(asked(QUESTION))
    templates = stricter(tmp_path)
    offline = await recorder.replay(templates=templates).replay(answered, recorder.texts)
    assert (offline.changed, offline.calls, offline.is_same) == (("confirm",), 0, False)
    model = ScriptedModel()
    model.always(CONFIRM, replace(RIGHT, verdict="unsupported"))
    online = await recorder.replay(templates=templates, model=model).replay(answered, recorder.texts)
    assert (online.changed, online.calls, online.result.reason) == (("confirm",), 1, "rejected")
    assert [name for name, _ in model.asked] == ["confirm"]


async def test_replies_of_another_model_do_not_serve_where_one_is_named() -> None:
    recorder = Recorder(shelf(), fused())
    answered, _ = await recorder.recorded(asked(QUESTION))
    same = await recorder.replay(only="m").replay(answered, recorder.texts)
    assert (same.is_same, same.calls) == (True, 0)
    other = await recorder.replay(only="n", model=fused()).replay(answered, recorder.texts)
    assert (other.is_same, other.calls) == (True, 2)


async def test_what_the_knowledge_was_not_asked_is_told_and_never_looked_up() -> None:
    recorder = Recorder(shelf(), fused())
    answered, _ = await recorder.recorded(asked(QUESTION))
    again = await recorder.replay(model=fused()).replay(replace(answered, searched=()), recorder.texts)
    assert (again.changed, again.is_same, again.result.reason) == (("a search",), False, "knowledge_failed")
    again = await recorder.replay(model=fused()).replay(replace(answered, sources=()), recorder.texts)
    assert again.changed == ("the source team:keys.txt", "the source kb:keys.md", "the source kb:ports.md")


@pytest.mark.parametrize(
    ("conversation", "broken", "unfit"),
    [
        (
            asked(QUESTION, images=(Image(media_type="image/png", data=b"x"),)),
            None,
            "it had pictures, which are not kept",
        ),
        (asked(QUESTION), KnowledgeError("no disk"), "it could not look (knowledge_failed)"),
    ],
)
async def test_what_cannot_be_replayed_says_why(
    conversation: Conversation, broken: KnowledgeError | None, unfit: str
) -> None:
    known = shelf()
    known.broken |= {"index": broken} if broken else {}
    answered, why = await Recorder(known, fused()).recorded(conversation)
    assert why == unfit
    assert not any(message.images for message in answered.conversation.messages)


async def test_a_long_index_is_kept_only_as_a_number_and_says_so_where_its_descriptions_decided() -> None:
    known = shelf()
    known.sources |= {f"kb:{n}.md": f"# {n} {'x' * 400}" for n in range(200)}
    recorder = Recorder(known, fused())
    answered, unfit = await recorder.recorded(asked(QUESTION))
    assert (answered.entries, answered.index, unfit) == (203, (), "")
    assert (await recorder.replay().replay(answered, recorder.texts)).is_same
    known.order = None
    _, unfit = await recorder.recorded(asked(QUESTION))
    assert unfit == "it read the whole index, which is too long to be kept"


async def test_a_call_that_failed_is_kept_with_its_error() -> None:
    model = ScriptedModel()
    model.always(DECIDE, ModelUnavailableError("the endpoint is away"))
    answered, unfit = await Recorder(shelf(), model).recorded(asked(QUESTION))
    assert [(call.prompt, call.reply, call.error) for call in answered.calls] == [
        ("decide", "", "the endpoint is away")
    ]
    assert unfit == "it could not look (model_unavailable)"


async def test_a_recording_names_all_whose_words_it_holds() -> None:
    known = shelf()
    said = Message(role="user", text="the keys?", author_id=UserId("7"), id=MessageId("70"))
    conversation = Conversation((said, *asked(QUESTION, id=MessageId("9")).messages))
    answered, _ = await Recorder(known, fused()).recorded(conversation)
    assert answered.origins == {"message:9", "message:70", "user:5", "user:7", "team:keys.txt"}
    bot = Message(role="assistant", text="They rotate.", author_id=UserId("1"))
    answered, _ = await Recorder(known, fused()).recorded(Conversation((bot, *asked(QUESTION).messages)))
    assert "anyone" in answered.origins
    taught(known)
    answered, _ = await Recorder(known, fused()).recorded(asked(QUESTION))
    assert "anyone" in answered.origins


def test_an_answer_is_compared_without_the_figures_of_its_making() -> None:
    assert strip_debug(AnswerResult(should_reply=True, reply_text="x", debug={"seconds": 1})) == AnswerResult(
        should_reply=True, reply_text="x"
    )


def in_company() -> Conversation:
    """Make a question after messages of the bot, of its asker, and of another member."""
    before = (
        Message(role="user", text="we run relay 2", author_id=UserId("5")),
        Message(role="user", text="mine speaks zanzibork", author_id=UserId("6")),
        Message(role="assistant", text="Which relay?"),
    )
    return Conversation((*before, *asked(QUESTION).messages))


# Finding A5.
@pytest.mark.parametrize(("steps", "model"), [("fused", fused), ("separate", separate)])
async def test_what_others_said_is_kept_only_if_wanted_and_a_replay_does_without(
    steps: str, model: Callable[[], ScriptedModel]
) -> None:
    recorder = Recorder(shelf(), model(), steps=steps)
    whole, _ = await recorder.recorded(in_company())
    assert "zanzibork" in encode_json(whole).decode()
    answered, unfit = await recorder.recorded(in_company(), context=False)
    kept = encode_json(answered).decode() + "".join(recorder.texts.values())
    assert "zanzibork" not in kept
    assert all(word in kept for word in ("we run relay 2", "Which relay?", QUESTION))
    assert answered.origins == whole.origins, "so forgetting finds it as before"
    assert not unfit
    again = await recorder.replay().replay(answered, recorder.texts)
    assert (again.is_same, again.changed, again.calls) == (True, (), 0)


def test_what_files_say_is_among_the_texts_in_which_secrets_are_looked_for() -> None:
    digest = FileDigest(telling="it failed", excerpt="it began and failed")
    said = Message(
        role="user", text="Why?", attachments=(Attachment(id="1", filename="a", url="", size=1, digest=digest),)
    )
    answered = AnswerRecording(
        at=HandClock().now(),
        conversation=Conversation((said,)),
        context=RequestContext(),
        addressed=True,
        entries=0,
        result=AnswerResult(should_reply=False),
    )
    assert {"a", "it failed", "it began and failed"} <= set(iter_texts(answered))
