"""`intern prompts`: what words answers, and what is wrong with the operator's own wording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from intern.service.prompt_examples import SAMPLES, build_bare_example, build_full_example, build_marked_example
from intern.service.prompt_library import find_unmarked_texts
from tests.frontends.cli.conftest import SOURCE_TREE, Intern
from tests.wording import Wording

PARTS = "{% block system %}\nReply.\n{% endblock %}\n{% block user %}\n"
END = "\n{% endblock %}\n"
GATE = (SOURCE_TREE / "prompts" / "gate.md.j2").read_text(encoding="utf-8")
ALL = len(PROMPTS) + len(list((SOURCE_TREE / "prompts" / "messages").rglob("*.j2")))


@pytest.fixture
def mine(folder: Path) -> Path:
    """A folder of templates, which the settings name."""
    (folder / "mine" / "messages").mkdir(parents=True)
    (folder / "intern.toml").write_text(
        '[prompts]\ndir = "mine"\n[ai]\nproject_introduction = "Lumen relays logs."\n'
        'answer_scope = "All about Lumen."\nrefusal_policy = "No legal advice."\n'
    )
    return folder / "mine"


def write(folder: Path, user: str, name: str = "gate") -> None:
    (folder / f"{name}.md.j2").write_text(PARTS + user + END, encoding="utf-8")


# Examples.


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_every_prompt_renders_with_everything_and_with_nothing(prompt: Prompt[Any, Any]) -> None:
    templates = PromptTemplates()
    full, bare = (templates.render(prompt, made(prompt)) for made in (build_full_example, build_bare_example))
    assert "an example of" not in full.user, "say in intern.service.prompt_library what this field is like"
    assert len(bare.user) < len(full.user)
    used = [value for value in SAMPLES.values() if isinstance(value, str) and value in full.user]
    assert used


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_no_shipped_prompt_lets_a_stranger_s_text_out_of_its_marks(prompt: Prompt[Any, Any]) -> None:
    assert find_unmarked_texts(PromptTemplates().render(prompt, build_marked_example(prompt))) == ()


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_every_shipped_prompt_says_every_field(prompt: Prompt[Any, Any]) -> None:
    fields = set(prompt.takes.__struct_fields__) - {"closest"}  # what rules go by; a model reads for itself
    assert fields <= PromptTemplates().find_variables(prompt)


# The list.


def test_the_list_tells_who_uses_what_and_whose_it_is(intern: Intern, mine: Path) -> None:
    write(mine, "{{ question }}")
    code, out, err = intern("prompts")
    assert (code, err) == (0, "")
    assert intern("prompts", "list").out == out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert lines["gate"][:5] == ["gate", "answering", "question", "history", "addressed"]
    assert '(mine/gate.md.j2; not used with ai.steps = "fused")\n' in out
    assert lines["messages/unknown"] == ["messages/unknown", "conversations", "-", "(shipped)"]
    assert "messages/de/unknown" not in lines
    assert "messages/LANGUAGE/NAME: the same messages in de, es, fr, ja, pt\n" in out
    assert "ai.answer_scope: All about Lumen.; used by answer decide verify" in out
    assert "ai.project_introduction: Lumen relays logs.; used by answer classify" in out


def test_the_list_for_scripts_names_every_template(intern: Intern, mine: Path) -> None:
    write(mine, "{{ question }}", "messages/late")
    (mine / "messages" / "de").mkdir()
    write(mine, "Moin!", "messages/de/greeting")
    told = json.loads(intern("prompts", "list", "--json").out)
    by_name = {each["name"]: each for each in told["prompts"]}
    assert {prompt.name for prompt in PROMPTS} == {name for name in by_name if not name.startswith("messages/")}
    assert len(by_name) == ALL
    assert (by_name["messages/late"]["overridden"], by_name["gate"]["overridden"]) == (True, False)
    assert [name for name in by_name if "/de/" in name and by_name[name]["overridden"]] == ["messages/de/greeting"]
    assert "\nmessages/de/greeting " in intern("prompts").out
    assert by_name["gate"]["constants"] == ["ai.project_introduction", "ai.answer_scope", "ai.refusal_policy"]
    assert told["constants"]["ai.refusal_policy"] == "No legal advice."


def test_a_broken_template_is_listed_and_shown_all_the_same(intern: Intern, mine: Path) -> None:
    write(mine, "{% if %}")
    (mine / "messages" / "late.md.j2").write_bytes(b"\xff")
    assert "(mine/gate.md.j2;" in intern("prompts").out
    assert "{% if %}" in intern("prompts", "show", "gate", "--source").out
    code, out, err = intern("prompts", "show", "gate")
    assert (code, out) == (2, "")
    assert err.startswith("intern: mine/gate.md.j2, line 5: ")


# One of them.


def test_a_prompt_is_shown_as_a_model_gets_it(intern: Intern, mine: Path) -> None:
    code, out, err = intern("prompts", "show", "gate")
    assert code == 0
    assert out.startswith("--- system ---\nYou decide whether")
    assert "\n--- user ---\nWhat was said before" in out
    assert "=== question ===\nHow do I move it to another port?" in out
    assert "Lumen relays logs." in out
    assert "No legal advice." in out
    assert "prompts/gate.md.j2, with made-up input: about " in err
    shown = json.loads(intern("prompts", "show", "gate", "--json").out)
    turns = [("system", shown["system"]), *(turn for each in shown["examples"] for turn in each.items())]
    turns.append(("user", shown["user"]))
    assert len(turns) > 2
    assert out == "\n\n".join(f"--- {role} ---\n{said}" for role, said in turns) + "\n"


def test_a_message_is_shown_as_it_would_be_said(intern: Intern, mine: Path) -> None:
    (mine / "messages" / "greeting.md.j2").write_text("{# mine #}\nHello. {{ project_introduction }}\n")
    assert intern("prompts", "show", "messages/greeting").out == "Hello. Lumen relays logs.\n"
    assert intern("prompts", "show", "messages/busy").out.startswith("Too many questions")
    assert intern("prompts", "show", "messages/de/busy").out.startswith("Gerade kommen")
    assert intern("prompts", "show", "messages/de/greeting").out == "Hello. Lumen relays logs.\n"


def test_the_template_itself_is_shown_to_be_copied(intern: Intern, mine: Path, wording: Wording) -> None:
    copied = intern("prompts", "show", "gate", "--source").out
    assert copied == GATE
    (mine / "gate.md.j2").write_text(copied)
    assert wording(intern("prompts", "diff", "gate")).code == 0
    assert json.loads(intern("prompts", "show", "gate", "--source", "--json").out)["source"] == GATE


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gat", "gate"), ("greeting", "messages/greeting"), ("messages/unkown", "messages/unknown"), ("../gate", "gate")],
)
def test_a_name_that_there_is_not_ends_with_2_and_a_guess(intern: Intern, name: str, meant: str) -> None:
    for action in (("show",), ("diff",)):
        code, out, err = intern("prompts", *action, name)
        assert (code, out, err) == (2, "", f"intern: there is no prompt {name!r}; did you mean {meant}?\n")
    assert "`intern prompts` lists them" in intern("prompts", "show", "zzz", "--source").err


# Errors.


def test_what_intern_brings_is_sound(intern: Intern) -> None:
    assert intern("prompts", "check") == (0, "", f"{ALL} are sound\n")
    assert json.loads(intern("prompts", "check", "--json").out) == {"sound": ALL, "faults": [], "notes": []}


@pytest.mark.rest
@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("{{ question }}\n{{ qestion }}", "mine/gate.md.j2, line 6: there is no variable 'qestion' here; there are "),
        ("{% if %}", "mine/gate.md.j2, line 5: "),
        ("{{ question", "mine/gate.md.j2, line "),
        ("{{ question | shout }}", "mine/gate.md.j2, line 5: No filter named 'shout'"),
        ("{% include 'part.md.j2' %}", "mine/gate.md.j2, line 5: "),
        ("{{ 1 // addressed }}", "mine/gate.md.j2, line 5: integer division"),
        ("{% include 'gate.md.j2' %}", "mine/gate.md.j2, line "),
        ("{{ self.user() }}", "mine/gate.md.j2, line "),
        ("{{ cycler() }}", "mine/gate.md.j2, line 5: at least one item"),
        ("{{ addressed | fenced }}", "mine/gate.md.j2, line 5: fenced() missing"),
        ("{{ question.__class__ }}", "mine/gate.md.j2, line 5: access to attribute '__class__'"),
        ("{% if history %}{{ history.nobody }}{% endif %}", "mine/gate.md.j2, line 5: 'str object' has no attribute"),
        ("{% if not answer_scope %}{{ answer_scope + 1 }}{% endif %}", "mine/gate.md.j2, line 5: can only concatenate"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(intern: Intern, mine: Path, user: str, said: str) -> None:
    write(mine, user)
    code, out, err = intern("prompts", "check")
    assert (code, out) == (2, "")
    assert err.startswith(f"wrong: {said}")
    assert err.endswith(f"{ALL - 1} are sound, 1 mistakes\n")


def test_all_unknown_variables_are_told_at_once(intern: Intern, mine: Path) -> None:
    write(mine, "{{ one }}\n{{ two }}")
    write(mine, "{{ three }}", "verify")
    code, _, err = intern("prompts", "check")
    assert code == 2
    assert [word for word in ("'one'", "'two'", "'three'") if word in err] == ["'one'", "'two'", "'three'"]
    assert "3 mistakes" in err


@pytest.mark.rest
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% block system %}x{% endblock %}", "mine/gate.md.j2: the block 'user' is missing"),
        ("Hello {{ question }}", "mine/gate.md.j2: the block 'system' is missing"),
        (GATE + "\nBy the way.", "this stands outside of the blocks"),
    ],
)
def test_blocks_are_looked_at(intern: Intern, mine: Path, text: str, said: str) -> None:
    (mine / "gate.md.j2").write_text(text)
    code, _, err = intern("prompts", "check")
    assert code == 2
    assert said in err


@pytest.mark.rest
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one\n{{ nobody }}", "line 2: 'nobody' is undefined"),
        ("one\n\n{% if %}", "line 3: "),
        (" ", "the text has 0 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "line 1: maximum recursion depth exceeded"),
        ("{% if project_introduction == '' %}{{ 1 // 0 }}{% endif %}{{ project_introduction + 1 }}", "line 1: "),
    ],
)
def test_messages_are_looked_at_too(intern: Intern, mine: Path, text: str, said: str) -> None:
    (mine / "messages" / "unknown.md.j2").write_text(text)
    code, _, err = intern("prompts", "check")
    assert code == 2
    assert err.startswith("wrong: mine/messages/unknown.md.j2")
    assert said in err


def test_what_is_likely_not_meant_is_noted_and_no_mistake(intern: Intern, mine: Path) -> None:
    write(mine, "{% include 'part.md.j2' %}\n\n{{ question }}")
    (mine / "part.md.j2").write_text("{{ history | fenced('history') }}")
    write(mine, "x", "verfy")
    write(mine, "x", "messages/unkown")
    (mine / "messages" / "it").mkdir()
    write(mine, "x", "messages/it/unknown")
    (mine / "select.md").write_text("x")
    (mine / ".hidden.md.j2").write_text("x")
    (mine / "NOTES.txt").write_text("x")
    code, out, err = intern("prompts", "check")
    assert (code, out) == (0, "")
    outside = "'question' is strangers' text and stands outside of marks"
    hint = '{{ question | fenced("question") }}, or what it says reads like your instructions'
    assert err.splitlines() == [
        'note: mine/gate.md.j2: it is not used with ai.steps = "fused"',
        "note: mine/gate.md.j2: it never says 'addressed', so the model does not see it",
        f"note: mine/gate.md.j2: {outside}; write {hint}",
        "note: mine/messages/it/unknown.md.j2: nothing uses it; did you mean messages/pt/unknown.md.j2?",
        "note: mine/messages/unkown.md.j2: nothing uses it; did you mean messages/unknown.md.j2?",
        "note: mine/select.md: it is not used; the name would have to be select.md.j2",
        "note: mine/verfy.md.j2: nothing uses it; did you mean verify.md.j2?",
        f"{ALL} are sound",
    ]


def test_a_folder_that_is_none_is_told(intern: Intern, mine: Path, wording: Wording) -> None:
    (mine / "messages").rmdir()
    mine.rmdir()
    for action in ("list", "check", "diff"):
        code, out, err = intern("prompts", action)
        assert code == 2
        wording([out, err])


@pytest.mark.parametrize(
    ("steps", "unused"),
    [("fused", {"gate", "select", "answer", "verify"}), ("separate", {"decide", "confirm"})],
)
def test_prompts_of_the_other_way_to_answer_are_told_as_unused(
    intern: Intern, mine: Path, steps: str, unused: set[str]
) -> None:
    for prompt in PROMPTS:
        (mine / f"{prompt.name}.md.j2").write_text(PromptTemplates().read_source(prompt))
    with (mine.parent / "intern.toml").open("a") as settings:
        settings.write(f'steps = "{steps}"\n')
    told = json.loads(intern("prompts", "list", "--json").out)["prompts"]
    why = f'ai.steps = "{steps}"'
    assert {each["name"]: each["unused"] for each in told if each["unused"]} == dict.fromkeys(unused, why)
    notes = {f"note: mine/{name}.md.j2: it is not used with {why}" for name in unused}
    assert {line for line in intern("prompts", "check").err.splitlines() if "not used" in line} == notes


# Changes.


def test_a_difference_is_shown_line_by_line(intern: Intern, mine: Path) -> None:
    (mine / "gate.md.j2").write_text(GATE.replace("silence costs less than noise", "speak up"))
    (mine / "messages" / "late.md.j2").write_text("Too late.\n")
    code, out, err = intern("prompts", "diff")
    assert (code, err) == (0, "")
    assert out.startswith("--- shipped/gate.md.j2\n+++ mine/gate.md.j2\n@@ ")
    assert "\n-In doubt between question and chatter, say chatter: silence costs less than noise." in out
    assert "\n+In doubt between question and chatter, say chatter: speak up." in out
    assert "--- shipped/messages/late.md.j2\n+++ mine/messages/late.md.j2\n" in out
    assert intern("prompts", "diff", "messages/late").out in out
    told = json.loads(intern("prompts", "diff", "--json").out)
    assert [each["name"] for each in told] == ["gate", "messages/late"]


def test_nothing_changed_is_said(intern: Intern) -> None:
    code, out, err = intern("prompts", "diff")
    assert (code, out) == (0, "")
    assert err.startswith("nothing is overridden")
