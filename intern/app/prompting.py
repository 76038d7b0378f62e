"""Prompts and messages for whoever words them: what there is, how it reads, what is wrong with it, what was changed.

Asks no model and writes nothing. A template that is broken can still be listed, read and compared.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from intern.answering.deciding import CONFIRM, DECIDE
from intern.answering.prompts import ANSWER, GATE, SELECT, VERIFY
from intern.app.examples import bare_example, full_example, mark, marked_example, marks_in
from intern.app.models import PROMPTS, constants_of, templates_of
from intern.conversations.replying import Wording, worded, wording_file
from intern.errors import ConfigError
from intern.llm.prompt import Prompt
from intern.llm.templates import Rendered, Templates
from intern.settings import Settings

_SUFFIX = ".md.j2"
_BY_STEPS = {"fused": (DECIDE, CONFIRM), "separate": (GATE, SELECT, ANSWER, VERIFY)}
"""The prompts that are asked with one value of `ai.steps` only."""
_MESSAGES = "messages"
# All other texts come from strangers, or are made from what strangers wrote.
_OURS = re.compile(r"_(ids?|type)$")
_FENCED = re.compile(r"^=== (?P<label>.+?) ===\n.*?\n=== end of (?P=label) ===$", re.DOTALL | re.MULTILINE)


class PromptLine(Struct, frozen=True, kw_only=True):
    """A template in a list."""

    name: str
    used_by: str
    """The room that says it."""
    fields: tuple[str, ...]
    """The variables that it may use, beside the constants."""
    constants: tuple[str, ...]
    """The settings of `[ai]` that it puts in."""
    file: str
    overridden: bool
    """It is the operator's own, from `prompts.dir`."""
    unused: str = ""
    """The setting with which nothing asks it; empty where it is asked."""


class Shown(Struct, frozen=True, kw_only=True):
    """A template, rendered with made-up input."""

    name: str
    file: str
    rendered: Rendered
    """Of a message, `user` alone."""


class Checked(Struct, frozen=True, kw_only=True):
    """What is wrong with the templates."""

    sound: int
    faults: tuple[str, ...]
    """Each would keep something from being said: file, line, reason."""
    notes: tuple[str, ...]
    """What works, but is likely not meant."""


class Difference(Struct, frozen=True, kw_only=True):
    """How a template of the operator's differs from the one that intern brings."""

    name: str
    diff: str
    """Unified; empty where they are the same."""


class Prompting:
    """The templates as the settings have them. Raises ConfigError where `prompts.dir` is no folder."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._dir = Path(settings.prompts.dir) if settings.prompts.dir else None
        self._templates = templates_of(settings)
        self._prompts = {prompt.name: prompt for prompt in sorted(PROMPTS, key=lambda each: each.name)}
        self._messages = tuple(field.name for field in msgspec.structs.fields(Wording))

    @property
    def names(self) -> tuple[str, ...]:
        """All prompts, then all messages."""
        return (*self._prompts, *(f"{_MESSAGES}/{name}" for name in self._messages))

    def listed(self) -> tuple[PromptLine, ...]:
        """All of them."""
        return (*map(self._prompt_line, self._prompts.values()), *map(self._message_line, self._messages))

    def constants(self) -> Mapping[str, str]:
        """The operator's own words that templates may put in, by their setting."""
        return {f"ai.{name}": value for name, value in constants_of(self._settings).items()}

    def shown(self, name: str) -> Shown:
        """One of them as it would be said. Raises ConfigError for one that there is not, or that is broken."""
        if message := self._message_of(name):
            text = worded(message, self._dir, self._message_constants)
            return Shown(name=name, file=str(wording_file(message, self._dir)), rendered=Rendered("", text))
        prompt = self._prompt_of(name)
        rendered = self._templates.render(prompt, full_example(prompt))
        return Shown(name=name, file=self._templates.file(prompt), rendered=rendered)

    def source(self, name: str) -> str:
        """The template itself, broken or not. Raises ConfigError for one that there is not."""
        return self._read(self._override(name) or self._shipped_file(name))

    def checked(self) -> Checked:
        """All that can be found without a model: each template is compiled and rendered with examples."""
        faults = {name: tuple(self._faults(name)) for name in self.names}
        notes = [note for prompt in self._prompts.values() if not faults[prompt.name] for note in self._notes(prompt)]
        return Checked(
            sound=sum(not found for found in faults.values()),
            faults=tuple(dict.fromkeys(fault for found in faults.values() for fault in found)),
            notes=(*notes, *self._strays()),
        )

    def diff(self, names: Iterable[str] = ()) -> tuple[Difference, ...]:
        """How these differ from those that intern brings; without names, all that are overridden."""
        chosen = tuple(names) or tuple(name for name in self.names if self._override(name))
        return tuple(Difference(name=name, diff=self._diff(name)) for name in chosen)

    def _prompt_line(self, prompt: Prompt[Any, Any]) -> PromptLine:
        try:
            uses = self._templates.variables(prompt)
        except ConfigError:  # `check` tells
            uses = frozenset[str]()
        return PromptLine(
            name=prompt.name,
            used_by=prompt.takes.__module__.split(".")[1],
            fields=tuple(field.name for field in msgspec.structs.fields(prompt.takes)),
            constants=tuple(f"ai.{name}" for name in constants_of(self._settings) if name in uses),
            file=str(self._override(prompt.name) or self._shipped_file(prompt.name)),
            overridden=self._override(prompt.name) is not None,
            unused=self._unused(prompt),
        )

    def _unused(self, prompt: Prompt[Any, Any]) -> str:
        steps = self._settings.ai.steps
        is_other = any(prompt in prompts for way, prompts in _BY_STEPS.items() if way != steps)
        return f'ai.steps = "{steps}"' if is_other else ""

    def _message_line(self, message: str) -> PromptLine:
        name = f"{_MESSAGES}/{message}"
        try:
            uses = "project_introduction" in self.source(name)
        except ConfigError:  # `check` tells
            uses = False
        return PromptLine(
            name=name,
            used_by="conversations",
            fields=(),
            constants=("ai.project_introduction",) if uses else (),
            file=str(self._override(name) or self._shipped_file(name)),
            overridden=self._override(name) is not None,
        )

    @property
    def _message_constants(self) -> Mapping[str, str]:
        return {"project_introduction": self._settings.ai.project_introduction}

    def _message_of(self, name: str) -> str | None:
        folder, _, message = name.rpartition("/")
        return message if folder == _MESSAGES and message in self._messages else None

    def _prompt_of(self, name: str) -> Prompt[Any, Any]:
        if name in self._prompts:
            return self._prompts[name]
        near = difflib.get_close_matches(name, [*self.names, *self._messages], n=1)
        meant = f"did you mean {self._whole(near[0])}?" if near else "`intern prompts` lists them"
        raise ConfigError(f"there is no prompt {name[:80]!r}; {meant}")

    def _whole(self, name: str) -> str:
        return f"{_MESSAGES}/{name}" if name in self._messages else name

    def _override(self, name: str) -> Path | None:
        """The operator's own file, where there is one. Raises ConfigError for a name that there is not."""
        if not self._message_of(name):
            self._prompt_of(name)
        file = self._dir / f"{name}{_SUFFIX}" if self._dir else None
        return file if file and file.is_file() else None

    def _shipped_file(self, name: str) -> Path:
        if message := self._message_of(name):
            return Path(str(wording_file(message, None)))
        return Path(Templates().file(self._prompt_of(name)))

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"the template {file} cannot be read: {error}") from error

    def _faults(self, name: str) -> Iterator[str]:
        if message := self._message_of(name):
            # As it is, and as it would be if the setting were the other way.
            for constants in (self._message_constants, {"project_introduction": mark("project_introduction")}):
                try:
                    worded(message, self._dir, constants)
                except ConfigError as error:
                    yield str(error)
                    return
            return
        prompt = self._prompts[name]
        if faults := self._templates.faults(prompt):
            yield from faults
            return
        # Everything there and nothing there: both sides of what a template makes depend on its variables.
        for templates in (self._templates, self._with_constants("something"), self._with_constants("")):
            for given in (full_example(prompt), bare_example(prompt)):
                try:
                    templates.render(prompt, given)
                except ConfigError as error:
                    yield str(error)

    def _with_constants(self, value: str) -> Templates:
        return Templates(self._dir, dict.fromkeys(constants_of(self._settings), value))

    def _notes(self, prompt: Prompt[Any, Any]) -> Iterator[str]:
        """Only about the operator's own templates: those that intern brings are held to this by tests."""
        if self._override(prompt.name) is None:
            return
        file = self._templates.file(prompt)
        if unused := self._unused(prompt):
            yield f"{file}: it is not used with {unused}"
        uses = self._templates.variables(prompt)
        for field in msgspec.structs.fields(prompt.takes):
            if field.name not in uses:
                yield f"{file}: it never says {field.name!r}, so the model does not see it"
        try:
            rendered = self._templates.render(prompt, marked_example(prompt))
        except ConfigError:
            return  # it makes something of a text that the mark is not; nothing is wrong with that
        for name in unmarked(rendered):
            yield (
                f"{file}: {name!r} is strangers' text and stands outside of marks; write "
                f'{{{{ {name} | fenced("{name}") }}}}, or what it says reads like your instructions'
            )

    def _strays(self) -> Iterator[str]:
        """Files of the operator's that nothing uses: most likely a name is misspelt."""
        if self._dir is None:
            return
        used = {f"{name}{_SUFFIX}" for name in self.names} | self._included()
        for file in sorted((*self._dir.glob("*"), *(self._dir / _MESSAGES).glob("*"))):
            name = file.relative_to(self._dir).as_posix()
            known = name.partition(".")[0] in self.names
            if name in used or not file.is_file() or file.name.startswith("."):
                continue
            if known:
                yield f"{file}: it is not used; the name would have to be {name.partition('.')[0]}{_SUFFIX}"
            elif name.endswith(_SUFFIX):
                near = difflib.get_close_matches(name.removesuffix(_SUFFIX), self.names, n=1)
                yield f"{file}: nothing uses it" + (f"; did you mean {near[0]}{_SUFFIX}?" if near else "")

    def _included(self) -> set[str]:
        included: set[str] = set()
        for prompt in self._prompts.values():
            try:
                included |= self._templates.parts(prompt)
            except ConfigError:
                continue  # told among the faults
        return included

    def _diff(self, name: str) -> str:
        theirs = self._override(name)
        if theirs is None:
            return ""
        ours = self._shipped_file(name)
        # Not "the shipped file's path": where it lies is no concern of whoever reads the difference.
        lines = difflib.unified_diff(
            self._read(ours).splitlines(), self._read(theirs).splitlines(), f"shipped/{name}{_SUFFIX}", str(theirs)
        )
        return "\n".join(line.rstrip("\n") for line in lines)


def unmarked(rendered: Rendered) -> tuple[str, ...]:
    """The texts of a `marked_example` that stand outside of marks; ids and kinds are ours, and may."""
    bare = f"{rendered.system}\n{_FENCED.sub('', rendered.user)}"
    return tuple(dict.fromkeys(name for name in marks_in(bare) if not _OURS.search(name)))
