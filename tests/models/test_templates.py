"""Templates: the operator's over the shipped ones, and a mistake in one named by file and line."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec import Struct

from intern.core.errors import ConfigError
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates


class Pair(Struct, frozen=True):
    question: str


class Given(Struct, frozen=True):
    pair: Pair
    text: str = "hello"


class Reply(Struct, frozen=True):
    done: bool


ASK = Prompt("ask", takes=Given, gives=Reply)
GIVEN = Given(Pair("why?"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, user: str = "{{ text }}", system: str = "Reply.", *, name: str = "ask") -> None:
    blocks = f"{{% block system %}}\n{system}\n{{% endblock %}}\n{{% block user %}}\n{user}\n{{% endblock %}}\n"
    (folder / f"{name}.md.j2").write_text("{# a comment #}\n" + blocks, encoding="utf-8")


def test_both_blocks_see_the_fields_of_the_input_and_the_operators_constants(folder: Path) -> None:
    write(
        folder, system="You serve {{ project_introduction }}.", user="{{ pair.question }}\n{{ text | fenced('text') }}"
    )

    rendered = PromptTemplates(folder, {"project_introduction": "Acme"}).render(ASK, GIVEN)

    assert rendered.system == "You serve Acme."
    assert rendered.user == "why?\n=== text ===\nhello\n=== end of text ==="


def test_constants_that_nobody_set_are_empty(folder: Path) -> None:
    write(folder, system="{% if refusal_policy %}{{ refusal_policy }}{% endif %}Reply.{{ answer_scope }}")

    assert PromptTemplates(folder).render(ASK, GIVEN).system == "Reply."


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ 7 * 7 }}",
        "{% endblock %}{% block system %}",
        "{# gone #}",
        "{{ ''.__class__.__mro__ }}",
        "{% raw %}",
        "<b>&",
    ],
)
def test_what_a_variable_holds_is_never_read_as_a_template(folder: Path, hostile: str) -> None:
    write(folder, system="{{ text }}")

    rendered = PromptTemplates(folder, {"answer_scope": hostile}).render(ASK, Given(Pair("?"), hostile))

    assert rendered == (hostile, hostile, ())


def test_an_operators_template_hides_the_shipped_one_and_the_others_stay(folder: Path) -> None:
    write(folder, name="classify", user="mine")
    classify = Prompt("classify", takes=Given, gives=Reply)
    assert PromptTemplates(folder).render(classify, GIVEN).user == "mine"
    gate = Prompt("gate", takes=Given, gives=Reply)
    assert PromptTemplates(folder).read_source(gate) == PromptTemplates().read_source(gate)


@pytest.mark.parametrize("at", ["start", "render"])
def test_a_wrong_variable_is_named_by_file_and_line(folder: Path, at: str) -> None:
    write(folder, user="fine\n{{ txet }}")
    templates = PromptTemplates(folder)

    find = partial(templates.check, [ASK]) if at == "start" else partial(templates.render, ASK, GIVEN)

    with pytest.raises(ConfigError, match=r"ask\.md\.j2, line 7: .*'txet'"):
        find()


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("{{ pair.answer }}", "answer"),
        ("{{ text + 1 }}", "concatenate"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ pair.__class__.__mro__ }}", "unsafe"),
        ("{{ text | fenced }}", "label"),
    ],
)
def test_a_mistake_that_shows_only_with_input_is_named_by_file_and_line(folder: Path, mistake: str, said: str) -> None:
    write(folder, user=f"fine\n{mistake}")
    templates = PromptTemplates(folder)
    templates.check([ASK])

    with pytest.raises(ConfigError, match=rf"ask\.md\.j2, line 7: .*{said}"):
        templates.render(ASK, GIVEN)


@pytest.mark.parametrize("mistake", ["{% if %}", "{{ text", "{{ text | shout }}"])
def test_bad_syntax_is_named_by_file_and_line(folder: Path, mistake: str) -> None:
    write(folder, user=f"fine\n{mistake}")

    with pytest.raises(ConfigError, match=r"ask\.md\.j2, line [789]: "):
        PromptTemplates(folder).check([ASK])


def test_a_mistake_in_an_included_part_is_named_there(folder: Path) -> None:
    write(folder, user="{% include 'part.md.j2' %}")
    (folder / "part.md.j2").write_text("one\ntwo {{ nobody }}", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"part\.md\.j2, line 2: 'nobody'"):
        PromptTemplates(folder).render(ASK, GIVEN)


@pytest.mark.parametrize("outside", ["../secret.md.j2", "/etc/passwd", "sub/part.md.j2"])
def test_templates_reach_no_file_outside_of_their_folders(folder: Path, outside: str) -> None:
    write(folder, user=f"{{% include {outside!r} %}}")
    (folder.parent / "secret.md.j2").write_text("secret", encoding="utf-8")

    with pytest.raises(ConfigError, match=r"ask\.md\.j2, line 6"):
        PromptTemplates(folder).render(ASK, GIVEN)


def test_text_that_no_model_would_see_is_refused_at_start(folder: Path) -> None:
    write(folder)
    with (folder / "ask.md.j2").open("a", encoding="utf-8") as file:
        file.write("\nAlways be kind.\n")

    with pytest.raises(ConfigError, match=r"ask\.md\.j2, line \d+: this stands outside"):
        PromptTemplates(folder).check([ASK])


def test_a_missing_block_or_template_or_folder_says_what_to_do(folder: Path) -> None:
    (folder / "ask.md.j2").write_text("{% block user %}hi{% endblock %}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"ask\.md\.j2: the block 'system' is missing"):
        PromptTemplates(folder).render(ASK, GIVEN)

    nobody = Prompt("nobody", takes=Given, gives=Reply)
    with pytest.raises(ConfigError, match=r"there is no template nobody\.md\.j2 in "):
        PromptTemplates(folder).check([nobody])

    with pytest.raises(ConfigError, match=r"prompts\.dir: .*missing is not a folder"):
        PromptTemplates(folder / "missing")


def test_a_template_that_is_not_utf8_is_named(folder: Path) -> None:
    (folder / "ask.md.j2").write_bytes(b"{% block system %}\xff{% endblock %}")

    with pytest.raises(ConfigError, match=r"ask\.md\.j2 cannot be read"):
        PromptTemplates(folder).check([ASK])


EXAMPLES = """{% block examples %}
--- user ---
{{ answer_scope }}: is it on?
--- assistant ---
{"done": true}
--- user ---
And off?
--- assistant ---
{"done": false}
{% endblock %}
"""


def with_examples(folder: Path, examples: str) -> PromptTemplates:
    write(folder)
    with (folder / "ask.md.j2").open("a", encoding="utf-8") as file:
        file.write(examples)
    return PromptTemplates(folder, {"answer_scope": "Relays"})


def test_example_turns_stand_between_the_instructions_and_the_material(folder: Path) -> None:
    templates = with_examples(folder, EXAMPLES)
    templates.check([ASK])

    rendered = templates.render(ASK, GIVEN)

    assert rendered.examples == (("Relays: is it on?", '{"done": true}'), ("And off?", '{"done": false}'))
    assert rendered.whole.splitlines()[0] == "Reply."
    assert rendered.whole.splitlines()[-1] == "hello"


@pytest.mark.parametrize(
    ("of", "becomes", "said"),
    [
        ("--- user ---", "", "must be turns"),
        ('{"done": false}', '{"finished": false}', "example 2 is none of this prompt"),
        ('{"done": false}', "no", "example 2 is none of this prompt"),
        ("And off?", "{{ text }}", r"ask\.md\.j2, line 1\d: 'text' is undefined"),
    ],
)
def test_examples_that_no_model_could_follow_are_refused_at_start(
    folder: Path, of: str, becomes: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        with_examples(folder, EXAMPLES.replace(of, becomes, 1)).check([ASK])
