"""The settings of one of many communities: its own settings, laid over those of its process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from intern.core.errors import ConfigError
from intern.core.ids import GuildId
from intern.models.options import LlmOptions
from intern.settings.loading import convert_ids_to_text, settings_schema
from intern.settings.raw_settings import PREFIX, apply_variable
from intern.settings.schema import explain_error
from intern.settings.settings import DataSection, KbSection, Settings
from intern.settings.validation import OF_ONE_SERVER, find_problems

CommunityChoices: TypeAlias = Mapping[str, Mapping[str, Any]]
"""A part of the settings, in the shape of the file."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_PATHS = {name: "" for name in KbSection.__struct_fields__ if name.endswith(("_dir", "_path"))}
# The settings that a community may choose. All others cost the process something, read its disk, or hold its secrets.
_THEIRS: Mapping[str, frozenset[str]] = {
    "discord": frozenset(
        "team_member_ids team_role_ids listed_channel_ids handoff_role_id channels default_mode"
        " message_batch_wait_seconds language mention_reply_window max_questions_per_user_per_hour first_lookback"
        " max_question_age read_files".split()
    ),
    "ai": frozenset("project_introduction answer_scope refusal_policy retract".split()),
    "kb": frozenset(("review", "mask_emails", "links")),
    "extraction": frozenset(("auto",)),
    "llm": frozenset(("daily_token_budget", "daily_cost_budget")),
    "hosting": frozenset(("questions_per_day", "sources", "cost_per_day")),
}


class Community(Struct, frozen=True, kw_only=True):
    """A community that is known, whether or not it is open."""

    name: str
    """The name of its rows and of its folder: `a-z`, `0-9` and `-`."""
    guild_ids: tuple[GuildId, ...]
    chosen: CommunityChoices = {}
    """Its own settings, in the shape of the file."""


class CommunitySettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one community."""

    name: str

    @property
    def community(self) -> str:
        """The community of these settings, as the database names it."""
        return self.name

    @property
    def home(self) -> Path:
        """The data folder of the process, with its database and its lock."""
        return self.data.dir.parents[1]


def _check_one_shard(community: Community, defaults: Settings) -> None:
    if defaults.moves and len(community.guild_ids) > 1:
        raise ConfigError(
            f"community {community.name} has {len(community.guild_ids)} servers, whose shards several processes may"
            " hold: with hosting.enabled and data.url it may have one; serve the others by a process of their own"
        )


def build_community_settings(community: Community, defaults: Settings) -> Settings:
    """Lay a community's own settings over those of the process. Raises ConfigError that names the key.

    It has a folder of its own below the process's. No path of the process is its own: two would write to one archive.
    """
    name = community.name
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name[:80]!r} is no name of a community: use a-z, 0-9 and -, at most 64 characters")
    _check_one_shard(community, defaults)
    sections: dict[str, Any] = {each: getattr(defaults, each) for each in Settings.__struct_fields__}
    sections["kb"] = replace(defaults.kb, **_PATHS, qa_raw_last_processed_id="")
    for section, values in community.chosen.items():
        for key in values:
            if key not in _THEIRS.get(section, ()):
                raise ConfigError(f"community {name}: {section}.{key} can be set for the whole process only")
        sections[section] = {**asdict(sections[section]), **values}
    own = {**OF_ONE_SERVER, "guild_ids": community.guild_ids, **community.chosen.get("discord", {})}
    sections["discord"] = {**asdict(defaults.discord), **own}
    sections["data"] = DataSection(dir=defaults.data.dir / "communities" / name, url=defaults.data.url)
    if defaults.llm_kb is not None:
        sections["llm_kb"] = replace(defaults.llm_kb, **community.chosen.get("llm", {}))
    try:
        settings = msgspec.convert({**sections, "name": name}, CommunitySettings)
    except msgspec.ValidationError as error:
        # Without its cause, which may repeat the value.
        key, what = explain_error(error, settings_schema())
        raise ConfigError(f"community {name}: {key}: {what}") from None
    if most := settings.hosting.sources:
        settings = replace(settings, kb=replace(settings.kb, links=settings.kb.links[:most]))
    if limit := settings.hosting.cost_per_day:
        llm = _limit_daily_cost(settings.llm, limit)
        llm_kb = settings.llm_kb and _limit_daily_cost(settings.llm_kb, limit)
        settings = replace(settings, llm=llm, llm_kb=llm_kb)
    # It serves the servers that it names, unlike the process.
    for key, problem in find_problems(replace(settings, hosting=replace(settings.hosting, enabled=False))):
        raise ConfigError(f"community {name}: {key} {problem}")
    return settings


def _limit_daily_cost(options: LlmOptions, limit: float) -> LlmOptions:
    return replace(options, daily_cost_budget=min(options.daily_cost_budget or limit, limit))


def change_chosen_value(chosen: CommunityChoices, key: str, value: str | None) -> CommunityChoices:
    """Return a community's own settings with one key set, as a variable of the environment would, or removed.

    Raises ConfigError for an unknown key; `build_community_settings` judges the value.
    """
    section, _, name = key.partition(".")
    if name not in _THEIRS.get(section, ()):
        theirs = ", ".join(sorted(f"{each}.{one}" for each, names in _THEIRS.items() for one in names))
        raise ConfigError(f"{key} is no setting of a community; these are: {theirs}")
    tables: dict[str, Any] = {each: dict(values) for each, values in chosen.items()}
    if value is None:
        tables.get(section, {}).pop(name, None)
        return {each: values for each, values in tables.items() if values}
    apply_variable(tables, f"{PREFIX}{section}__{name}".upper(), value, repr(value[:80]), settings_schema())
    return cast("CommunityChoices", convert_ids_to_text(tables))
