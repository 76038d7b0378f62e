"""Settings: the sources of each value, and the errors about wrong ones."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import tomli
from hypothesis import given, settings as bounds, strategies as st
from msgspec.structs import replace

from intern.answering.prompts import AnsweringOptions
from intern.core.errors import ConfigError, ModelBudgetTooSmallError
from intern.core.text.secret_values import Secret
from intern.models.limits import EndpointLimits, make_call_queue
from intern.models.options import LlmOptions
from intern.models.usage import UsageCounter
from intern.service.databases import open_read_only
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.examples import examples

EXAMPLE = Path(__file__).parents[1] / "intern.toml.example"
CANARY = "cAnArY-MTE5ODYyMjQ4MzQ3MTkyNTI0OA.Gx7-secret"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty working folder, and an environment that sets nothing."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("INTERN"):
            monkeypatch.delenv(name)
    return tmp_path


def loaded(text: str = "", /, **environ: str) -> Settings:
    """Return the settings of a file with this text and these variables."""
    path = Path("given.toml")
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environ=environ)


def refused(text: str = "", /, **environ: str) -> str:
    """Return the reason why these are refused, on one line that never shows a value."""
    with pytest.raises(ConfigError) as error:
        loaded(text, **environ)
    assert CANARY not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert "\n" not in str(error.value)
    return str(error.value)


# Sources of values.


def test_without_a_file_everything_has_its_default() -> None:
    settings = load_settings(environ={})
    assert settings == Settings()
    assert settings.data.dir == Path("data")
    assert settings.discord.message_batch_wait_seconds == 60
    assert settings.llm.kind == "offline"
    assert settings.kb_model is settings.llm
    assert settings.paths.sources == Path("data/knowledge-base/sources")
    assert settings.paths.raw == Path("data/team-knowledge/raw")
    assert settings.paths.database == Path("data/intern.db")


@pytest.mark.parametrize("told", ["", 'provider = "local"\n'])
def test_a_model_on_this_machine_is_one_of_ours_or_a_file(told: str) -> None:
    for name in ("", "english", "multilingual", "/srv/e5/model.onnx"):
        assert loaded(f'[embeddings]\n{told}model = "{name}"').embeddings.model == name
    said = refused(f'[embeddings]\n{told}model = "text-embedding-3-small"')
    assert '"multilingual"' in said
    assert 'embeddings.provider = "endpoint"' in said


def test_a_file_sets_what_it_names_and_nothing_else() -> None:
    settings = loaded('[ai]\nmax_sources = 2\n[kb]\nteam_raw_dir = "/srv/raw"\n[data]\ndir = "elsewhere"')
    assert settings.ai == AnsweringOptions(max_sources=2)
    assert settings.paths.raw == Path("/srv/raw")
    assert settings.paths.topics == Path("elsewhere/team-knowledge/topics")


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    assert loaded('\ufeff[llm]\nmodel = "m"').llm.model == "m"


def test_the_environment_wins_over_the_file() -> None:
    settings = loaded(
        '[discord]\ntoken = "from file"\nguild_ids = ["1"]'.replace("from file", "file"), INTERN__DISCORD__TOKEN="env"
    )
    assert settings.discord.token == Secret("env")
    assert settings.discord.guild_ids == ("1",)


@pytest.mark.parametrize(
    ("variable", "value", "section", "key", "expected"),
    [
        ("INTERN__LLM__MODEL", "gpt = 4 # fast", "llm", "model", "gpt = 4 # fast"),
        ("INTERN__LLM__MODEL", "4", "llm", "model", "4"),
        ("INTERN__LLM__MODEL", '"quoted"', "llm", "model", '"quoted"'),
        ("INTERN__LLM__API_KEY", "sk-1", "llm", "api_key", Secret("sk-1")),
        ("INTERN__LLM__API_KEY", " sk-1\n", "llm", "api_key", Secret("sk-1")),
        ("INTERN__LLM__PROVIDER", "offline", "llm", "provider", "offline"),
        ("INTERN__LOG__LEVEL", "debug", "log", "level", "debug"),
        ("INTERN__DATA__DIR", "/srv/my data", "data", "dir", Path("/srv/my data")),
        ("INTERN__LLM__MAX_RETRIES", "5", "llm", "max_retries", 5),
        ("INTERN__LLM__TIMEOUT_SECONDS", "2.5", "llm", "timeout_seconds", 2.5),
        ("INTERN__LLM__TIMEOUT_SECONDS", "2", "llm", "timeout_seconds", 2.0),
        ("INTERN__LLM__IMAGES", "true", "llm", "images", True),
        ("INTERN__DISCORD__GUILD_IDS", '["12", 34]', "discord", "guild_ids", ("12", "34")),
        ("INTERN__DISCORD__TEAM_ROLE_IDS", "[]", "discord", "team_role_ids", ()),
    ],
)
def test_a_variable_needs_quotes_only_inside_of_lists(
    variable: str, value: str, section: str, key: str, expected: object
) -> None:
    settings = loaded("", **{variable: value})
    assert getattr(getattr(settings, section), key) == expected


def test_variables_of_others_are_left_alone() -> None:
    assert loaded("", INTERN_PORT="tcp://10.0.0.1:80", INTERNAL__X="1", PATH="/bin") == Settings()


def test_a_dotenv_file_is_read_and_the_real_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("INTERN__LLM__MODEL=filed\nexport INTERN__AI__MAX_SOURCES='3'  # few\nOTHER\n")
    assert load_settings().llm.model == "filed"
    assert load_settings().ai.max_sources == 3
    monkeypatch.setenv("INTERN__LLM__MODEL", "real")
    assert load_settings().llm.model == "real"


def test_a_mistake_in_a_dotenv_file_is_told_as_one() -> None:
    Path(".env").write_text(f"INTERN__LLM__MAX_RETRIES={CANARY}\n")
    with pytest.raises(
        ConfigError, match=r"^INTERN__LLM__MAX_RETRIES in \.env: llm\.max_retries is no string"
    ) as error:
        load_settings()
    assert CANARY not in str(error.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{CANARY} is my token\n", 1),
        (f"# mine\n\n \nINTERN__LLM__MODEL=m\n\n\nINTERN__DISCORD__TOKEN: {CANARY}\n", 7),
        (f"A=1\nINTERN__DISCORD__TOKEN='{CANARY}\nINTERN__LLM__MODEL=m\n", 2),
        (f'A="1\n2"\nINTERN__DISCORD__TOKEN="{CANARY}\n', 3),
        (f'INTERN__DISCORD__TOKEN="{CANARY}" {CANARY}\n', 1),
    ],
)
def test_a_line_of_a_dotenv_file_that_sets_nothing_is_told_by_its_number(text: str, line: int) -> None:
    Path(".env").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert str(error.value) == (
        f".env: line {line}: expected NAME=value, a comment (#) or nothing; close each quote that is opened"
    )


def test_a_name_without_a_value_in_a_dotenv_file_is_refused_unless_the_environment_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(".env").write_text(f"\nINTERN__DISCORD__TOKEN:{CANARY}\n")
    with pytest.raises(ConfigError) as error:
        load_settings()
    assert str(error.value) == ".env: line 2: has no `=` after the name; write NAME=value"
    Path(".env").write_text("INTERN__LLM__MODEL\n")
    monkeypatch.setenv("INTERN__LLM__MODEL", "real")
    assert load_settings().llm.model == "real"


def test_a_dotenv_file_may_be_a_pipe_and_name_its_own_variables() -> None:
    os.mkfifo(".env")
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(Path(".env").write_text, "HOST=relay\nINTERN__LLM__BASE_URL=http://${HOST}/v1\n")
        assert load_settings().llm.base_url == "http://relay/v1"
        written.result(5)


def test_a_dotenv_file_that_is_no_text_is_refused() -> None:
    Path(".env").write_bytes(b"INTERN__LLM__MODEL=\xff\n")
    with pytest.raises(ConfigError, match=r"^\.env: is not UTF-8"):
        load_settings()


def test_a_folder_named_dotenv_is_none_of_ours() -> None:
    Path(".env").mkdir()
    assert load_settings() == Settings()


def test_the_file_is_the_named_one_then_the_variable_s_then_the_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("intern", "variable", "named"):
        Path(f"{name}.toml").write_text(f'[llm]\nmodel = "{name}"')
    assert load_settings().llm.model == "intern"
    monkeypatch.setenv("INTERN_CONFIG", "variable.toml")
    assert load_settings().llm.model == "variable"
    assert load_settings(Path("named.toml")).llm.model == "named"
    monkeypatch.setenv("INTERN_CONFIG", "")
    assert load_settings().llm.model == "intern"


def test_overrides_win_over_everything() -> None:
    Path("intern.toml").write_text('[llm]\nmodel = "file"\n[ai]\nmax_sources = 2')
    settings = load_settings(environ={"INTERN__LLM__MODEL": "env"}, overrides={"llm": {"model": "over"}})
    assert (settings.llm.model, settings.ai.max_sources) == ("over", 2)


def test_the_model_for_indexing_is_laid_over_the_other_one() -> None:
    settings = loaded(
        '[llm]\nbase_url = "http://a/v1"\nmodel = "big"\napi_key = "k1"\n[llm.kb]\nmodel = "small"',
        INTERN__LLM__KB__TIMEOUT_SECONDS="5",
    )
    assert settings.llm_kb is not None
    assert settings.kb_model is settings.llm_kb
    assert (settings.kb_model.base_url, settings.kb_model.model) == ("http://a/v1", "small")
    assert settings.kb_model.api_key == Secret("k1")
    assert (settings.kb_model.timeout_seconds, settings.llm.timeout_seconds) == (5, 60)


@pytest.mark.parametrize("same", ["[llm.kb]", '[llm.kb]\nmodel = "m"'])
def test_a_model_for_indexing_that_is_the_same_shares_the_limits_of_the_other_one(same: str) -> None:
    settings = loaded(f'[llm]\nmodel = "m"\n{same}')
    assert settings.kb_model is settings.llm


def test_ids_may_be_numbers() -> None:
    settings = loaded("[discord]\nguild_ids = [123456789012345678]\nteam_member_ids = [1, '2']\nteam_role_ids = [3]")
    assert settings.discord.guild_ids == ("123456789012345678",)
    assert settings.discord.team_member_ids == ("1", "2")
    assert settings.discord.team_role_ids == ("3",)


def test_channels_have_modes_and_any_id_may_be_a_number() -> None:
    settings = loaded(
        "[discord]\nlisted_channel_ids = [7]\nhandoff_role_id = 8\ndefault_mode = 'mention_only'\n"
        "[[discord.channels]]\nid = 5\nmode = 'off'\n[[discord.channels]]\nid = '6'\nmode = 'answer'"
    )
    assert {rule.id: rule.mode for rule in settings.conversations.channels} == {"5": "off", "6": "answer"}
    assert settings.conversations.default_mode == "mention_only"
    assert (settings.discord.listed_channel_ids, settings.discord.handoff_role_id) == (("7",), "8")


def test_rules_on_who_may_read_a_fact_are_a_list_and_hold_to_their_words() -> None:
    settings = loaded(
        "[facts]\nkeep_secret = true\n[[facts.overrides]]\ncategory = 'person'\nvisibility = 'private'\n"
        "[[facts.overrides]]\ncontains = 'token'\nvisibility = 'shared'"
    )
    assert settings.facts.keep_secret
    assert [(rule.category, rule.contains, rule.visibility) for rule in settings.facts.overrides] == [
        ("person", "", "private"),
        ("", "token", "shared"),
    ]
    assert "facts.overrides.visibility" in refused("[[facts.overrides]]\nvisibility = 'everybody'")


def test_prices_are_a_list_and_hold_for_the_model_that_they_name() -> None:
    settings = loaded(
        """
        [llm]
        base_url = "http://localhost/v1"
        model = "large"
        daily_cost_budget = 2.5
        currency = "EUR"
        [[llm.prices]]
        model = "large"
        input = 3
        output = 15
        cached = 0.3
        [[llm.prices]]
        model = "small"
        input = 0.1
        output = 0
        [llm.kb]
        model = "small"
        """
    )
    assert settings.llm.price.compute_cost(1_000_000, 100_000, 500_000) == 1.5 + 0.15 + 1.5
    assert settings.kb_model.price.compute_cost(1_000_000, 100_000, 500_000) == 0.1
    assert (settings.kb_model.daily_cost_budget, settings.kb_model.currency) == (2.5, "EUR")


@pytest.mark.parametrize("section", ["llm", "llm.kb"])
def test_a_budget_of_money_needs_the_price_of_each_model_that_spends_it(section: str) -> None:
    named = "large" if section == "llm.kb" else "small"
    with pytest.raises(ConfigError, match=rf"{section}.daily_cost_budget: .*\[\[llm.prices\]\].*\[{section}\]"):
        loaded(
            f"""
            [llm]
            base_url = "http://localhost/v1"
            model = "large"
            daily_cost_budget = 2.5
            prices = [{{ model = "{named}", input = 3, output = 0 }}]
            [llm.kb]
            model = "small"
            """
        )


def test_a_model_that_writes_needs_the_price_of_what_it_writes_and_one_that_embeds_does_not() -> None:
    text = """
        [llm]
        base_url = "http://localhost/v1"
        model = "large"
        prices = [{ model = "large", input = 3, output = 0 }, { model = "vectors", input = 1 }]
        daily_cost_budget = 2.5
        [embeddings]
        provider = "endpoint"
        model = "vectors"
        """
    assert loaded(text).llm.price.compute_cost(1_000_000, 1_000_000) == 3, "0, and said so"
    told = "llm.prices: has no output for the model of [llm]: set it, to 0 where replies are free"
    for half in (text.replace(", output = 0", ""), text.replace(", output = 0", "").replace("daily_cost_budget", "#")):
        assert refused(half) == f"given.toml: {told}"
    prices = "[{ model = 'large', input = 3 }]"
    assert (
        refused(text.partition("prices")[0], INTERN__LLM__PRICES=prices)
        == f"the environment variable INTERN__LLM__PRICES: {told}"
    )
    assert refused(f"{text}\n[llm.kb]\nmodel = 'vectors'").startswith(
        "given.toml: llm.prices: has no output for the model of [llm.kb]"
    )
    assert refused(f"{text}\n[llm.kb]\nprices = {prices}").startswith(
        "given.toml: llm.kb.prices: has no output for the model of [llm.kb]"
    )
    assert "embeddings.daily_cost_budget: counts only what has a price: set [[llm.prices]] for the model of [emb" in (
        refused(text.replace('"vectors", input', '"vektors", input'))
    )


def test_a_mistake_in_a_list_of_tables_is_told_by_the_variable_that_holds_the_list() -> None:
    said = refused("", INTERN__LLM__PRICES=f"[{{ model = 'm', input = '{CANARY}' }}]")
    assert said == "the environment variable INTERN__LLM__PRICES: llm.prices.input: expected a number, got a string"


def unpriced(settings: Settings) -> list[str]:
    return re.findall(r"does not name the model of \[(.+?)\]", "\n".join(settings.warnings))


def test_a_model_that_is_asked_and_that_no_price_names_is_known() -> None:
    text = """
        [llm]
        base_url = "http://localhost/v1"
        model = "large"
        prices = [{ model = "PRICED", input = 3, output = 8 }, { model = "of last month", input = 1, output = 2 }]
        """
    named = loaded(text.replace("PRICED", "large"))
    assert (named.warnings, named.priced) == ((), True), "prices of others are for the day they are needed"
    misspelt = loaded(text.replace("PRICED", "Large"))
    assert (unpriced(misspelt), misspelt.priced) == (["llm"], False)
    learning = loaded(text.replace("PRICED", "large") + "[llm.kb]\nmodel = 'small'")
    assert (unpriced(learning), learning.priced) == (["llm.kb"], False)
    embedding = loaded(
        text.replace("PRICED", "large") + "[embeddings]\nprovider = 'endpoint'\nmodel = 'text-embedding-3-small'"
    )
    assert (unpriced(embedding), embedding.priced) == (["embeddings"], True)
    free = loaded(text.partition("prices")[0])
    assert (free.warnings, free.priced) == ((), False), "whoever sets no prices does not ask for costs"
    assert loaded("[llm]\nprovider = 'offline'\nprices = [{ model = 'm', input = 1 }]").warnings == ()


# Finding B6.
def test_a_setting_that_the_chosen_steps_do_not_read_is_warned_of() -> None:
    only = re.findall(r'For "(\w+)" only.*\n((?:# \w+ = .*\n)+)', EXAMPLE.read_text())
    read_by = {name: steps for steps, lines in only for name in re.findall(r"# (\w+) = ", lines)}
    assert {"max_sources", "require_citations", "verify"} <= read_by.keys()
    changed = {"verify": "'unsure'", "require_citations": "false"}
    for steps in ("fused", "separate"):
        for name, reader in read_by.items():
            warned = loaded(f"[ai]\nsteps = '{steps}'\n{name} = {changed.get(name, 2000)}").warnings
            assert [f"ai.{name} " in each for each in warned] == ([] if reader == steps else [True]), name
        assert loaded(f"[ai]\nsteps = '{steps}'").warnings == ()


async def has_room_for_learning(llm: LlmOptions) -> bool:
    """Return whether the smallest budget of capture fits into a new day."""
    limits = EndpointLimits(llm, UsageCounter(), make_call_queue(llm))
    try:
        async with limits.background().reserve(1, reply_tokens=llm.max_tokens, what="classify"):
            return True
    except ModelBudgetTooSmallError:
        return False


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 400, 999, 4096])
def test_the_smallest_budget_of_tokens_that_is_taken_has_room_for_learning(max_tokens: int) -> None:
    text = f"[llm]\nbase_url = 'http://localhost/v1'\nmodel = 'm'\nmax_tokens = {max_tokens}\ndaily_token_budget = "
    said = refused(f"{text}1")
    assert said.startswith("given.toml: llm.daily_token_budget: expected 0 (no limit), or at least ")
    assert "lower llm.max_tokens" in said
    least = int(said.partition("at least ")[2].partition(":")[0])
    llm = loaded(f"{text}{least}").llm
    assert anyio.run(has_room_for_learning, llm)
    refused(f"{text}{least - 1}")
    assert not anyio.run(has_room_for_learning, replace(llm, daily_token_budget=least - 1))


def test_a_budget_of_money_that_no_reply_fits_into_is_refused() -> None:
    text = """
        [llm]
        base_url = "http://localhost/v1"
        model = "large"
        max_tokens = 1000
        prices = [{ model = "large", input = 0, output = 8 }]
        daily_cost_budget = """
    said = refused(f"{text}0.0099")
    assert "llm.daily_cost_budget: expected 0 (no limit), or more than 0.01:" in said
    assert "lower llm.max_tokens" in said
    assert anyio.run(has_room_for_learning, loaded(f"{text}0.0101").llm)


def test_a_budget_has_to_hold_the_longest_reply_of_the_model_for_learning_too() -> None:
    text = """
        [llm]
        base_url = "http://localhost/v1"
        model = "m"
        daily_token_budget = 10_000
        [llm.kb]
        """
    assert "llm.kb.daily_token_budget: expected 0 (no limit), or at least 10003: " in refused(
        f"{text}max_tokens = 8001"
    )
    assert loaded(f"{text}max_tokens = 7999").kb_model.max_tokens == 7999


def test_where_no_endpoint_is_asked_any_budget_will_do() -> None:
    assert loaded("[llm]\nprovider = 'offline'\ndaily_token_budget = 10").llm.daily_token_budget == 10


def test_a_variable_may_hold_channels_and_a_single_id() -> None:
    settings = loaded(
        INTERN__DISCORD__CHANNELS='[{ id = 5, mode = "off" }]',
        INTERN__DISCORD__HANDOFF_ROLE_ID="8",
        INTERN__DISCORD__DEFAULT_MODE="capture_only",
    )
    assert {rule.id: rule.mode for rule in settings.conversations.channels} == {"5": "off"}
    assert (settings.discord.handoff_role_id, settings.discord.default_mode) == ("8", "capture_only")


# Errors about wrong values.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[discord]\ntokn = 1", "there is no setting discord.tokn; did you mean discord.token?"),
        ("[discrod]\ntoken = 1", "there is no setting discrod; did you mean discord?"),
        ("token = 1", "there is no setting token; did you mean discord.token?"),
        ("[discord]\nmax_retries = 1", "there is no setting discord.max_retries; did you mean llm.max_retries?"),
        ("[llm.kb]\nmodell = 1", "there is no setting llm.kb.modell; did you mean llm.kb.model?"),
        ("[llm_kb]\nmodel = 1", "there is no setting llm_kb; did you mean llm.kb?"),
        ("[kb.llm]\nmodel = 1", "there is no setting kb.llm; here it is llm.kb"),
        (
            "[discovery]\nscan_interval_seconds = 1",
            "there is no setting discovery.scan_interval_seconds; here it is discovery.interval_seconds",
        ),
        (
            "[extraction]\nminTurnsForExtraction = 1",
            "there is no setting extraction.minTurnsForExtraction; here it is extraction.min_turns",
        ),
        (
            "[ai]\ngating_prompt = 1",
            "there is no setting ai.gating_prompt; prompts are templates here: `intern",
        ),
        (
            "[llm.kb.qwertyuiop]\nmodel = 1",
            "there is no setting llm.kb.qwertyuiop; there are llm.kb.provider, llm.kb.base_url",
        ),
        ("[prompts]\nqwertyuiop = 1", "there is no setting prompts.qwertyuiop; there are prompts.dir"),
        (
            "qwertyuiop = 1",
            "there is no setting qwertyuiop; there are data, discord, llm, ai, kb, discovery, extraction, facts",
        ),
        ('[ai]\n"a\\nb" = 1', r"there is no setting 'ai.a\nb'"),
        ("discord = 5", "discord must be a table: write [discord]"),
        ("[[discord]]\n", "discord must be a table: write [discord]"),
        ("[llm]\nkb = 1", "llm.kb must be a table: write [llm.kb]"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_known_one(text: str, said: str) -> None:
    assert refused(text).startswith(f"given.toml: {said}")


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("INTERN__DISCORD__TOKN", "there is no setting discord.tokn; did you mean discord.token?"),
        ("INTERN__DISCROD__TOKEN", "there is no setting discrod.token; did you mean discord.token?"),
        ("INTERN__TOKEN", "there is no setting token; did you mean discord.token?"),
        ("INTERN__DISCORD", "discord is a table; name one key of it, as in INTERN__DISCORD__TOKEN"),
        ("INTERN__LLM__KB", "llm.kb is a table; name one key of it, as in INTERN__LLM__KB__PROVIDER"),
        ("INTERN__DISCORD__CHANNELS__ID", "there is no setting discord.channels.id"),
        ("INTERN__DISCORD__TOKEN__MORE", "there is no setting discord.token.more"),
        ("INTERN__", "there is no setting "),
        (
            "INTERN__EXTRACTION__AUTOEXTRACT",
            "there is no setting extraction.autoextract; here it is extraction.auto",
        ),
        ("INTERN__LLM_KB__MODEL", "there is no setting llm_kb.model; did you mean llm.kb.model?"),
    ],
)
def test_an_unknown_variable_is_named(variable: str, said: str) -> None:
    assert refused("", **{variable: CANARY}).startswith(f"the environment variable {variable}: {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[discord]\ntoken = ["{CANARY}"]', "discord.token: expected a string, got a list"),
        (f'[discord]\ntoken = {{ it = "{CANARY}" }}', "discord.token: expected a string, got a table"),
        ("[llm]\napi_key = 5", "llm.api_key: expected a string, got a whole number"),
        ("[llm]\napi_key = true", "llm.api_key: expected a string, got true or false"),
        ('[llm]\napi_key = "…"', "llm.api_key: expected visible ASCII characters only, as tokens and keys have"),
        (f'[llm]\napi_key = "{CANARY} and"', "llm.api_key: expected visible ASCII characters only"),
        (f'[llm]\nprovider = "{CANARY}"', 'llm.provider: expected one of "", "endpoint", "offline"'),
        (f'[llm.kb]\nprovider = "{CANARY}"', 'llm.kb.provider: expected one of "", "endpoint", "offline"'),
        (f'[log]\nlevel = "{CANARY}"', 'log.level: expected one of "debug", "info", "warning", "error"'),
        (f'[llm]\nmax_retries = "{CANARY}"', "llm.max_retries: expected a whole number, got a string"),
        ("[llm]\nmax_retries = 1.5", "llm.max_retries: expected a whole number, got a number"),
        (f'[llm]\nimages = "{CANARY}"', "llm.images: expected true or false, got a string"),
        (f'[llm]\ntimeout_seconds = "{CANARY}"', "llm.timeout_seconds: expected a number, got a string"),
        (f'[discord]\nguild_ids = "{CANARY}"', 'discord.guild_ids: expected a list like ["1", "2"], got a string'),
        ("[discord]\nguild_ids = 5", 'discord.guild_ids: expected a list like ["1", "2"], got a whole number'),
        (f'[discord]\nguild_ids = ["1", "{CANARY}"]', "discord.guild_ids: must hold Discord's ids"),
        ("[discord]\nguild_ids = [1.5]", "discord.guild_ids: expected a string, got a number"),
        ("[discord]\nguild_ids = [-5]", "discord.guild_ids: must hold Discord's ids"),
        (f'[discord]\nrest_url = "{CANARY}"', "discord.rest_url: must begin with https://"),
        (f'[llm]\nbase_url = "http://me:{CANARY}@host/v1"', "llm.base_url: must hold no user and no password"),
        (f'[llm.kb]\nbase_url = "http://{CANARY}@host/v1"', "llm.kb.base_url: must hold no user and no password"),
        ("[data]\ndir = 5", "data.dir: expected a string, got a whole number"),
        ('[data]\ndir = ""', "data.dir: expected the path of a folder, got an empty string"),
        (f'[data]\ndir = "{CANARY}\\u0000"', "data.dir: expected UTF-8 text without null characters"),
        (f'[kb]\nsources_dir = "{CANARY}\\u0000"', "kb.sources_dir: expected UTF-8 text without null characters"),
        (
            f'[kb]\nqa_raw_last_processed_id = "{CANARY}"',
            "kb.qa_raw_last_processed_id: is no id of the archive; expected one like qa_20260201_031056.228000",
        ),
        ("[ai]\nanswer_scope = 2026-01-01", "ai.answer_scope: expected a string, got a date or time"),
        ("[llm]\nmax_retries = -1", "llm.max_retries: expected a whole number of at least 0"),
        ("[llm]\nmax_retries = 11", "llm.max_retries: expected a whole number of at most 10"),
        ("[llm.kb]\nmax_retries = 11", "llm.kb.max_retries: expected a whole number of at most 10"),
        ("[llm]\ntimeout_seconds = 0", "llm.timeout_seconds: expected a number greater than 0"),
        ("[llm]\ntimeout_seconds = inf", "llm.timeout_seconds: expected a finite number"),
        ("[llm]\ntimeout_seconds = nan", "llm.timeout_seconds: expected a finite number"),
        ("[discord]\nmessage_batch_wait_seconds = -1", "discord.message_batch_wait_seconds: expected a number of at"),
        ("[discord]\nmax_history_messages = -1", "discord.max_history_messages: expected a whole number of at least 0"),
        ("[discord]\nmax_history_chars = 0", "discord.max_history_chars: expected a whole number of at least 1"),
        (f'[[discord.channels]]\nid = "{CANARY}"\nmode = "off"', "discord.channels: must hold Discord's ids"),
        (
            f'[[discord.channels]]\nid = 1\nmode = "{CANARY}"',
            'discord.channels.mode: expected one of "answer", "mention_only", "capture_only", "off"',
        ),
        ("[[discord.channels]]\nid = 1", "discord.channels: object missing required field `mode`"),
        ("[[discord.channels]]\nid = 1\nmod = 1", "there is no setting discord.channels.mod; did you mean discord.ch"),
        (
            "[[discord.channels]]\nid = 1\nmode = 'off'\n[[discord.channels]]\nid = '1'\nmode = 'answer'",
            "discord.channels: must name each channel once",
        ),
        (
            "[llm]\nprices = [{ model = 'm', input = 1 }, { model = 'm', input = 2 }]",
            "llm.prices: must name each model once",
        ),
        (
            "[llm.kb]\nprices = [{ model = 'm', input = 1 }, { model = 'm', input = 2 }]",
            "llm.kb.prices: must name each model once",
        ),
        ("[llm]\nprices = [{ model = '', input = 1 }]", "llm.prices: must name a model each; `model` is empty in one"),
        ("[[llm.prices]]\ninput = 1", "llm.prices: object missing required field `model`"),
        ("[[llm.prices]]\nmodel = 'm'\noutput = 1", "llm.prices: object missing required field `input`"),
        ("[discord]\nchannels = [1]", "discord.channels: expected a table, got a whole number"),
        ("[discord]\nchannels = 1", 'discord.channels: expected a list like ["1", "2"], got a whole number'),
        (f'[discord]\nhandoff_role_id = "{CANARY}"', "discord.handoff_role_id: must hold Discord's ids"),
        (f'[discord]\nlisted_channel_ids = ["{CANARY}"]', "discord.listed_channel_ids: must hold Discord's ids"),
        (f'[discord]\ndefault_mode = "{CANARY}"', 'discord.default_mode: expected one of "answer"'),
        ("[discord]\nmax_questions_per_user_per_hour = -1", "discord.max_questions_per_user_per_hour: expected a who"),
        ("[discord]\nmax_question_age = 0", "discord.max_question_age: expected a number greater than 0"),
        ("[discord]\nfirst_lookback = -1", "discord.first_lookback: expected a number of at least 0"),
        ("[ai]\nmax_sources = 0", "ai.max_sources: expected a whole number of at least 1"),
        ("[ai]\nmax_answer_chars = -5", "ai.max_answer_chars: expected a whole number of at least 1"),
        ("[ai]\nrequest_timeout_seconds = 0.0", "ai.request_timeout_seconds: expected a number greater than 0"),
        ("[kb]\nconcurrency = 0", "kb.concurrency: expected a whole number of at least 1"),
        ("[kb]\nmax_removals = -1", "kb.max_removals: expected a whole number of at least 0"),
        ("[kb]\nmax_source_bytes = 0", "kb.max_source_bytes: expected a whole number of at least 1"),
        ("[kb]\nsettle_seconds = -0.5", "kb.settle_seconds: expected a number of at least 0"),
        ("[kb]\nscan_interval_seconds = 0", "kb.scan_interval_seconds: expected a number of at least 1"),
    ],
)
def test_a_wrong_value_is_told_by_its_key_and_what_was_expected(text: str, said: str) -> None:
    assert refused(text).startswith(f"given.toml: {said}")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        (
            "INTERN__LLM__MAX_RETRIES",
            CANARY,
            "llm.max_retries is no string, so write it as in intern.toml: a number, tr",
        ),
        ("INTERN__LLM__MAX_RETRIES", "1\nmax_tokens = 2", "llm.max_retries is no string"),
        ("INTERN__LLM__MAX_RETRIES", "", "llm.max_retries is no string"),
        ("INTERN__LLM__MAX_RETRIES", "-1", "llm.max_retries: expected a whole number of at least 0"),
        ("INTERN__LLM__MAX_RETRIES", f"'{CANARY}'", "llm.max_retries: expected a whole number, got a string"),
        ("INTERN__DISCORD__GUILD_IDS", "12345", 'discord.guild_ids: expected a list like ["1", "2"], got a whole nu'),
        ("INTERN__DISCORD__GUILD_IDS", f'["{CANARY}"]', "discord.guild_ids: must hold Discord's ids"),
        ("INTERN__LLM__PROVIDER", CANARY, 'llm.provider: expected one of "", "endpoint", "offline"'),
        ("INTERN__LLM__KB__PROVIDER", CANARY, 'llm.kb.provider: expected one of "", "endpoint", "offline"'),
        ("INTERN__LLM__BASE_URL", f"http://u:{CANARY}@host", "llm.base_url: must hold no user and no password"),
        ("INTERN__LLM__MODEL", f"{CANARY}\udcff", "llm.model: expected UTF-8 text without null characters"),
        ("INTERN__KB__QA_RAW_LAST_PROCESSED_ID", CANARY, "kb.qa_raw_last_processed_id: is no id of the archive"),
        ("INTERN__DATA__DIR", "", "data.dir: expected the path of a folder"),
    ],
)
def test_a_wrong_variable_is_told_by_its_name(variable: str, value: str, said: str) -> None:
    message = refused("[llm]\nmax_retries = 3\nprovider = ''\n[llm.kb]\nprovider = ''", **{variable: value})
    assert message.startswith(f"the environment variable {variable}: {said}")


@bounds(deadline=None, max_examples=examples(30))
@given(st.text(min_size=8).map(lambda tail: CANARY + tail))
def test_no_text_in_any_place_comes_back_in_a_message(text: str) -> None:
    for section, keys in _keys_of(Settings()).items():
        for key in keys:
            said = _said_of({section: {key: text}})
            assert CANARY not in said
            assert "\n" not in said


def _said_of(overrides: dict[str, dict[str, str]]) -> str:
    try:
        load_settings(environ={}, overrides=overrides)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_line_of_broken_toml_is_named() -> None:
    message = refused(f"[discord]\ntoken = {CANARY}")
    assert message.startswith("given.toml: is not valid TOML: ")
    assert "line 2" in message


def test_a_file_that_is_no_text_is_told_so() -> None:
    Path("given.toml").write_bytes(f'[discord]\ntoken = "{CANARY}'.encode() + b'\xff"')
    with pytest.raises(ConfigError, match=r"^given\.toml: is not UTF-8 text") as error:
        load_settings(Path("given.toml"), environ={})
    assert error.value.__cause__ is None


def test_a_missing_file_is_told_with_what_writes_one() -> None:
    with pytest.raises(ConfigError, match=r"^nowhere\.toml: there is no such file; `intern init` writes one$"):
        load_settings(environ={"INTERN_CONFIG": "nowhere.toml"})


@pytest.mark.parametrize("name", ["intern.toml", "other.toml"])
def test_a_folder_in_the_place_of_the_file_is_refused(name: str) -> None:
    Path(name).mkdir()
    with pytest.raises(ConfigError, match=rf"^{re.escape(name)}: cannot be read \(Is a directory\)"):
        load_settings(None if name == "intern.toml" else Path(name), environ={})


def test_a_link_to_nowhere_is_not_passed_over() -> None:
    Path("intern.toml").symlink_to("gone.toml")
    with pytest.raises(ConfigError, match=r"^intern\.toml: there is no such file"):
        load_settings(environ={})


def test_a_file_below_a_file_cannot_be_read() -> None:
    Path("file").write_text("")
    with pytest.raises(ConfigError, match=r"file/intern\.toml: cannot be read"):
        load_settings(Path("file/intern.toml"), environ={})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_told_so() -> None:
    Path("intern.toml").write_text("")
    Path("intern.toml").chmod(0)
    with pytest.raises(ConfigError, match=r"^intern\.toml: cannot be read \(Permission denied\)"):
        load_settings(environ={})


# Secrets.


def test_no_secret_is_printed() -> None:
    settings = loaded(
        f'[discord]\ntoken = "{CANARY}1"\n[llm]\napi_key = "{CANARY}2"\n[llm.kb]\napi_key = "{CANARY}3"',
    )
    assert CANARY not in f"{settings} {settings!r} {settings.discord} {settings.llm} {settings.kb_model}"
    assert CANARY not in str(msgspec.structs.asdict(settings))


def test_no_address_shows_what_it_holds_beside_its_place() -> None:
    sections = msgspec.structs.asdict(Settings())
    address = f"https://models.example:8443/v1?key={CANARY}2#{CANARY}3"
    addresses: dict[str, Any] = {
        name: {field: address for field in section.__struct_fields__ if field.endswith("_url")}
        for name, section in sections.items()
        if section is not None
    }
    assert {name for name, fields in addresses.items() if fields} == {"discord", "llm", "embeddings"}
    addresses["llm"]["kb"] = {"base_url": address}
    addresses["discord"]["rest_url"] = address.replace("models", f"user:{CANARY}1@models")

    settings = load_settings(environ={}, overrides=addresses)

    assert CANARY not in f"{settings} {settings!r} {[getattr(settings, name) for name in sections]}"
    assert "base_url='https://models.example:8443/v1?***'" in repr(settings.llm)
    assert "rest_url='https://***@models.example:8443/v1?***'" in repr(settings.discord)
    assert {f"user:{CANARY}1", f"key={CANARY}2#{CANARY}3"} <= set(settings.secrets)


def test_every_secret_is_listed_for_the_log_to_scrub() -> None:
    settings = loaded(
        '[discord]\ntoken = "one"\n[llm]\napi_key = "two"\nbase_url = "http://h/v1?key=four"\n'
        '[llm.kb]\napi_key = "three"'
    )
    assert set(settings.secrets) == {"one", "two", "three", "key=four"}
    assert Settings().secrets == ()


# Requirements of `intern run`.


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "discord.token"),
        ("[discord]\ntoken = 'x'", "discord.guild_ids"),
        ("[discord]\ntoken = 'x'\nguild_ids = [1]", "llm.base_url"),
        ("[discord]\ntoken = 'x'\nguild_ids = [1]\n[llm]\nprovider = 'endpoint'", "llm.base_url"),
        (f"[discord]\ntoken = 'x'\nguild_ids = [1]\n[llm]\nbase_url = 'http://h?{CANARY}'", "llm.model"),
        (
            "[discord]\ntoken = 'x'\nguild_ids = [1]\n[llm]\nprovider = 'offline'\n[llm.kb]\nprovider = 'endpoint'",
            "llm.kb.base_url",
        ),
    ],
)
def test_what_a_run_cannot_guess_is_asked_for(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} is not set: ") as error:
        loaded(text).require_for_run()
    assert CANARY not in str(error.value)


def test_a_host_names_no_servers_and_its_limit_of_costs_needs_prices() -> None:
    hosting = "[hosting]\nenabled = true"
    loaded(f"[discord]\ntoken = 'x'\n[llm]\nprovider = 'offline'\n{hosting}").require_for_run()
    assert "discord.guild_ids: must be empty with hosting.enabled" in refused(f"[discord]\nguild_ids = [1]\n{hosting}")
    endpoint = "[llm]\nbase_url = 'http://h'\nmodel = 'm'"
    assert "hosting.cost_per_day: counts only what has" in refused(f"{endpoint}\n{hosting}\ncost_per_day = 2")


def test_a_run_needs_a_token_a_server_and_a_model() -> None:
    loaded("[discord]\ntoken = 'x'\nguild_ids = [1]\n[llm]\nprovider = 'offline'").require_for_run()
    loaded("[discord]\ntoken = 'x'\nguild_ids = [1]\n[llm]\nbase_url = 'http://h'\nmodel = 'm'").require_for_run()


# intern.toml.example.

_COMMENTED = re.compile(r"# (?P<line>[a-z_]+ = .*)")


def _uncommented() -> str:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    return "\n".join(found["line"] if (found := _COMMENTED.fullmatch(line)) else line for line in lines)


def _keys_of(settings: Settings) -> dict[str, set[str]]:
    sections: Iterator[tuple[str, Any]] = (
        (name, getattr(settings, name)) for name in settings.__struct_fields__ if name != "llm_kb"
    )
    return {name: set(section.__struct_fields__) for name, section in sections}


def test_the_example_as_it_is_sets_nothing() -> None:
    assert load_settings(EXAMPLE, environ={}) == Settings()


def test_the_example_holds_every_key_with_its_default() -> None:
    documented = tomli.loads(_uncommented())
    assert set(documented["llm"].pop("kb")) <= set(documented["llm"])
    assert {name: set(section) for name, section in documented.items()} == _keys_of(Settings())
    path = Path("uncommented.toml")
    path.write_text(_uncommented(), encoding="utf-8")
    assert load_settings(path, environ={}) == Settings()


def test_the_example_explains_every_key() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    for section in re.split(r"(?m)^\[", "\n".join(lines))[1:]:
        body = section.splitlines()[1:]
        first = next(line for line in body if line)
        assert section.startswith("llm.kb") or not _COMMENTED.fullmatch(first), f"[{section.splitlines()[0]}: {first}"


def test_the_address_of_a_database_is_a_secret() -> None:
    url = "postgresql://intern:hush-4711@db/intern?options=x"
    settings = load_settings(environ={"INTERN__DATA__URL": url})
    assert settings.data.url.reveal() == url
    assert "hush" not in repr(settings)
    assert "intern:hush-4711" in settings.secrets
    with pytest.raises(ConfigError, match=r"data\.url: expected an address of PostgreSQL") as caught:
        load_settings(environ={"INTERN__DATA__URL": "mysql://intern:hush-4711@db/intern"})
    assert "hush" not in str(caught.value)


def test_a_database_on_a_server_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("psycopg", "intern.stores.engines.postgres.database"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr("intern.stores.engines.postgres.database", raising=False)
    with pytest.raises(ConfigError, match=r"PostgreSQL, which cannot be used .*\[postgres\]"):
        open_read_only(load_settings(environ={"INTERN__DATA__URL": "postgresql://db/intern"}))
