"""Prompts and messages for their editors: the list, each as rendered, mistakes, and changes.

Asks no model and writes nothing. A template that is broken can still be listed, read and compared.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from intern.answering.prompts import ANSWER, CONFIRM, DECIDE, GATE, SELECT, VERIFY
from intern.answering.wordings import Wording, render_wording, template_name, wording_file
from intern.chat.phrases import ENGLISH
from intern.core.errors import ConfigError
from intern.core.text.language import SPOKEN
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates, RenderedPrompt
from intern.models.usage import estimate_tokens
from intern.service.models import PROMPTS, load_templates, template_constants
from intern.service.prompt_examples import (
    build_bare_example,
    build_full_example,
    build_marked_example,
    find_marks,
    mark,
)
from intern.settings.settings import Settings

_SUFFIX = ".md.j2"
_BY_STEPS = {"fused": (DECIDE, CONFIRM), "separate": (GATE, SELECT, ANSWER, VERIFY)}
"""The prompts that are asked with one value of `ai.steps` only."""
_MESSAGES = "messages"
# All other texts come from strangers, or are derived from strangers' texts.
_OURS = re.compile(r"_(ids?|type)$")
_FENCED = re.compile(r"^=== (?P<label>.+?) ===\n.*?\n=== end of (?P=label) ===$", re.DOTALL | re.MULTILINE)


class PromptLine(Struct, frozen=True, kw_only=True):
    """A template in a list."""

    name: str
    used_by: str
    """The package that uses it; "conversations" for messages."""
    fields: tuple[str, ...]
    """The variables that it may use, beside the constants."""
    constants: tuple[str, ...]
    """The settings of `[ai]` that it uses."""
    file: str
    overridden: bool
    """Whether it is the operator's own, from `prompts.dir`."""
    unused: str = ""
    """The setting that disables it; empty while it is used."""


class TemplatePreview(Struct, frozen=True, kw_only=True):
    """A template, rendered with made-up input."""

    name: str
    file: str
    rendered: RenderedPrompt
    """Only `user` for a message."""

    @property
    def tokens(self) -> int:
        """The estimated number of tokens."""
        return estimate_tokens(self.rendered.whole)


class TemplateReport(Struct, frozen=True, kw_only=True):
    """The problems of the templates."""

    sound: int
    faults: tuple[str, ...]
    """The errors that stop a template from rendering: file, line, reason."""
    notes: tuple[str, ...]
    """The constructs that work but are probably mistakes."""


class TemplateDiff(Struct, frozen=True, kw_only=True):
    """The difference between an operator's template and the one that intern ships."""

    name: str
    diff: str
    """Unified; empty where they are the same."""


class PromptLibrary:
    """The templates as the settings have them. Raises ConfigError where `prompts.dir` is no folder."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dir = Path(settings.prompts.dir) if settings.prompts.dir else None
        self._templates = load_templates(settings)
        self._prompts = {prompt.name: prompt for prompt in sorted(PROMPTS, key=lambda each: each.name)}
        self._messages = tuple(
            template_name(field.name, language)
            for language in (ENGLISH, *sorted(SPOKEN - {ENGLISH}))
            for field in msgspec.structs.fields(Wording)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All prompts, then all messages, those in English first."""
        return (*self._prompts, *(f"{_MESSAGES}/{name}" for name in self._messages))

    def list_templates(self) -> tuple[PromptLine, ...]:
        """List all templates."""
        return (*map(self._build_prompt_line, self._prompts.values()), *map(self._build_message_line, self._messages))

    def constants(self) -> Mapping[str, str]:
        """Return the operator's own words that templates may use, by their setting."""
        return {f"ai.{name}": value for name, value in template_constants(self._settings).items()}

    def preview(self, name: str) -> TemplatePreview:
        """Render one of them. Raises ConfigError for an unknown or broken one."""
        if message := self._find_message(name):
            text = render_wording(message, self._dir, self._message_constants)
            return TemplatePreview(
                name=name, file=str(wording_file(message, self._dir)), rendered=RenderedPrompt("", text)
            )
        prompt = self._find_prompt(name)
        rendered = self._templates.render(prompt, build_full_example(prompt))
        return TemplatePreview(name=name, file=self._templates.find_file(prompt), rendered=rendered)

    def source(self, name: str) -> str:
        """Read the template itself, broken or not. Raises ConfigError for an unknown name."""
        return self._read(self._find_override(name) or self._find_shipped_file(name))

    def check(self) -> TemplateReport:
        """Find all problems that need no model: compile each template, and render it with examples."""
        faults = {name: tuple(self._find_faults(name)) for name in self.names}
        notes = [
            note for prompt in self._prompts.values() if not faults[prompt.name] for note in self._find_notes(prompt)
        ]
        return TemplateReport(
            sound=sum(not found for found in faults.values()),
            faults=tuple(dict.fromkeys(fault for found in faults.values() for fault in found)),
            notes=(*notes, *self._find_strays()),
        )

    def diff(self, names: Iterable[str] = ()) -> tuple[TemplateDiff, ...]:
        """Return the differences from the templates that intern ships; without names, of all overridden ones."""
        chosen = tuple(names) or tuple(name for name in self.names if self._find_override(name))
        return tuple(TemplateDiff(name=name, diff=self._diff(name)) for name in chosen)

    def _build_prompt_line(self, prompt: Prompt[Any, Any]) -> PromptLine:
        try:
            uses = self._templates.find_variables(prompt)
        except ConfigError:  # `check` reports it
            uses = frozenset[str]()
        room, fields = prompt.takes.__module__.split(".")[1], msgspec.structs.fields(prompt.takes)
        constants = [name for name in template_constants(self._settings) if name in uses]
        return self._build_line(
            prompt.name, room, [field.name for field in fields], constants, self._find_unused_reason(prompt)
        )

    def _build_line(
        self, name: str, by: str, fields: Sequence[str], uses: Sequence[str], unused: str = ""
    ) -> PromptLine:
        return PromptLine(
            name=name,
            used_by=by,
            fields=tuple(fields),
            constants=tuple(f"ai.{each}" for each in uses),
            file=str(self._find_used_file(name)),
            overridden=self._find_override(name) is not None,
            unused=unused,
        )

    def _find_unused_reason(self, prompt: Prompt[Any, Any]) -> str:
        steps = self._settings.ai.steps
        is_other = any(prompt in prompts for way, prompts in _BY_STEPS.items() if way != steps)
        return f'ai.steps = "{steps}"' if is_other else ""

    def _build_message_line(self, message: str) -> PromptLine:
        name = f"{_MESSAGES}/{message}"
        try:
            uses = "project_introduction" in self.source(name)
        except ConfigError:  # `check` reports it
            uses = False
        return self._build_line(name, "conversations", (), ["project_introduction"] if uses else ())

    @property
    def _message_constants(self) -> Mapping[str, str]:
        return {"project_introduction": self._settings.ai.project_introduction}

    def _find_message(self, name: str) -> str | None:
        folder, _, message = name.partition("/")
        return message if folder == _MESSAGES and message in self._messages else None

    def _find_prompt(self, name: str) -> Prompt[Any, Any]:
        if name in self._prompts:
            return self._prompts[name]
        near = difflib.get_close_matches(name, [*self.names, *self._messages], n=1)
        meant = f"did you mean {self._full_name(near[0])}?" if near else "`intern prompts` lists them"
        raise ConfigError(f"there is no prompt {name[:80]!r}; {meant}")

    def _full_name(self, name: str) -> str:
        return f"{_MESSAGES}/{name}" if name in self._messages else name

    def _find_override(self, name: str) -> Path | None:
        """Return the operator's own file, if there is one. Raises ConfigError for an unknown name."""
        if not self._find_message(name):
            self._find_prompt(name)
        file = self._dir / f"{name}{_SUFFIX}" if self._dir else None
        return file if file and file.is_file() else None

    def _find_used_file(self, name: str) -> Path:
        """Find the file that decides; in another language, that may be the operator's English one."""
        if message := self._find_message(name):
            return Path(str(wording_file(message, self._dir)))
        return self._find_override(name) or self._find_shipped_file(name)

    def _find_shipped_file(self, name: str) -> Path:
        if message := self._find_message(name):
            return Path(str(wording_file(message, None)))
        return Path(PromptTemplates().find_file(self._find_prompt(name)))

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"the template {file} cannot be read: {error}") from error

    def _find_faults(self, name: str) -> Iterator[str]:
        if message := self._find_message(name):
            # As it is, and with the setting reversed.
            for constants in (self._message_constants, {"project_introduction": mark("project_introduction")}):
                try:
                    render_wording(message, self._dir, constants)
                except ConfigError as error:
                    yield str(error)
                    return
            return
        prompt = self._prompts[name]
        if faults := self._templates.find_faults(prompt):
            yield from faults
            return
        # All values and none: both sides of a template's conditions depend on its variables.
        for templates in (self._templates, self._with_constants("something"), self._with_constants("")):
            for given in (build_full_example(prompt), build_bare_example(prompt)):
                try:
                    templates.render(prompt, given)
                except ConfigError as error:
                    yield str(error)

    def _with_constants(self, value: str) -> PromptTemplates:
        return PromptTemplates(self._dir, dict.fromkeys(template_constants(self._settings), value))

    def _find_notes(self, prompt: Prompt[Any, Any]) -> Iterator[str]:
        """Find notes about the operator's own templates only: tests check those that intern ships."""
        if self._find_override(prompt.name) is None:
            return
        file = self._templates.find_file(prompt)
        if unused := self._find_unused_reason(prompt):
            yield f"{file}: it is not used with {unused}"
        uses = self._templates.find_variables(prompt)
        for field in msgspec.structs.fields(prompt.takes):
            if field.name not in uses:
                yield f"{file}: it never says {field.name!r}, so the model does not see it"
        try:
            rendered = self._templates.render(prompt, build_marked_example(prompt))
        except ConfigError:
            return  # it computes with a text and fails for the mark; nothing is wrong with that
        for name in find_unmarked_texts(rendered):
            yield (
                f"{file}: {name!r} is strangers' text and stands outside of marks; write "
                f'{{{{ {name} | fenced("{name}") }}}}, or what it says reads like your instructions'
            )

    def _find_strays(self) -> Iterator[str]:
        """Find the operator's files that nothing uses: most likely a name is misspelt."""
        if self._dir is None:
            return
        used = {f"{name}{_SUFFIX}" for name in self.names} | self._find_included()
        for file in sorted((*self._dir.glob("*"), *(self._dir / _MESSAGES).rglob("*"))):
            name = file.relative_to(self._dir).as_posix()
            known = name.partition(".")[0] in self.names
            if name in used or not file.is_file() or file.name.startswith("."):
                continue
            if known:
                yield f"{file}: it is not used; the name would have to be {name.partition('.')[0]}{_SUFFIX}"
            elif name.endswith(_SUFFIX):
                near = difflib.get_close_matches(name.removesuffix(_SUFFIX), self.names, n=1)
                yield f"{file}: nothing uses it" + (f"; did you mean {near[0]}{_SUFFIX}?" if near else "")

    def _find_included(self) -> set[str]:
        included: set[str] = set()
        for prompt in self._prompts.values():
            try:
                included |= self._templates.find_included_files(prompt)
            except ConfigError:
                continue  # reported among the faults
        return included

    def _diff(self, name: str) -> str:
        theirs = self._find_override(name)
        if theirs is None:
            return ""
        ours = self._find_shipped_file(name)
        # Not "the shipped file's path": its place does not matter to the reader of the difference.
        before, after = self._read(ours).splitlines(), self._read(theirs).splitlines()
        lines = difflib.unified_diff(before, after, f"shipped/{name}{_SUFFIX}", str(theirs))
        return "\n".join(line.rstrip("\n") for line in lines)


def find_unmarked_texts(rendered: RenderedPrompt) -> tuple[str, ...]:
    """Find the texts of a `build_marked_example` outside of marks; ids and kinds are ours, and may be there."""
    bare = f"{rendered.system}\n{_FENCED.sub('', rendered.user)}"
    return tuple(dict.fromkeys(name for name in find_marks(bare) if not _OURS.search(name)))
