"""The models of the settings: the order of waiting, and refusals before any call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint

from intern.answering.prompts import ANSWER, GATE, SELECT, VERIFY, GateIn
from intern.core.errors import ConfigError, ModelSchemaError
from intern.models.prompt import Model, OfflineModel
from intern.service.models import PROMPTS, answering_options, collect_offline_rules, open_models
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.sources.descriptions import SUMMARIZE_SOURCE, SummarizeIn
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.request_forms import RequestFormStore
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, Reply, endpoint_double, never, refuse

pytestmark = pytest.mark.anyio

SOURCE = SummarizeIn(source_id="kb:ports.md", text="The relay listens on port 7480.")
QUESTION = GateIn(question="Which port?", history="", addressed=True)


def settings(**sections: dict[str, Any]) -> Settings:
    return load_settings(environ={}, overrides=sections)


def served_by(endpoint: EndpointDouble, **options: object) -> dict[str, Any]:
    return {"base_url": endpoint.base_url, "model": "double", "max_retries": 0, **options}


def refuses_bounds(body: dict[str, Any]) -> Reply:
    return refuse(400, says="unknown keyword maxLength in schema") if "maxLength" in json.dumps(body) else Reply()


async def ask_after_a_start(folder: Path, endpoint: EndpointDouble, **options: object) -> int:
    """Start, ask one question and end; return the number of requests."""
    before = len(endpoint.requests)
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        chosen = settings(llm=served_by(endpoint, **options))
        async with open_models(chosen, None, HandClock(), forms=RequestFormStore(db)) as models:
            await models.answering.ask(GATE, QUESTION)
    return len(endpoint.requests) - before


async def hold_up(endpoint: EndpointDouble, background: Model, answering: Model) -> None:
    """Start as much background work as there is room for, all of it hanging; then ask a question."""
    endpoint.next(*[never()] * 4, prompt=SUMMARIZE_SOURCE.name)
    with fail_after(10):
        async with create_task_group() as tg:
            for _ in range(4):
                tg.start_soon(background.ask, SUMMARIZE_SOURCE, SOURCE)
            while not endpoint.asked(SUMMARIZE_SOURCE.name):
                await checkpoint()
            with fail_after(5):
                await answering.ask(GATE, QUESTION)
            tg.cancel_scope.cancel()


async def test_a_question_is_answered_however_much_background_work_hangs() -> None:
    with endpoint_double() as endpoint:
        async with open_models(settings(llm=served_by(endpoint, max_in_flight=2)), None, HandClock()) as models:
            await hold_up(endpoint, models.learning, models.answering)


async def test_a_model_of_its_own_for_learning_is_not_used_up_by_it_either() -> None:
    with endpoint_double() as endpoint, endpoint_double() as other:
        both = served_by(endpoint) | {"kb": served_by(other, max_in_flight=2)}
        async with open_models(settings(llm=both), None, HandClock()) as models:
            await hold_up(other, models.learning, models.answering)
            assert len(other.asked(SUMMARIZE_SOURCE.name)) == 1  # half of its share in flight
            assert len(endpoint.asked(GATE.name)) == 1


@pytest.mark.rest
async def test_a_restart_repeats_no_refused_call_until_model_or_structured_output_change(tmp_path: Path) -> None:
    with fail_after(20), endpoint_double(refuses_bounds) as endpoint:
        assert await ask_after_a_start(tmp_path, endpoint) == 2
        assert await ask_after_a_start(tmp_path, endpoint) == 1
        assert await ask_after_a_start(tmp_path, endpoint, model="another") == 2
        assert await ask_after_a_start(tmp_path, endpoint, structured_output="function_calling") == 2
        assert await ask_after_a_start(tmp_path, endpoint) == 1


async def test_a_form_that_was_refused_as_well_is_not_remembered(tmp_path: Path) -> None:
    with fail_after(20), endpoint_double() as endpoint:
        endpoint.next(*[refuse(400, says="no such response_format")] * 6)
        with pytest.raises(ModelSchemaError):
            await ask_after_a_start(tmp_path, endpoint)
        await ask_after_a_start(tmp_path, endpoint)
        assert "maxLength" in json.dumps(endpoint.requests[-1].body)


async def test_a_database_that_fails_costs_no_answer(tmp_path: Path) -> None:
    with fail_after(20), endpoint_double(refuses_bounds) as endpoint:
        async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
            await db.write(lambda tx: tx.rows("pragma query_only = 1"))
            chosen = settings(llm=served_by(endpoint))
            async with open_models(chosen, None, HandClock(), forms=RequestFormStore(db)) as models:
                assert (await models.answering.ask(GATE, QUESTION)).kind
            assert await RequestFormStore(db).find_form(endpoint.base_url, "double", "auto") is None


def folder_with(tmp_path: Path, mistake: str) -> dict[str, Any]:
    """Return an operator's folder whose one template has a mistake."""
    text = f"{{% block system %}}Judge. {mistake}{{% endblock %}}{{% block user %}}{{{{ question }}}}{{% endblock %}}"
    (tmp_path / "gate.md.j2").write_text(text)
    return {"dir": str(tmp_path)}


@pytest.mark.parametrize(
    ("mistake", "said"), [("{{ qestion }}", "there is no variable 'qestion'"), ("{% if %}", "line 1")]
)
async def test_a_template_with_a_mistake_is_refused_before_anybody_is_asked(
    tmp_path: Path, mistake: str, said: str
) -> None:
    with endpoint_double() as endpoint:
        broken = settings(llm=served_by(endpoint), prompts=folder_with(tmp_path, mistake))
        with pytest.raises(ConfigError, match=rf"gate\.md\.j2, line 1: .*{said}|gate\.md\.j2, {said}"):
            async with open_models(broken, None, HandClock()):
                pass
        assert endpoint.requests == []


async def test_rules_read_no_template(tmp_path: Path) -> None:
    offline = settings(llm={"provider": "offline"}, prompts=folder_with(tmp_path, "{{ qestion }}"))
    async with open_models(offline, None, HandClock()) as models:
        assert isinstance(models.answering, OfflineModel)
        assert models.learning is models.answering


def test_there_is_a_rule_for_every_prompt_but_those_of_the_separate_steps() -> None:
    others = {prompt.name for prompt in (GATE, SELECT, ANSWER, VERIFY)}
    assert collect_offline_rules().keys() == {prompt.name for prompt in PROMPTS} - others
    settings = load_settings(environ={}, overrides={"ai": {"steps": "separate"}, "llm": {"provider": "offline"}})
    assert answering_options(settings).steps == "fused"
