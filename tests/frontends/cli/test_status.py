"""`intern status`: the state of a data folder, with and without a process at work in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from intern.actors.activity import ActivityReporter
from intern.core.clock import SystemClock
from intern.core.decisions import PairApproved, PairFiled, PairParked, PairReviewRequested
from intern.core.flow import QuestionDeclined
from intern.core.ids import GuildId, MessageId, QAId, TopicName, UserId, parse_position, position_at
from intern.service.activity_recorder import ActivityRecorder
from intern.service.job_kinds import INDEX
from intern.service.opening import open_intern
from intern.service.status import SHED
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.attempts import AttemptStore
from intern.stores.tables.checkpoints import Checkpoint, CheckpointStore, StoredCheckpoints
from intern.stores.tables.daily_counts import DailyCounts
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.jobs import JobQueue
from intern.stores.tables.outbox import Outbox
from intern.stores.tables.pending_captures import PendingCaptures
from tests.frontends.cli.conftest import Intern, environment, process
from tests.wording import Wording
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import decide, put
from tests.worlds.samples import CHANNEL
from tests.worlds.settings import make_settings

DATA = Path("data")
TEAM = DATA / "team-knowledge"


def told(intern: Intern) -> Any:
    code, out, err = intern("status", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def archived(count: int) -> list[QAId]:
    archive = Archive(TEAM / "raw", clock=HandClock())
    return [archive.append(samples.capture(n=n)).qa_id for n in range(count)]


def file_under(topic: TopicName, qa_id: QAId) -> None:
    pair = Archive(TEAM / "raw").get(qa_id)
    assert pair is not None
    put(DATA, topic, pair)


def in_database(work: Callable[[SqliteDatabase], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await SqliteDatabase.open(DATA / "intern.db") as db:
            await work(db)

    anyio.run(run)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_with_nothing_in_it_is_told_as_empty_and_left_so(intern: Intern, made: Path) -> None:
    before = listing(made)
    status = told(intern)
    assert (status["running"], status["pid"], status["archived"], status["topics"]) == (False, None, 0, 0)
    assert (status["parked"], status["checkpoints"], status["pending_posts"], status["damaged"]) == ([], [], 0, [])
    assert listing(made) == before


def test_damaged_pieces_are_counted_and_named_with_file_and_line(intern: Intern) -> None:
    archived(3)
    [week] = (TEAM / "raw").iterdir()
    lines = week.read_text().splitlines(keepends=True)
    _, second, _ = (n for n, line in enumerate(lines) if line == "--- QA ---\n")
    del lines[second + 3]  # its conversation
    week.write_text("".join(lines)[:-5])
    code, out, err = intern("status", "--json")
    status = json.loads(out)
    assert (code, status["archived"]) == (0, 1)
    assert status["damaged"] == [
        f"{week.name}, line {second + 1}: conversation_id is missing",
        f"{week.name}, line {len(lines) - 1}: the block breaks off here: it was not written to its end",
    ]
    for each in status["damaged"]:
        assert err.count(f"intern: {each}") == 1
    assert "damaged or away: 2 pieces of the text files; `intern doctor` names them" in intern("status").out
    for arguments in (("archive",), ("ask", "How?"), ("regenerate", "--dry-run"), ("regenerate",)):
        assert intern(*arguments).err.count(f"{week.name}, line {second + 1}: conversation_id is missing") == 1


def test_an_archive_that_is_away_is_no_empty_one(intern: Intern) -> None:
    [filed] = archived(1)
    decide(DATA, PairFiled(qa_id=filed, topic=TopicName("ports"), at=HandClock().now()))
    assert told(intern)["damaged"] == []
    (TEAM / "raw").rename(TEAM / "raw elsewhere")
    [raw] = told(intern)["damaged"]
    assert raw.startswith("data/team-knowledge/raw is not there, though pairs were archived: ")
    assert raw in intern("doctor").err


def test_sources_of_a_folder_that_is_away_are_not_told_as_gone_and_still_found(intern: Intern, sources: Path) -> None:
    docs = DATA.parent / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Spools\n\nHow spools are purged.\n")
    Path("intern.toml").write_text('[discovery]\nscan_paths = ["docs"]\n[embeddings]\nprovider = "none"\n')
    assert (intern("index").code, intern("discover", "--once").code) == (0, 0)
    found = [intern("search", text).out for text in ("port", "spools")]
    for folder in (sources, docs):
        folder.rename(folder.with_name("away"))
    states = [(each["state"], each["last_error"]) for each in json.loads(intern("status", "--sources", "--json").out)]
    gone = "cannot be looked at (No such file or directory)"
    away = ("failed", f"data/knowledge-base/sources {gone}")
    assert states == [away, away, ("failed", f"{docs.absolute()} {gone}")]
    assert [intern("search", text).out for text in ("port", "spools")] == found


@pytest.mark.rest
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_log_level_that_is_set_holds_for_commands(intern: Intern, level: str) -> None:
    archived(1)
    [week] = (TEAM / "raw").iterdir()
    week.write_text(week.read_text() + "notes to self\n")
    Path("intern.toml").write_text(f'[log]\nlevel = "{level}"\nformat = "json"\n')
    logged = [json.loads(line)["event"] for line in intern("status").err.splitlines()]
    assert logged == (["archive_block_damaged"] if level != "error" else [])
    logged = [json.loads(line)["level"] for line in intern("regenerate").err.splitlines() if line.startswith("{")]
    assert ("info" in logged) == (level in {"debug", "info"})


def test_pairs_are_counted_by_what_became_of_them(intern: Intern) -> None:
    filed, left_out, parked, _ = archived(4)
    at = HandClock().now()
    decide(DATA, PairFiled(qa_id=filed, topic=TopicName("ports"), at=at))
    decide(DATA, PairParked(qa_id=parked, reason="the model gave no usable reply", at=at))
    file_under(TopicName("ports"), filed)
    before = listing(DATA)
    status = told(intern)
    assert (status["archived"], status["topics"], status["waiting"], status["undecided"]) == (4, 1, 1, 1)
    [told_of] = status["parked"]
    assert (told_of["qa_id"], told_of["reason"]) == (parked, "the model gave no usable reply")
    assert (told_of["tries"], told_of["next_at"]) == (1, "2026-02-01T03:20:56Z")
    assert listing(DATA) == before
    code, out, _ = intern("status")
    assert code == 0
    assert "not filed: 1 waiting, 1 left out, 1 parked" in out
    assert f"{parked}: the model gave no usable reply (tried once, again from 2026-02-01 03:20 UTC on)" in out
    assert left_out not in out


def test_parked_pairs_tell_how_often_they_were_tried_and_those_for_review_are_counted(intern: Intern) -> None:
    parked, waiting, approved = archived(3)
    at = HandClock().now()
    decision = PairParked(qa_id=parked, reason="gibberish", at=at)
    decide(DATA, decision, PairReviewRequested(qa_id=waiting, at=at), PairApproved(qa_id=approved, at=at))

    async def work(db: SqliteDatabase) -> None:
        for _ in range(4):
            await AttemptStore(db).end(decision)

    in_database(work)
    status = told(intern)
    assert status["parked"] == [{"qa_id": parked, "reason": "gibberish", "tries": 4, "next_at": None}]
    assert (status["awaiting_review"], status["due"]) == (1, 1)
    out = intern("status").out
    assert "gibberish (tried 4 times, now only by `intern retry`)" in out
    assert "review: 1 wait for the team (`intern review`), 1 approved and not filed yet" in out


@pytest.mark.parametrize("command", ["status", "run", "regenerate", "index"])
def test_a_cursor_that_is_no_id_ends_every_command_and_says_what_one_looks_like(intern: Intern, command: str) -> None:
    Path("intern.toml").write_text('[kb]\nqa_raw_last_processed_id = "yesterday"\n')
    code, out, err = intern(command)
    assert (code, out) == (2, "")
    assert "kb.qa_raw_last_processed_id: is no id of the archive; expected one like qa_" in err
    assert "Traceback" not in err
    assert not DATA.exists()


def test_what_the_operator_passes_over_is_not_missed(intern: Intern) -> None:
    *_, last = archived(3)
    Path("intern.toml").write_text(f'[kb]\nqa_raw_last_processed_id = "{last}"\n')
    status = told(intern)
    assert (status["archived"], status["waiting"], status["undecided"]) == (3, 0, 0)


def test_the_database_tells_of_votes_counts_replies_and_marks(intern: Intern) -> None:
    clock = SystemClock()
    hours_ago = position_at(clock.now() - timedelta(hours=5)).id

    async def work(db: SqliteDatabase) -> None:
        votes = FeedbackStore(db, clock=clock)
        await votes.vote(MessageId("1"), UserId("1"), up=True)
        await votes.vote(MessageId("1"), UserId("2"), up=True)
        await votes.vote(MessageId("1"), UserId("3"), up=False)
        counts, yesterday = DailyCounts(db, clock=clock), HandClock(clock.now() - timedelta(days=1))
        counts.add(SHED, 2)
        counts.add("questions", 7)
        await counts.store()
        old = DailyCounts(db, clock=yesterday)
        old.add(SHED, 3)
        await old.store()
        ledger = Outbox(db, clock=clock)
        await ledger.begin(samples.reply(MessageId("1"), CHANNEL, "in_place"), ["Like this."])
        await ledger.begin(samples.reply(MessageId("2"), CHANNEL, "in_place"), ["Like that."])
        await ledger.mark_finished(MessageId("2"))
        await JobQueue(db).submit(INDEX, None)
        await CheckpointStore(db).load_or_create([GuildId("5")], hours_ago)

    in_database(work)
    before = listing(DATA)
    status = told(intern)
    assert listing(DATA) == before
    assert status["feedback"] == {"up": 2, "down": 1}
    assert (status["shed_today"], status["shed"]) == (2, 5)
    assert status["counts_today"] == {SHED: 2, "questions": 7}
    assert (status["pending_posts"], status["waiting_jobs"]) == (1, 1)
    (mark,) = status["checkpoints"]
    assert (mark["guild_id"], mark["channels_ahead"]) == ("5", 0)
    assert 5 * 3600 <= mark["age_seconds"] < 5 * 3600 + 60
    out = intern("status").out
    assert "server 5: nothing new was handled since " in out
    assert "(5 hours ago)" in out


def test_marks_of_quiet_channels_are_not_told_as_a_backlog(intern: Intern) -> None:
    now = SystemClock().now()
    long_ago, lately = (position_at(now - timedelta(**each)).id for each in ({"hours": 5}, {"minutes": 3}))

    async def work(db: SqliteDatabase) -> None:
        marks = CheckpointStore(db)
        await marks.load_or_create([GuildId("5")], long_ago)
        await marks.save(StoredCheckpoints(channels={CHANNEL: Checkpoint(guild_id=GuildId("5"), settled_to=lately)}))

    in_database(work)
    (mark,) = told(intern)["checkpoints"]
    assert mark["channels_ahead"] == 1
    assert 180 <= mark["newest_age_seconds"] < 240
    assert 5 * 3600 <= mark["age_seconds"] < 5 * 3600 + 60
    assert (mark["until"], mark["newest"]) == tuple(
        parse_position(each).time.isoformat().replace("+00:00", "Z") for each in (long_ago, lately)
    )
    out = intern("status").out
    newest, until = (f"{parse_position(each).time:%Y-%m-%d %H:%M:%S} UTC" for each in (lately, long_ago))
    assert f"handled up to {newest} (3 minutes ago) where people write" in out
    assert f"; a restart looks at quiet channels from {until} on" in out


def test_what_is_left_out_is_listed_after_the_sources(intern: Intern, wording: Wording) -> None:
    folder = DATA / "knowledge-base" / "sources"
    folder.mkdir(parents=True)
    (folder / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480.\n")
    (folder / "latin.md").write_bytes(b"a\0b\x01\x02\x03")
    (folder / ".hidden.md").write_text("x")
    (folder.parent / "links.txt").write_text("no address\n")
    assert intern("index").code == 0
    out = intern("status", "--sources").out.splitlines()
    assert out[0].startswith("ok ")
    assert out[1] == "left out, as of the last look: 2"
    assert out[2].startswith(f"  {folder}/latin.md: it is binary, not text (")
    assert out[3].startswith(f"  {folder.parent}/links.txt:1: 'no address': the address holds blanks")
    assert len(out) == 4
    ports, latin, line = json.loads(intern("status", "--sources", "--json").out)
    assert (ports["state"], latin["state"], line["state"]) == ("ok", "skipped", "skipped")
    assert (latin["source_id"], latin["type"], latin["last_error"]) == (
        "kb:latin.md",
        "document",
        "it is binary, not text",
    )
    assert (line["source_id"], line["type"]) == ("links.txt:1", "link")
    (folder / "ports.md").unlink()
    assert intern("index").code == 0
    ended = intern("status", "--sources")
    assert ended.out.startswith("left out")
    wording(ended.err)


@pytest.mark.usefixtures("made")
def test_captures_that_wait_for_their_images_are_told_with_the_first_one_s_reason(intern: Intern) -> None:
    assert told(intern)["pending_images"] is None
    clock = HandClock(SystemClock().now() - timedelta(hours=3))

    async def work(db: SqliteDatabase) -> None:
        pending = PendingCaptures(db, clock=clock, conversations_of=lambda _: ())
        await pending.add(samples.capture_request())
        clock.turn(hours=2)
        [first] = await pending.list_waiting()
        await pending.save_failure(first, "the model is away", again_in=timedelta(minutes=1), by_model=False)
        await pending.add(samples.capture_request(samples.message(n=9), conversation="reply_9"))

    in_database(work)
    before = listing(DATA)
    waits = told(intern)["pending_images"]
    assert listing(DATA) == before
    assert (waits["captures"], waits["reason"]) == (2, "the model is away")
    assert 3 * 3600 <= waits["oldest_seconds"] < 3 * 3600 + 60
    told_of = "attachments: 2 captures wait to be archived, the first from 3 hours ago: the model is away"
    assert told_of in intern("status").out


@pytest.mark.rest
def test_a_database_in_use_is_read_beside_its_writer(intern: Intern) -> None:
    async def run() -> None:
        async with await SqliteDatabase.open(DATA / "intern.db") as db:
            await FeedbackStore(db, clock=SystemClock()).vote(MessageId("1"), UserId("1"), up=True)
            code, out, err = await anyio.to_thread.run_sync(process, "status", "--json")
            assert (code, err) == (0, "")
            assert json.loads(out)["feedback"] == {"up": 1, "down": 0}
            await FeedbackStore(db, clock=SystemClock()).vote(MessageId("2"), UserId("1"), up=False)

    anyio.run(run)
    assert told(intern)["feedback"] == {"up": 1, "down": 1}


async def _count_decline() -> dict[str, int]:
    async with await SqliteDatabase.open(DATA / "intern.db") as db:
        counts = DailyCounts(db, clock=SystemClock())
        events = ActivityReporter(ActivityRecorder(counts))
        events.report_decline(QuestionDeclined(request=samples.answer_request(), reason="shed"))
        await counts.store()
        return dict(await counts.read_day(SystemClock().now().date()))


@pytest.mark.usefixtures("intern")
def test_what_the_actors_count_is_what_is_told() -> None:
    DATA.mkdir()
    assert anyio.run(_count_decline) == {SHED: 1}


def test_an_empty_database_is_read_as_it_is(intern: Intern) -> None:
    DATA.mkdir()
    (DATA / "intern.db").touch()
    status = told(intern)
    assert status["feedback"] == {"up": 0, "down": 0}
    assert (DATA / "intern.db").read_bytes() == b""


@pytest.mark.rest
def test_a_process_at_work_is_named_and_not_disturbed(intern: Intern) -> None:
    with FolderLock(DATA):
        code, out, err = process("status", "--json")
        assert (code, err) == (0, "")
        assert (json.loads(out)["running"], json.loads(out)["pid"]) == (True, os.getpid())
    assert told(intern)["running"] is False


def test_a_process_that_was_killed_holds_nothing_any_more(intern: Intern) -> None:
    DATA.mkdir()
    (DATA / ".lock").write_text("4711\n")
    status = told(intern)
    assert (status["running"], status["pid"]) == (False, None)
    with FolderLock(DATA):  # and neither do we
        pass


@pytest.mark.parametrize("path", ["intern.db", ".lock"])
def test_what_cannot_be_read_ends_with_3(intern: Intern, path: str) -> None:
    (DATA / path).parent.mkdir(parents=True, exist_ok=True)
    if path == "intern.db":
        (DATA / path).write_bytes(b"no database at all" * 100)
    else:
        (DATA / path).symlink_to("elsewhere")
    code, out, err = intern("status")
    assert (code, out) == (3, "")
    assert path.rpartition("/")[2] in err
    assert err.count("\n") == 1


# Finding G3.
@pytest.mark.rest
@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("command", [["status"], ["archive", "list"]])
def test_neither_hikari_nor_the_model_s_client_nor_its_prompts_are_imported(command: list[str]) -> None:
    code = (
        "import sys\nfrom intern.frontends.cli import main\ntry: main()\nfinally:\n"
        "    print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )
    unneeded = {"hikari", "aiohttp", "httpx", "jinja2", "intern.service.models", "intern.models.endpoint"}
    assert not unneeded.intersection(done.stderr.splitlines())


@pytest.mark.usefixtures("made")
def test_facts_that_look_secret_are_counted_and_harmless_words_are_not(intern: Intern) -> None:
    async def teach() -> None:
        settings = make_settings(DATA)
        settings.paths.sources.mkdir(parents=True, exist_ok=True)
        said = (
            "the admin password of the staging relay is hunter2; log in with that.",
            "passwords are reset under Settings, by yourself.",
        )
        async with open_intern(settings, clock=HandClock()) as door:
            for n, each in enumerate(said, 1):
                assert await door.capture(samples.capture(f"How do I log in to relay {n}?", f"As of now {each}", n=n))
            await door.index()

    assert told(intern)["secret_facts"] == 0
    anyio.run(teach)
    assert told(intern)["secret_facts"] == 1
    assert "facts that look secret: 1, not kept" in intern("status").out
    assert "passwords are reset" in intern("facts").out


@pytest.mark.usefixtures("made")
def test_what_was_masked_is_told_by_kind_and_number_over_all_days(intern: Intern) -> None:
    async def masked() -> None:
        clock = HandClock()
        async with await SqliteDatabase.open(DATA / "intern.db") as db:
            for kind in ("api_key", "email", "api_key"):
                counts = DailyCounts(db, clock=clock)
                counts.add(f"masked_{kind}", 2)
                await counts.store()
                clock.turn(days=1)

    assert told(intern)["masked"] == {}
    anyio.run(masked)
    assert told(intern)["masked"] == {"api_key": 4, "email": 2}
    assert "kept out of the archive: 4 api_key, 2 email" in intern("status").out
