"""A check of the settings and of the bot's permissions on its servers. It changes nothing. asyncio only.

The findings come in the order in which to correct them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Literal

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.answering.prompts import GATE, GateIn
from intern.core import errors
from intern.core.clock import SystemClock
from intern.core.messages import Channel
from intern.core.progress import tell
from intern.core.text.language import language_of
from intern.models.endpoint import STREAMING, EndpointModel, Form
from intern.models.options import LlmOptions
from intern.models.usage import Usage
from intern.platforms.discord import audience
from intern.search.embedding_local import ENGLISH
from intern.service.databases import Server, at_rest, examined, is_made, open_database
from intern.service.models import embeddings_kind, kept, local_model, remembering, templates_of
from intern.service.searching import never_discovered
from intern.service.status import lost_folders, outdated_answers, vectors_of_others, vectors_told
from intern.service.stores import engine_told
from intern.settings.loading import NO_PRICE, Settings
from intern.sources.scanning import Scanner
from intern.stores.archive import Archive
from intern.stores.database import Database
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.maintenance import newest_texts, problems, unsearchable
from intern.stores.sqlite.usage import FormLog, UsageLog

NAMED_AT_MOST: Final = 5
"""Channels, or damaged pieces, in one line."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    level: Literal["ok", "note", "todo"]
    """`todo`: intern cannot do all of its work. `note`: it can, but for a nicety."""
    what: str
    do: str = ""
    """What mends it; empty where nothing needs to be."""


def _todo(what: str, do: str) -> Finding:
    return Finding(level="todo", what=what, do=do)


def _note(what: str) -> Finding:
    return Finding(level="note", what=what)


def good(what: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(level="ok", what=what)


def _model(settings: Settings) -> Finding:
    """Whether questions can be answered."""
    try:
        settings.require_model()
    except errors.ConfigError as error:
        return _todo("no model is chosen", str(error))
    return good("a model is chosen")


def _embeddings(settings: Settings) -> Iterator[Finding]:
    try:
        model, documents, lacking = vectors_told(settings)
        others = vectors_of_others(settings)
    except errors.ConfigError as error:
        yield _todo("the embedding model cannot be used", str(error))
        return
    except errors.KnowledgeError as error:
        yield _todo(f"the search could not be looked at: {error}", str(error))
        return
    if model is None and settings.embeddings.provider == "none":
        yield good("search uses words alone, as embeddings.provider says")
    elif model is None:
        yield _note('search uses words alone; for paraphrases, pip install "intern[embeddings]" or see [embeddings]')
    else:
        vectors = "all" if not lacking else f"{documents - lacking}"
        yield good(f"embeddings: {model}; {vectors} of {documents} documents have a vector")
        if others:
            yield _note(f"{others} documents have a vector of another model, and get new ones once the bot runs")
        yield from _own_model(settings)
        if model == ENGLISH.name:
            yield from _languages(settings)


def _own_model(settings: Settings) -> Iterator[Finding]:
    """Whether the operator's own file can be loaded."""
    if embeddings_kind(settings) == "local" and settings.embeddings.is_own:
        try:
            local_model(settings).load()
        except errors.ModelAccessError as error:
            yield _todo("the embedding model cannot be loaded", str(error))


def _languages(settings: Settings) -> Iterator[Finding]:
    """Whether most documents or questions are in a language that the English model does not know."""
    try:
        documents, questions = newest_texts(at_rest(settings))
    except errors.KnowledgeError:
        return  # the check of the database reports that
    for what, texts in (("documents", documents), ("questions", questions)):
        found = Counter(filter(None, map(language_of, texts)))
        foreign = [language for language, _ in found.most_common() if language != "en"]
        if sum(found[each] for each in foreign) > found["en"]:
            told = f"most {what} whose language can be told are not in English ({', '.join(foreign)}), which the model"
            yield _note(
                f'{told} knows best; set embeddings.model = "multilingual" and pip install "intern[multilingual]"'
            )


def folder_findings(settings: Settings) -> list[Finding]:
    """How the data folder stands, and what discovery can look at. Blocks; beside a bot at work, too."""
    return [*_stored(settings), *_outdated(settings), *_texts(settings), *_scan_paths(settings)]


def _outdated(settings: Settings) -> Iterator[Finding]:
    """Whether posted answers still stand on their sources."""
    try:
        number = outdated_answers(settings)
    except errors.KnowledgeError:
        return  # the check of the database reports that
    if number:
        some = "1 posted answer cites" if number == 1 else f"{number} posted answers cite"
        yield _note(f"{some} what has changed or was withdrawn since; the status page lists them under Outdated")


def _texts(settings: Settings) -> Iterator[Finding]:
    """Find damaged or lost text files."""
    paths = settings.paths
    try:
        for what in lost_folders(paths, Knowledge(at_rest(settings))):
            yield _todo(what, what)
        damaged = Archive(paths.raw).damaged
    except errors.KnowledgeError as error:
        yield _todo(f"archive or decisions could not be looked at: {error}", str(error))
        return
    if not damaged:
        return
    named = "; ".join(map(str, damaged[:NAMED_AT_MOST]))
    more = f"; and {len(damaged) - NAMED_AT_MOST} more" if len(damaged) > NAMED_AT_MOST else ""
    yield _todo(
        f"{len(damaged)} damaged pieces of the archive are passed over: {named}{more}",
        f"mend {paths.raw / damaged[0].file} at line {damaged[0].line} with a text editor, or put a backup in its "
        "place; what a crash left half-written may be deleted",
    )


def _scan_paths(settings: Settings) -> Iterator[Finding]:
    never = never_discovered(settings)
    for path, reason in Scanner(settings.discovery, never=never).troubles().items():
        yield _todo(
            f"discovery cannot look at {path} ({reason})",
            f"correct discovery.scan_paths, or let the user that intern runs as read {path}",
        )


def _stored(settings: Settings) -> list[Finding]:
    path = settings.paths.database
    try:
        if (server := examined(settings)) is not None:
            return [*_server(server), *_searchable(settings.paths.search), *_embeddings(settings)]
        if not settings.paths.is_made():
            what = f"there is no data folder {path.parent.absolute()}, and so no database yet"
            return [good(f"{what}; `intern init` or the first start makes them"), *_embeddings(settings)]
        if not path.exists():
            return [good("there is no database yet; the first start makes it"), *_embeddings(settings)]
        if not is_made(settings):
            return [good("the database is empty; the next start makes its tables"), *_embeddings(settings)]
        return [_sound(path), *_searchable(settings.paths.search), *_embeddings(settings)]
    except errors.KnowledgeError as error:
        return [_todo(f"the database could not be looked at: {error}", str(error))]


def _server(server: Server) -> Iterator[Finding]:
    if server.trouble:
        yield _todo(*server.trouble)
    elif server.found.is_made:
        yield good(f"the database is {server.place} (PostgreSQL {server.found.version})")
    else:
        yield good(f"{server.place} (PostgreSQL {server.found.version}) is empty; the next start makes its tables")
    if server.found.is_unguarded:
        yield _note(
            f"{server.found.role} is a superuser or may bypass row-level security, which keeps communities apart even"
            " where a statement is wrong; better give intern a role of its own: create role intern login"
        )


def _prices(settings: Settings) -> Iterator[Finding]:
    """Whether each model that is asked has one, where any has."""
    for table in settings.without_price:
        yield _note(NO_PRICE.format(table))


def _sound(path: Path) -> Finding:
    """Check pages and rows. Raises KnowledgeError."""
    if wrong := problems(path, NAMED_AT_MOST):
        return _todo(
            f"the database is damaged: {'; '.join(wrong)}",
            f"end the bot, move {path} away with its -wal and -shm files, and put a backup in its place, or make "
            f"it anew from the text files: intern restore {path.parent}",
        )
    return good("the database is sound, and each row points to what is there")


def _searchable(path: Path) -> Iterator[Finding]:
    """Check the file of the search, where there is one."""
    if not path.exists():
        return
    try:
        wrong = problems(path, NAMED_AT_MOST) or unsearchable(path)
    except (errors.KnowledgeError, OSError) as error:
        wrong = (str(error),)
    if wrong:
        yield _todo(
            f"the search file {path} is damaged: {'; '.join(wrong)}",
            "run `intern index --rebuild-search`: the file is made anew from the database, without a model",
        )
    else:
        yield good("the search file is sound")


async def _engine(settings: Settings) -> Iterable[Finding]:
    told, error = await engine_told(settings)
    if error:
        mend = "see that it runs, and check search.url and search.api_key; until then, search uses local vectors"
        return [_todo(f"the vector engine gave no answer: {error}", mend)]
    return map(good, told)


_QUESTION: Final = GateIn(question="How do I reset my password?", history="", addressed=True)
_RETRIES: Final = 1


async def ask_endpoints(settings: Settings) -> list[Finding]:
    """Ask each model endpoint one question; return what came of it. Nothing is asked where a setting is missing.

    Each begins with the fullest form of requests, and replaces what was remembered of the endpoint: it may take more
    than it did. Without a database that can be written to, neither that nor the tokens are kept.
    """
    try:
        settings.require_model()
    except errors.ConfigError:
        return []
    asked = [("llm", settings.llm)]
    if settings.llm_kb is not None and _asked_of(settings.llm_kb) != _asked_of(settings.llm):
        asked.append(("llm.kb", settings.llm_kb))
    asked = [(section, options) for section, options in asked if options.kind == "endpoint"]
    if not asked:
        return []
    findings: list[Finding] = []
    async with AsyncExitStack() as stack:
        db = await _database(settings, stack)
        usage = Usage(None if db is None else UsageLog(db), clock=SystemClock())
        stack.push_async_callback(kept, usage)
        for done, (section, options) in enumerate(asked):
            tell("Asking {total} model endpoints", done, len(asked))
            findings.append(await _ask(settings, section, options, usage, None if db is None else FormLog(db)))
    return findings


def _asked_of(options: LlmOptions) -> tuple[object, ...]:
    return options.kind, options.base_url, options.api_key, options.model, options.structured_output


async def _database(settings: Settings, stack: AsyncExitStack) -> Database | None:
    """Open the database, if there is one that can be written to."""
    try:
        made = await run_sync(is_made, settings)
        return await stack.enter_async_context(await open_database(settings)) if made else None
    except errors.KnowledgeError:
        return None  # the look at the folder says what is wrong


async def _ask(settings: Settings, section: str, options: LlmOptions, usage: Usage, forms: FormLog | None) -> Finding:
    # What learns may take its time.
    patience = settings.ai.request_timeout_seconds if section == "llm" else None
    try:
        async with EndpointModel(
            replace(options, max_retries=min(options.max_retries, _RETRIES)),
            templates=templates_of(settings),
            usage=usage,
            section=section,
            remember=remembering(forms, options),
        ) as model:
            with anyio.fail_after(patience):
                await model.ask(GATE, _QUESTION)
    except TimeoutError:
        too_slow = f"no whole reply to one short question in {patience:g} s"
        return _todo(_silent(section, too_slow), "use a faster model, or raise ai.request_timeout_seconds")
    except errors.ModelBudgetError as error:
        return _note(f"the model of [{section}] was not asked: {error}")
    except (errors.ConfigError, errors.ModelError) as error:
        return _todo(_silent(section, str(error)), _mend(section, error))
    by = "" if section == "llm" else f", for [{section}]"
    return good(f"the endpoint at {model.where} answers as {options.model}{by}{_without(model.form)}")


def _silent(section: str, reason: str) -> str:
    return f"the model of [{section}] gave no answer: {reason}"


def _mend(section: str, error: errors.ConfigError | errors.ModelError) -> str:
    match error:
        case errors.ModelReplyError():
            return (
                f"try another {section}.structured_output, a larger {section}.max_tokens or another {section}.model;"
                f" its reply could not be used: {error}"
            )
        case errors.ModelAccessError():
            return str(error)  # it names the settings to check
        case errors.ModelUnavailableError():
            return (
                f"see that the endpoint runs, and check {section}.base_url; where it is only slow,"
                f" raise {section}.timeout_seconds: {error}"
            )
        case _:
            return str(error)


def _without(form: Form) -> str:
    """Describe what the endpoint does not take."""
    refused = [
        *(["bounds in schemas"] if not form.bounds else []),
        *(["a temperature"] if not form.temperature else []),
        *(["streaming"] if form.streaming == len(STREAMING) - 1 else []),
        *(["counts of tokens in streams"] if form.streaming == 1 else []),
    ]
    return f"; it does not take {', '.join(refused)}, so intern leaves that out" if refused else ""


_NAMES: Final[Mapping[int, str]] = {
    audience.VIEW_CHANNEL: "View Channel",
    audience.READ_MESSAGE_HISTORY: "Read Message History",
    audience.CREATE_PUBLIC_THREADS: "Create Public Threads",
    audience.SEND_MESSAGES_IN_THREADS: "Send Messages in Threads",
    audience.SEND_MESSAGES: "Send Messages",
    audience.MENTION_EVERYONE: "Mention Everyone, Here, and All Roles",
}
_TO_LISTEN: Final = audience.VIEW_CHANNEL | audience.READ_MESSAGE_HISTORY
_TO_ANSWER: Final = _TO_LISTEN | audience.SEND_MESSAGES_IN_THREADS
WANTED: Final = _TO_ANSWER | audience.CREATE_PUBLIC_THREADS | audience.SEND_MESSAGES
"""The least that does all: Send Messages is only for sharing an answer to /ask."""


class Report(Struct, frozen=True, kw_only=True):
    """All that was looked at."""

    ok: bool
    """There is nothing to do."""
    next: str
    """The one thing to do now."""
    invite: str
    """The link that puts intern on a server, with no more permissions than it needs."""
    findings: tuple[Finding, ...]


async def examine(settings: Settings) -> Report:
    """Look at everything, and ask each model one question; at Discord only with a token.

    Raises ConfigError for a token that is wrong, ChatUnavailableError where Discord cannot be asked.
    """
    found = await audience.look(settings.discord) if settings.discord.token else None
    asked = [*await ask_endpoints(settings), *await _engine(settings)]
    here = [_model(settings), *asked, *_prices(settings), *await run_sync(folder_findings, settings)]
    if found is None:
        invite, mend = "", "put the bot's token in INTERN__DISCORD__TOKEN or, as discord.token, in intern.toml"
        # Last: what is damaged is worse than what is not set up yet.
        findings = [*here, _todo("Discord was not looked at, for there is no token", mend)]
    else:
        invite = invite_link(found.application_id, settings.discord.site)
        there = _Servers(settings, found, invite)
        findings = [*there.joined(), *here, *there.set_up()]
    todo = next((finding.do for finding in findings if finding.level == "todo"), "")
    following = todo or "nothing; `intern run` can do its work"
    return Report(ok=not todo, next=following, invite=invite, findings=tuple(findings))


def invite_link(application_id: str, site: str) -> str:
    """Return the link by which a server's manager adds intern."""
    return f"{site}/oauth2/authorize?client_id={application_id}&scope=bot+applications.commands&permissions={WANTED}"


class _Servers:
    def __init__(self, settings: Settings, found: audience.SetUp, invite: str) -> None:
        self._settings, self._discord = settings, settings.discord
        self._found, self._invite = found, invite

    def set_up(self) -> Iterator[Finding]:
        joined, complete = self._found.joined, self._found.is_complete
        if complete:
            yield from self._team(joined)
        for server in joined:
            yield from self._permissions(server)
        if complete:
            yield from self._channels()
            yield from self._handoff(joined)

    def joined(self) -> Iterator[Finding]:
        yield good("Discord accepts the token")
        if self._found.reads_messages:
            yield good("the Message Content Intent is on")
        else:
            yield _todo(
                "the bot may not read messages",
                "switch on the Message Content Intent: https://discord.com/developers/applications/"
                f"{self._found.application_id}/bot, Privileged Gateway Intents",
            )
        if not self._discord.guild_ids:
            mend = 'set discord.guild_ids to the ids of your servers, as in guild_ids = ["123…"]'
            yield _todo("no server is named", mend)
        for guild_id, server in self._found.servers.items():
            if server is None:
                yield _todo(f"the bot is not on server {guild_id}", f"open this link and choose it: {self._invite}")
            else:
                yield good(f"the bot is on {server.name or guild_id}")

    def _team(self, servers: Sequence[audience.Server]) -> list[Finding]:
        if not (self._discord.team_role_ids or self._discord.team_member_ids):
            what = "no team is set"
            return [_todo(what, "set discord.team_role_ids or discord.team_member_ids, or nothing is ever learned")]
        lost = [
            _lost("role", role_id, "discord.team_role_ids")
            for role_id in self._discord.team_role_ids
            if not any(role_id in server.roles for server in servers)
        ]
        lost += [_lost("member", user_id, "discord.team_member_ids") for user_id in self._found.lost_members]
        return lost or [good("the team is there")]

    def _channels(self) -> Iterator[Finding]:
        named = [(rule.id, "discord.channels") for rule in self._discord.channels]
        named += [(channel_id, "discord.listed_channel_ids") for channel_id in self._discord.listed_channel_ids]
        for channel_id, key in named:
            if channel_id in self._found.lost_channels:
                yield _lost("channel", channel_id, key)

    def _handoff(self, servers: Sequence[audience.Server]) -> Iterator[Finding]:
        role_id = self._discord.handoff_role_id
        server = next((server for server in servers if role_id in server.roles), None)
        if server is not None:
            role = server.roles[role_id]
            mend = f"allow anyone to mention the role {role.name}, in the settings of {server.name}, Roles"
            may = role.mentionable or server.ours() & audience.MENTION_EVERYONE
            yield good(f"{role.name} can be mentioned") if may else _todo(f"the bot may not mention {role.name}", mend)
        elif role_id:
            yield _lost("role", role_id, "discord.handoff_role_id")

    def _permissions(self, server: audience.Server) -> Iterator[Finding]:
        lacking: dict[int, list[audience.NamedChannel]] = {}
        wishes: list[audience.NamedChannel] = []
        seen = 0
        for channel in server.channels:
            needed = self._needed(server, channel)
            seen += bool(needed)
            ours = server.ours(channel)
            if missing := needed & ~ours:
                lacking.setdefault(missing, []).append(channel)
            if needed & audience.SEND_MESSAGES_IN_THREADS and channel.is_text and not ours & audience.SEND_MESSAGES:
                wishes.append(channel)
        for missing, channels in lacking.items():
            everywhere = missing & ~server.ours()
            mend = f"open this link again, and choose {server.name}: {self._invite}"
            if not everywhere:
                mend = f"allow it for the bot's role in the settings of {_named(channels)}"
            yield _todo(f"{_words(missing)} is missing in {_named(channels)}", mend)
        if wishes:
            yield _note(f"Send Messages is missing in {_named(wishes)}: answers to /ask cannot be shared there")
        if server.ours() & audience.ADMINISTRATOR:
            yield _note(f"the bot is an administrator of {server.name}, and need not be")
        if not seen:
            mend = "open a channel to everyone, or name private ones in discord.listed_channel_ids"
            yield _todo(f"no channel of {server.name} is open to everyone and not off", mend)
        elif not lacking:
            yield good(f"permissions suffice in {seen} channel{'s' if seen > 1 else ''} of {server.name}")

    def _needed(self, server: audience.Server, channel: audience.NamedChannel) -> int:
        """Return the permissions that the bot needs in a channel; 0 where it keeps out."""
        if not channel.holds_answers:
            return 0
        if not server.is_public(channel) and channel.id not in self._discord.listed_channel_ids:
            return 0
        mode = self._settings.conversations.mode_of(Channel(id=channel.id, guild_id=server.id, kind="channel"))
        match mode:
            case "off":
                return 0
            case "capture_only":
                return _TO_LISTEN
            case "answer" | "mention_only":
                return _TO_ANSWER | (audience.CREATE_PUBLIC_THREADS if channel.is_text else 0)


def _lost(kind: str, lost_id: str, key: str) -> Finding:
    return _todo(f"the bot finds no {kind} {lost_id} on its servers", f"correct or remove {lost_id} in {key}")


def _named(channels: Sequence[audience.NamedChannel]) -> str:
    shown = ", ".join(f"#{channel.name or channel.id}" for channel in channels[:NAMED_AT_MOST])
    more = len(channels) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _words(bits: int) -> str:
    return ", ".join(name for bit, name in _NAMES.items() if bits & bit)
