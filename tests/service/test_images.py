"""Images through the whole bot: real verbs and stores, a Discord in memory, and its files and the model on sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from anyio.lowlevel import checkpoint
from msgspec import structs

from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Attachment, ChatMessage
from intern.platforms.discord.attachments import AttachmentFetcher
from intern.runtime.bot import open_sandbox
from intern.service.status import read_status
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from tests.worlds import pictures
from tests.worlds.bot import Watching, settings_in
from tests.worlds.cdn import CdnDouble, Served, cdn_double
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, endpoint_double, refuse, text_of

pytestmark = pytest.mark.anyio

SEEN = "A dialog: spool is locked (code 35)."


def told(body: dict[str, Any]) -> dict[str, Any]:
    listed = [line for line in text_of(body, "user").splitlines() if line.startswith("- message_id: ")]
    places = [line.removeprefix("- message_id: ").split(", image_index: ") for line in listed]
    return {"summaries": [{"message_id": each, "image_index": int(n), "summary": SEEN} for each, n in places]}


@dataclass
class Scene:
    sandbox: Sandbox
    events: Watching
    endpoint: EndpointDouble
    cdn: CdnDouble
    settings: Settings

    def shot(self, served: Served | None = None) -> Attachment:
        return self.cdn.attachment("shot.png", served or Served(body=pictures.png()))

    async def until(self, done: Callable[[], object]) -> None:
        while not done():
            await checkpoint()

    def turns(self) -> list[list[str]]:
        archive = Archive(self.settings.paths.raw)
        return [[turn.text for turn in pair.turns] for pair in archive.pairs_after(None)]


@asynccontextmanager
async def at_work(
    folder: Path, endpoint: EndpointDouble, cdn: CdnDouble, sandbox: Sandbox | None = None, *, images: bool = True
) -> AsyncGenerator[Scene]:
    llm = {"base_url": endpoint.base_url, "model": "double", "max_retries": 0, "images": images}
    settings, events = settings_in(folder, llm=llm), Watching()
    discord = sandbox or Sandbox(HandClock(), team={"mira"})
    scene = Scene(discord, events, endpoint, cdn, settings)
    with fail_after(30):
        async with (
            AttachmentFetcher(hosts=[cdn.host]) as files,
            open_sandbox(settings, discord, events=events, clock=HandClock(), files=files),
        ):
            yield scene


@pytest.mark.rest
async def test_what_an_image_shows_is_archived_in_its_message_and_filed(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        endpoint.next(told, prompt="summarize_images")
        async with at_work(tmp_path, endpoint, cdn) as scene:
            asked = scene.sandbox.say("bob", "How do I get rid of this?", attachments=[scene.shot()])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.events.one_of(PairFiled)
        [request] = endpoint.asked("summarize_images")
        assert "User: How do I get rid of this?" in request.user
        assert "Team: Purge the spool." in request.user
        [_, picture] = request.body["messages"][1]["content"]
        assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        text = f"How do I get rid of this?\n[image: shot.png] {SEEN}"
        assert scene.turns() == [[text, "Purge the spool."]]
        [topic] = (tmp_path / "team-knowledge" / "topics").iterdir()
        assert SEEN in topic.read_text()


@pytest.mark.rest
async def test_an_edit_of_the_text_keeps_what_the_image_shows_and_asks_nobody(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        endpoint.next(told, prompt="summarize_images")
        async with at_work(tmp_path, endpoint, cdn) as scene:
            asked = scene.sandbox.say("bob", "How do I get rid of this?", attachments=[scene.shot()])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.events.one_of(CapturedPair)
            scene.sandbox.edit(asked.channel_id, asked.id, "What is it?")
            await scene.events.one_of(CapturedPair, after=1)
        assert scene.turns()[-1] == [f"What is it?\n[image: shot.png] {SEEN}", "Purge the spool."]
        assert len(endpoint.asked("summarize_images")) == 1


@pytest.mark.rest
async def test_a_capture_without_images_is_not_held_up_by_one_whose_model_is_away(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        endpoint.next(refuse(503), prompt="summarize_images")
        async with at_work(tmp_path, endpoint, cdn) as scene:
            asked = scene.sandbox.say("bob", "How do I get rid of this?", attachments=[scene.shot()])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            other = scene.sandbox.say("carl", "Which port is it?")
            scene.sandbox.say("mira", "7480.", reply_to=other.id)
            pair = await scene.events.one_of(CapturedPair)
            assert pair.question == "Which port is it?"
            await scene.until(lambda: endpoint.asked("summarize_images"))
            waits = None
            while waits is None or "503" not in waits.reason:
                await checkpoint()
                waits = read_status(scene.settings, clock=HandClock()).pending_images
            assert waits.captures == 1
        assert scene.turns() == [["Which port is it?", "7480."]]

        # The next start tries again at once, with a fresh link.
        endpoint.next(told, prompt="summarize_images")
        async with at_work(tmp_path, endpoint, cdn, scene.sandbox) as again:
            await again.events.one_of(CapturedPair)
        assert again.turns()[1] == [f"How do I get rid of this?\n[image: shot.png] {SEEN}", "Purge the spool."]
        assert read_status(scene.settings, clock=HandClock()).pending_images is None


@pytest.mark.rest
async def test_a_question_deleted_while_its_image_waits_is_never_archived(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        endpoint.next(*[refuse(503)] * 3, prompt="summarize_images")
        async with at_work(tmp_path, endpoint, cdn) as scene:
            asked = scene.sandbox.say("bob", "My own business", attachments=[scene.shot()])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.until(lambda: endpoint.asked("summarize_images"))
        tries = len(endpoint.asked("summarize_images"))
        async with at_work(tmp_path, endpoint, cdn, scene.sandbox) as scene:
            await scene.until(lambda: len(endpoint.asked("summarize_images")) > tries)
            scene.sandbox.delete(asked.channel_id, asked.id)
            while read_status(scene.settings, clock=HandClock()).pending_images is not None:
                await checkpoint()
        async with at_work(tmp_path, endpoint, cdn, scene.sandbox) as again:
            other = again.sandbox.say("carl", "Which port is it?")
            again.sandbox.say("mira", "7480.", reply_to=other.id)
            await again.events.one_of(CapturedPair)
        assert again.turns() == [["Which port is it?", "7480."]]


@pytest.mark.rest
async def test_where_images_are_off_their_names_stay_and_nobody_is_asked(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        async with at_work(tmp_path, endpoint, cdn, images=False) as scene:
            asked = scene.sandbox.say("bob", "", attachments=[scene.shot()])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.events.one_of(CapturedPair)
        assert scene.turns() == [["[image: shot.png]", "Purge the spool."]]
        assert (cdn.asked, endpoint.asked("summarize_images")) == ([], [])


@pytest.mark.rest
async def test_a_file_that_is_no_image_leaves_a_word_on_why_and_no_call(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        async with at_work(tmp_path, endpoint, cdn) as scene:
            asked = scene.sandbox.say("bob", "And this?", attachments=[scene.shot(Served(body=b"<html>"))])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.events.one_of(CapturedPair)
        why = "(not described: it is no PNG, JPEG, GIF or WebP image)"
        assert scene.turns() == [[f"And this?\n[image: shot.png] {why}", "Purge the spool."]]
        assert endpoint.asked("summarize_images") == []


@pytest.mark.rest
async def test_an_expired_link_is_read_again_on_discord(tmp_path: Path) -> None:
    with endpoint_double() as endpoint, cdn_double() as cdn:
        endpoint.next(told, prompt="summarize_images")

        class Renewing(Sandbox):
            """Signs links anew when a message is read again."""

            async def look_up(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
                found = await super().look_up(channel_id, message_id)
                assert found is not None
                url = cdn.attachment("new.png", pictures.png()).url
                fresh = tuple(structs.replace(each, url=url) for each in found.attachments)
                return structs.replace(found, attachments=fresh)

        async with at_work(tmp_path, endpoint, cdn, Renewing(HandClock(), team={"mira"})) as scene:
            asked = scene.sandbox.say("bob", "And this?", attachments=[scene.shot(Served(status=404))])
            scene.sandbox.say("mira", "Purge the spool.", reply_to=asked.id)
            await scene.events.one_of(CapturedPair)
        assert "/new.png" in cdn.asked
        assert scene.turns() == [[f"And this?\n[image: shot.png] {SEEN}", "Purge the spool."]]
