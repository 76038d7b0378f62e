"""Backtest: each question is asked again, with the knowledge before it and nothing after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from anyio import fail_after

from intern.core.errors import ConfigError, ModelUnavailableError
from intern.core.ids import UserId
from intern.core.messages import Image
from intern.lab.backtest import BacktestRequest, BacktestRun, PreparedBacktest, ReplayClock, prepare_backtest
from intern.lab.backtest_estimate import EstimateRange, estimate_backtest
from intern.lab.outcomes import BacktestOutcome, BacktestReport
from intern.lab.timeline import EDITED, NOT_SAMPLED
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.service.models import Models
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from tests.service.chatting import ALICE, BOB, MAYA, NOON, TOM, Town
from tests.worlds.endpoint import Reply, endpoint_double
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

QUESTION = "Which port does the relay listen on behind the proxy?"
ANSWER = "The relay listens on port 7480 behind the proxy."
NEVER = datetime.max.replace(tzinfo=UTC)


def settings_in(folder: Path, **sections: Mapping[str, object]) -> Settings:
    return make_settings(folder / "data", **{"llm": OFFLINE, "embeddings": WORDS_ALONE, **sections})


async def prepared(folder: Path, town: Town, settings: Settings | None = None, **wanted: Any) -> PreparedBacktest:
    files = town.save(folder / "exports")
    return await prepare_backtest(
        settings or settings_in(folder),
        BacktestRequest(files=files, team_ids=(UserId(MAYA), UserId(TOM)), **wanted),
    )


async def replayed(
    folder: Path,
    town: Town,
    settings: Settings | None = None,
    watch: Callable[[Models, ReplayClock], Models] = lambda models, _: models,
    **wanted: Any,
) -> BacktestReport:
    settings = settings or settings_in(folder)
    with fail_after(60):
        replay = BacktestRun(settings, await prepared(folder, town, settings, **wanted), watch=watch)
        await replay.run()
    return replay.report()


def seen(done: BacktestReport) -> list[tuple[str, str]]:
    return [(outcome.verdict, outcome.reason) for outcome in done.outcomes]


def answered(town: Town, question: str = QUESTION, answer: str = ANSWER) -> tuple[str, str]:
    place = town.channel()
    asked = place.say(ALICE, question)
    return asked, place.say(MAYA, answer, to=asked)


def documented(folder: Path) -> None:
    sources = folder / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "relay.md").write_text("# Relay\n\nSet the relay port.\n")


class Watched:
    """Rules that check their inputs, and the times."""

    def __init__(self, model: Model, clock: ReplayClock, planted: Mapping[str, datetime]) -> None:
        self._model = model
        self._clock = clock
        self._planted = planted
        self.prompts: set[str] = set()
        self.told: set[str] = set()
        self.leaks: list[tuple[str, str, datetime]] = []

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        text = msgspec.json.encode(given).decode().lower()
        self.prompts.add(prompt.name)
        told = {mark: known_from for mark, known_from in self._planted.items() if mark in text}
        self.told |= told.keys()
        # The question itself shows its time, independent of the replay's clock.
        question = str(getattr(given, "question", ""))
        now = max((known_from for mark, known_from in told.items() if mark in question), default=self._clock.now())
        self.leaks += [(prompt.name, mark, now) for mark, known_from in told.items() if known_from > now]
        return await self._model.ask(prompt, given, images=images)


class Marks:
    """Words that occur nowhere else, and the time of each word's first use."""

    def __init__(self) -> None:
        self.known_from: dict[str, datetime] = {}
        self.by_models: list[Watched] = []

    def __call__(self, known_from: datetime) -> str:
        mark = f"zq{len(self.known_from)}qz"
        self.known_from[mark] = known_from
        return mark

    def watch(self, models: Models, clock: ReplayClock) -> Models:
        watched = Watched(models.answering, clock, self.known_from)
        self.by_models.append(watched)
        return Models(watched, watched)


def planted(seed: int, marks: Marks) -> Town:
    """Return a random town, in which every text, name and note bears a mark."""
    random, town = Random(seed), Town()
    places = [
        town.channel("100", name=marks(NEVER), topic=marks(NEVER)),
        town.channel("101"),
    ]
    forum = town.next_id()
    places.append(town.thread(forum, name=marks(town.now)))  # a title is the first line of its first message
    said: list[tuple[Any, str, str, datetime]] = []
    for turn in range(50):
        at = town.wait(seconds=random.choice([3, 40, 200, 4000]))
        place = random.choice(places)
        who = random.choice([ALICE, ALICE, BOB, MAYA, TOM])
        here = [(message_id, author) for other, message_id, author, _ in said if other is place]
        others = [message_id for message_id, author in here if (author in {MAYA, TOM}) != (who in {MAYA, TOM})]
        own = [message_id for message_id, author in here if author == who]
        to = random.choice(others[-4:]) if others and who in {MAYA, TOM} else None
        to = random.choice(own[-4:]) if own and who in {ALICE, BOB} and random.random() < 0.5 else to
        subject = random.choice(["relay port proxy", "wallet stake token", "log folder rotation"])
        text = f"{'How do I set the' if who in {ALICE, BOB} else 'Set the'} {subject} {marks(at)}"
        message_id = place.say(
            who,
            text + ("?" if who in {ALICE, BOB} else "."),
            to=to,
            after=0,
            isPinned=True,
            embeds=[{"title": marks(NEVER), "description": marks(NEVER)}],
            reactions=[{"emoji": {"name": marks(NEVER)}, "count": 1, "users": [{"name": marks(NEVER)}]}],
            mentions=[{"id": BOB, "name": marks(NEVER), "nickname": marks(NEVER)}],
            author={"id": who, "name": marks(NEVER), "nickname": marks(NEVER), "isBot": False, "roles": []},
            **({"own_id": forum} if place is places[2] and not here else {}),
        )
        said.append((place, message_id, who, at))
        if turn % 6 == 5:
            # An edit leaves nothing of the old text: its new words are first used now.
            place, message_id, _, _ = random.choice(said[-20:])
            place.edit(message_id, f"How do I set the {subject}? {marks(town.wait(seconds=random.choice([2, 900])))}")
    return town


@pytest.mark.rest
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.rest)])
async def test_no_prompt_holds_anything_that_was_said_edited_or_named_later(tmp_path: Path, seed: int) -> None:
    marks = Marks()
    town = planted(seed, marks)
    documented(tmp_path)
    done = await replayed(tmp_path, town, watch=marks.watch, concurrency=1 + 3 * seed)
    [watched] = marks.by_models
    assert watched.leaks == []
    # The test has taken place: all steps were taken, and questions answered from earlier conversations of others.
    assert len(watched.told) > 15
    assert watched.prompts >= {"decide", "confirm", "classify", "integrate", "extract"}
    assert any(outcome.reply and "team:" in "".join(outcome.citations) for outcome in done.outcomes)


async def test_a_thread_that_the_team_answered_in_is_known_as_far_as_it_went_by_then(tmp_path: Path) -> None:
    marks, town = Marks(), Town()
    asked = town.channel().say(ALICE, QUESTION)
    thread = town.thread(asked)
    thread.say(MAYA, f"{ANSWER} {marks(town.now + timedelta(seconds=300))}")
    town.channel().say(BOB, QUESTION)
    thread.say(ALICE, f"Thank you! {marks(town.now + timedelta(seconds=300))}")
    thread.say(MAYA, f"In the end it was port 9000. {marks(town.now + timedelta(seconds=300))}")
    done = await replayed(tmp_path, town, watch=marks.watch)
    assert marks.by_models[0].leaks == []
    assert marks.by_models[0].told == {"zq0qz"}  # no further question was asked about the last answers
    assert seen(done) == [("silent", "no_sources"), ("team_silent", "")]


async def test_what_a_question_replies_to_is_not_known_as_it_was_edited_later(tmp_path: Path) -> None:
    marks, town = Marks(), Town()
    answered(town)
    first = town.channel().say(ALICE, f"I asked about the relay. {marks(town.now + timedelta(seconds=300))}")
    town.channel().say(ALICE, f"{QUESTION} {marks(town.now + timedelta(seconds=300))}", to=first)
    second = town.channel().say(BOB, f"I asked about the relay. {marks(town.now + timedelta(seconds=300))}")
    town.channel().say(BOB, f"{QUESTION} {marks(town.now + timedelta(seconds=300))}", to=second)
    town.channel().edit(second, f"It was the proxy. {marks(town.wait(hours=1))}")
    await replayed(tmp_path, town, watch=marks.watch)
    [watched] = marks.by_models
    assert watched.leaks == []
    # A reply to a message that was unknown then has no addressee, so the last question is not even asked.
    assert watched.told == {"zq0qz", "zq1qz"}


async def test_what_the_team_taught_answers_the_next_one_and_not_the_first(tmp_path: Path) -> None:
    town = Town()
    asked, answer = answered(town)
    again = town.channel().say(BOB, QUESTION)
    town.channel().say(TOM, "It listens on port 7480.", to=again)
    done = await replayed(tmp_path, town)
    assert seen(done) == [("silent", "no_sources"), ("agreed", "")]
    first, second = done.outcomes
    assert (first.message_id, first.team, first.team_after_seconds, first.knew) == (asked, ANSWER, 300.0, 0)
    assert first.team_link == f"https://discord.com/channels/5/100/{answer}"
    assert (second.link, second.knew) == (f"https://discord.com/channels/5/100/{again}", 1)
    assert second.reply is not None
    assert "7480" in second.reply
    assert second.likeness_words == 1.0
    assert (done.finished, done.totals.team_answered, done.learned.conversations) == (True, 2, 1)
    assert done.learned.untold == 1


@pytest.mark.rest
async def test_an_answer_unlike_the_teams_differs_and_one_to_nobody_is_told_apart(tmp_path: Path) -> None:
    town = Town()
    answered(town)
    again = town.channel().say(BOB, QUESTION)
    town.channel().say(TOM, "Nowadays sockets replace networking entirely.", to=again)
    town.channel().say(ALICE, QUESTION)
    third = town.channel().say(BOB, QUESTION)
    town.channel().say(TOM, "Yes, please.", to=third)
    done = await replayed(tmp_path, town)
    assert [verdict for verdict, _ in seen(done)] == ["silent", "differed", "team_silent", "not_comparable"]


async def test_an_answer_that_was_mended_later_teaches_from_then_on(tmp_path: Path) -> None:
    town = Town()
    _, answer = answered(town)
    town.channel().say(BOB, QUESTION)
    town.wait(hours=1)
    town.channel().edit(answer, "The relay listens on port 9000 behind the proxy.")
    town.channel().say(BOB, QUESTION)
    done = await replayed(tmp_path, town)
    assert seen(done)[1] == ("silent", "no_sources")  # the words before the edit are lost
    assert done.outcomes[2].reply is not None
    assert "9000" in done.outcomes[2].reply


@pytest.mark.rest
async def test_a_question_that_was_mended_within_the_pause_counts_and_one_mended_later_is_left_out(
    tmp_path: Path,
) -> None:
    town = Town()
    answered(town)
    early, late = town.channel().say(BOB, "?"), town.channel().say(ALICE, "?", after=7200)
    town.channel().messages[-2].update(
        content=QUESTION,
        timestampEdited=(
            datetime.fromisoformat(town.channel().messages[-2]["timestamp"]) + timedelta(seconds=30)
        ).isoformat(),
    )
    town.wait(hours=1)
    town.channel().edit(late, f"{QUESTION} SOLVED: {ANSWER}")
    done = await replayed(tmp_path, town)
    assert [outcome.message_id for outcome in done.outcomes][1:] == [early]
    assert done.outcomes[1].verdict == "team_silent"
    assert done.left_out == {EDITED: 1}


async def test_who_was_answered_before_the_end_of_the_question_is_not_asked_for(tmp_path: Path) -> None:
    marks, town, place = Marks(), Town(), None
    place = town.channel()
    asked = place.say(ALICE, QUESTION)
    place.say(MAYA, ANSWER, to=asked, after=10)
    last = place.say(ALICE, "It is version 2.", after=10)
    done = await replayed(tmp_path, town, watch=marks.watch)
    assert seen(done) == [("silent", "team_answered")]
    assert done.outcomes[0].message_id == last
    assert "gate" not in marks.by_models[0].prompts


async def test_a_team_that_is_quicker_than_the_pause_is_told(tmp_path: Path) -> None:
    town = Town()
    answered(town)
    again = town.channel().say(BOB, QUESTION)
    town.channel().say(MAYA, ANSWER, to=again, after=20)
    done = await replayed(tmp_path, town)
    assert done.outcomes[1].team_was_first
    assert done.totals.team_was_first == 1


@pytest.mark.rest
async def test_two_runs_differ_in_their_times_only_however_many_are_asked_at_once(tmp_path: Path) -> None:
    town = planted(7, Marks())

    def without_times(done: BacktestReport) -> Any:
        report = msgspec.to_builtins(done)
        del report["made_at"], report["seconds"]
        for outcome in report["outcomes"]:
            outcome.pop("seconds", None)
        return report

    first = await replayed(tmp_path, town)
    for concurrency in (1, 4):
        again = await replayed(tmp_path, town, concurrency=concurrency)
        assert without_times(again) == without_times(first)
    assert msgspec.json.decode(msgspec.json.encode(first), type=BacktestReport) == first


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_documents_are_read_where_they_are_and_the_data_folder_is_left_alone(tmp_path: Path) -> None:
    town = Town()
    town.channel().say(ALICE, QUESTION)
    sources = tmp_path / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "ports.md").write_text(f"# Ports of the relay\n\n{ANSWER}\n")
    before = files_of(tmp_path / "data")
    done = await replayed(tmp_path, town)
    assert (seen(done), done.documents) == ([("team_silent", "")], 1)
    assert done.outcomes[0].citations == ("kb:ports.md",)
    without = await replayed(tmp_path, town, documents=False)
    assert (seen(without), without.documents) == ([("silent", "no_sources")], None)
    assert files_of(tmp_path / "data") == before


async def test_vectors_of_documents_that_the_data_folder_has_are_not_made_again(tmp_path: Path) -> None:
    town = Town()
    town.channel().say(ALICE, QUESTION)
    sources = tmp_path / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "ports.md").write_text(f"# Ports of the relay\n\n{ANSWER}\n")
    with endpoint_double(lambda _: Reply()) as endpoint:
        embeddings = {"provider": "endpoint", "base_url": endpoint.base_url, "model": "double"}
        settings = settings_in(tmp_path, embeddings=embeddings)
        async with open_intern(settings) as intern:
            await intern.index()
        assert any(ANSWER in text for text in endpoint.embedded)
        endpoint.embedded.clear()
        before = files_of(tmp_path / "data")
        done = await replayed(tmp_path, town, settings)
        assert done.documents == 1
        assert not any(ANSWER in text for text in endpoint.embedded)
    assert files_of(tmp_path / "data") == before


@pytest.mark.rest
async def test_what_the_running_bot_has_learned_and_awaits_review_of_does_not_matter(tmp_path: Path) -> None:
    town = Town()
    answered(town)
    town.channel().say(BOB, QUESTION)
    topics = tmp_path / "data" / "team-knowledge" / "topics"
    topics.mkdir(parents=True)
    (topics / "relay.txt").write_text("not even read")
    done = await replayed(tmp_path, town, settings_in(tmp_path, kb={"review": True}))
    assert [verdict for verdict, _ in seen(done)] == ["silent", "team_silent"]


@pytest.mark.rest
async def test_a_limit_spreads_its_questions_and_dates_bound_them(tmp_path: Path) -> None:
    town = Town()
    asked = [answered(town, f"{QUESTION} Part {n}")[0] for n in range(10)]
    done = await replayed(tmp_path, town, limit=2)
    assert [outcome.message_id for outcome in done.outcomes] == [asked[4], asked[9]]
    assert [outcome.knew for outcome in done.outcomes] == [4, 9]
    assert done.left_out == {NOT_SAMPLED: 8}
    since, until = NOON + timedelta(seconds=3 * 600), NOON + timedelta(seconds=6 * 600)
    done = await replayed(tmp_path, town, since=since, until=until)
    assert [outcome.message_id for outcome in done.outcomes] == asked[3:6]
    assert [outcome.knew for outcome in done.outcomes] == [3, 4, 5]


async def test_where_nothing_was_asked_the_error_says_so(tmp_path: Path) -> None:
    town = Town()
    town.channel().say(MAYA, "Good morning.")
    with pytest.raises(ConfigError, match="no question to replay"):
        await prepared(tmp_path, town)


async def test_a_replay_that_is_stopped_tells_what_it_has(tmp_path: Path) -> None:
    town = Town()
    for n in range(5):
        answered(town, f"{QUESTION} Part {n}")
    scope, told = anyio.CancelScope(), list[BacktestOutcome]()

    def tell(outcome: BacktestOutcome) -> None:
        told.append(outcome)
        if len(told) == 2:
            scope.cancel()

    replay = BacktestRun(settings_in(tmp_path), await prepared(tmp_path, town), tell=tell)
    with scope:
        await replay.run()
    done = replay.report()
    assert (done.finished, done.totals.questions, done.questions) == (False, 2, 5)
    assert list(done.outcomes) == told


async def test_a_model_that_is_away_costs_its_questions_and_what_was_taught_is_learned_later(tmp_path: Path) -> None:
    town = Town()
    documented(tmp_path)  # without knowledge, the model is not asked
    answered(town)
    town.channel().say(BOB, QUESTION)
    answered(town, "How are logs rotated?", "Weekly, by logrotate.")
    town.channel().say(BOB, QUESTION)

    class Away:
        def __init__(self, model: Model, clock: ReplayClock) -> None:
            self._model, self._clock = model, clock

        async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
            if self._clock.now() < NOON + timedelta(seconds=1000):
                raise ModelUnavailableError("the endpoint is away")
            return await self._model.ask(prompt, given, images=images)

    def watch(models: Models, clock: ReplayClock) -> Models:
        return Models(Away(models.answering, clock), Away(models.learning, clock))

    done = await replayed(tmp_path, town, watch=watch)
    assert seen(done)[:2] == [("could_not_look", "model_unavailable")] * 2
    assert done.outcomes[0].error == "the endpoint is away"
    assert seen(done)[3] == ("team_silent", "")
    assert (done.learned.delayed, done.totals.could_not_look) == (1, {"model_unavailable": 2})


async def test_keys_that_people_posted_stand_in_no_report(tmp_path: Path) -> None:
    town, key = Town(), "sk-" + "a1B2c3D4e5F6" * 4
    answered(town, f"Why is my key {key} refused?", f"Never post {key} here.")
    done = await replayed(tmp_path, town)
    assert key not in msgspec.json.encode(done).decode()
    assert "[masked" in done.outcomes[0].question


async def test_an_estimate_without_a_model_counts_no_calls(tmp_path: Path) -> None:
    town = Town()
    answered(town)
    town.channel().say(BOB, QUESTION)
    history = await prepared(tmp_path, town)
    free = estimate_backtest(settings_in(tmp_path), history.timeline)
    assert (free.questions, free.team_answered, free.conversations, free.calls.most) == (2, 1, 1, 0)


@pytest.mark.parametrize(
    ("steps", "calls"),
    [
        # Two decisions and a topic choice at least; at most a check of each answer, and four calls to learn.
        ("fused", EstimateRange(least=3, most=8)),
        # Three gates, for thanks go through it, too; at most four steps each.
        ("separate", EstimateRange(least=4, most=16)),
    ],
)
async def test_what_a_backtest_takes_lies_within_its_estimate(tmp_path: Path, steps: str, calls: EstimateRange) -> None:
    town = Town()
    answered(town)
    town.channel().say(BOB, QUESTION)
    town.channel().say(BOB, "Thanks, that worked!")
    with endpoint_double() as endpoint:
        prices = [{"model": "m", "input": 1.0, "output": 2.0}]
        llm = {"base_url": endpoint.base_url, "model": "m", "prices": prices}
        settings = settings_in(tmp_path, llm=llm, ai={"steps": steps})
        history = await prepared(tmp_path, town, settings)
        estimated = estimate_backtest(settings, history.timeline)
        assert not endpoint.requests
        done = await replayed(tmp_path, town, settings)
    assert (estimated.questions, estimated.priced) == (3, True)
    assert estimated.calls == calls
    totals = (done.totals.answering, done.totals.learning)
    assert estimated.calls.least <= sum(each.calls for each in totals) <= estimated.calls.most
    assert estimated.tokens.least <= sum(each.tokens for each in totals) <= estimated.tokens.most
    assert estimated.cost.least <= sum(each.cost for each in totals) <= estimated.cost.most


@pytest.mark.parametrize("named", ["m", "M"])
async def test_a_report_tells_costs_only_where_a_price_names_the_model(tmp_path: Path, named: str) -> None:
    town = Town()
    answered(town)
    prices = [{"model": named, "input": 1.0, "output": 2.0}]
    settings = settings_in(tmp_path, llm={"base_url": "http://127.0.0.1:9/v1", "model": "m", "prices": prices})
    assert BacktestRun(settings, await prepared(tmp_path, town)).report().priced is (named == "m")
