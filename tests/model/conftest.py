"""A real server with a small model. These tests run where they are asked for (`-m model`, `make test-model`)."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from intern.answering.prompts import SELECT
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from tests.model.proxying import proxying
from tests.model.serving import serving
from tests.model.weights import WEIGHTS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nobody without the weights wants them, whatever else was deselected."""
    if "model" in config.option.markexpr:
        return
    ours = [item for item in items if item.get_closest_marker("model")]
    if ours:
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]


@pytest.fixture(scope="session")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The small model, with a template that knows function calls."""
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with serving(WEIGHTS, template=Path(__file__).with_name("tools.jinja"), log=log) as url:
        yield url


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> PromptTemplates:
    """Few words for every prompt: the model reads slowly, and understands nothing anyway."""
    folder = tmp_path_factory.mktemp("prompts")
    for prompt in PROMPTS:
        shown = "{% for entry in entries %}{{ entry.source_id }} {% endfor %}" if prompt is SELECT else prompt.name
        text = f"{{% block system %}}Reply.{{% endblock %}}{{% block user %}}{shown}{{% endblock %}}"
        (folder / f"{prompt.name}.md.j2").write_text(text, encoding="utf-8")
    return PromptTemplates(folder)


@pytest.fixture(scope="session")
def litellm(base_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """LiteLLM's proxy in front of the small model."""
    with proxying(base_url, folder=tmp_path_factory.mktemp("litellm")) as url:
        yield url


@pytest.fixture(scope="session")
def better_model() -> Path:
    """The weights that the operator of the tests has named."""
    named = os.environ.get("INTERN_TEST_GGUF", "")
    if not named:
        pytest.skip("INTERN_TEST_GGUF names no model")
    return Path(named).expanduser()
