"""Prompts as Jinja templates: `<name>.md.j2`, one for each model call, for operators to tune.

A template is two blocks: `system`, the instructions, and `user`, the material. A third, `examples`, may give examples:
a line `--- user ---` begins an input, a line `--- assistant ---` the JSON of its reply. Variables are the fields of the
prompt's input and the operator's constants. Examples see the constants alone, so that they are the same for every call.
The value of a variable is inserted unchanged and never read as a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple, cast

import jinja2
import msgspec
from jinja2 import meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from intern.core.errors import ConfigError
from intern.core.text.fences import fence_text
from intern.models.prompt import InT, OutT, Prompt

_SUFFIX = ".md.j2"
_FILE_NAME = re.compile(r"[A-Za-z0-9_-]+\.md\.j2")
_BLOCKS = ("system", "user")
_EXAMPLES = "examples"
_TURN = re.compile(r"^--- (user|assistant) ---[ \t]*$", re.MULTILINE)
_NO_CONSTANTS: Mapping[str, str] = {"project_introduction": "", "answer_scope": "", "refusal_policy": ""}
# What an expression in a template can raise at run time, beside Jinja's own errors; one that includes itself, too.
MISTAKES = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError)


class PromptExample(NamedTuple):
    """An example input and its reply."""

    user: str
    assistant: str


class RenderedPrompt(NamedTuple):
    """A prompt as the model gets it."""

    system: str
    user: str
    examples: tuple[PromptExample, ...] = ()
    """Turns between the instructions and the material."""

    @property
    def whole(self) -> str:
        """All texts, in the order in which a model reads them."""
        return "\n".join((self.system, *(turn for example in self.examples for turn in example), self.user))


class PromptTemplates:
    """The operator's templates over the shipped ones. Each is read once; a mistake in one is a `ConfigError`."""

    def __init__(self, override_dir: Path | None = None, globals: Mapping[str, str] = _NO_CONSTANTS) -> None:  # noqa: A002 Jinja's own word
        if override_dir is not None and not override_dir.is_dir():
            raise ConfigError(f"prompts.dir: {override_dir} is not a folder")
        self._folders: tuple[Traversable, ...] = (*((override_dir,) if override_dir else ()), *find_shipped_folders())
        self._constants = {**_NO_CONSTANTS, **globals}
        self._jinja = _make_environment(jinja2.FunctionLoader(self._read_template))
        self._turns: dict[str, tuple[PromptExample, ...]] = {}

    def with_constants(self, globals: Mapping[str, str]) -> PromptTemplates:  # noqa: A002 Jinja's own word
        """Return the same compiled templates with other constants."""
        other = copy(self)
        other._constants, other._turns = {**_NO_CONSTANTS, **globals}, {}  # noqa: SLF001 - the same class
        return other

    def check(self, prompts: Iterable[Prompt[Any, Any]]) -> None:
        """Find faults at start-up: missing templates, bad syntax, unknown variables."""
        for prompt in prompts:
            if faults := self.find_faults(prompt):
                raise ConfigError(faults[0])

    def find_faults(self, prompt: Prompt[Any, Any]) -> tuple[str, ...]:
        """Return all faults of one template that `check` looks for, each with its file and, if known, its line."""
        known = self._constants.keys() | {field.name for field in msgspec.structs.fields(prompt.takes)}
        try:
            template = self._load_complete(prompt.name)
            faults = tuple(self._find_block_faults(template, known))
            return faults or tuple(self._find_unfit_examples(template, prompt.gives))
        except ConfigError as error:
            return (str(error),)

    def find_variables(self, prompt: Prompt[Any, Any]) -> frozenset[str]:
        """Return the variables of a template and of the parts that it includes. Raises `ConfigError`."""
        found: set[str] = set()
        for name in (prompt.name + _SUFFIX, *self.find_included_files(prompt)):
            found |= self._parse(self._load_file(name)).variables
        return frozenset(found)

    def find_included_files(self, prompt: Prompt[Any, Any]) -> frozenset[str]:
        """Return the files that a template includes. Raises `ConfigError` if one is broken."""
        found: set[str] = set()
        waiting = [prompt.name + _SUFFIX]
        while waiting:
            parsed = self._parse(self._load_file(waiting.pop()))
            new = set(filter(None, meta.find_referenced_templates(parsed.tree))) - found
            found |= new
            waiting += new
        return frozenset(found)

    def find_file(self, prompt: Prompt[Any, Any]) -> str:
        """Return the path of a prompt's template; empty if there is none. Raises `ConfigError` if it is unreadable."""
        found = self._read_template(prompt.name + _SUFFIX)
        return found[1] if found else ""

    def render(self, prompt: Prompt[InT, OutT], given: InT) -> RenderedPrompt:
        """Render both blocks, stripped. Raises `ConfigError`, which names file and line."""
        template = self._load_complete(prompt.name)
        fields = {name: getattr(given, name) for name in cast("msgspec.Struct", given).__struct_fields__}
        context = template.new_context({**self._constants, **fields})
        try:
            system, user = ("".join(template.blocks[block](context)).strip() for block in _BLOCKS)
        except MISTAKES as error:
            raise ConfigError(f"{_find_error_place(error, template)}: {_first_line(error)}") from error
        return RenderedPrompt(system, user, self._read_examples(template))

    def read_source(self, prompt: Prompt[Any, Any]) -> str:
        """Return the text of a prompt's template. Raises `ConfigError` if there is none."""
        self._load_complete(prompt.name)
        found = self._read_template(prompt.name + _SUFFIX)
        return found[0] if found else ""

    def _read_template(self, file_name: str) -> tuple[str, str, None] | None:
        """Return a template's text and path, from the first folder that has it. The names come from templates."""
        if not _FILE_NAME.fullmatch(file_name):
            return None
        for folder in self._folders:
            file = folder / file_name
            if file.is_file():
                try:
                    return file.read_text(encoding="utf-8"), str(file), None
                except (OSError, UnicodeError) as error:
                    raise ConfigError(f"the template {file} cannot be read: {error}") from error
        return None

    def _load_complete(self, name: str) -> jinja2.Template:
        template = self._load_file(name + _SUFFIX)
        if missing := [block for block in _BLOCKS if block not in template.blocks]:
            raise ConfigError(f"{template.filename}: the block {missing[0]!r} is missing ({{% block {missing[0]} %}})")
        return template

    def _load_file(self, file_name: str) -> jinja2.Template:
        try:
            return self._jinja.get_template(file_name)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{error.filename}, line {error.lineno}: {error.message}") from error
        except jinja2.TemplateNotFound as error:
            places = ", ".join(map(str, self._folders)) or "any folder"
            raise ConfigError(f"there is no template {error.name} in {places}") from error

    def _read_examples(self, template: jinja2.Template) -> tuple[PromptExample, ...]:
        """Return the example turns of a template, which are the same for every input. Raises `ConfigError`."""
        block = template.blocks.get(_EXAMPLES)
        if block is None:
            return ()
        name = cast("str", template.name)
        if name not in self._turns:
            try:
                text = "".join(block(template.new_context(dict(self._constants))))
            except MISTAKES as error:
                raise ConfigError(f"{_find_error_place(error, template)}: {_first_line(error)}") from error
            before, *parts = _TURN.split(text)
            if before.strip() or parts[::2] != ["user", "assistant"] * (len(parts) // 4) or not parts:
                raise ConfigError(
                    f"{template.filename}: the block 'examples' must be turns, each a line '--- user ---' with what is "
                    "given and a line '--- assistant ---' with the reply"
                )
            turns = [part.strip() for part in parts[1::2]]
            self._turns[name] = tuple(map(PromptExample, turns[::2], turns[1::2]))
        return self._turns[name]

    def _find_unfit_examples(self, template: jinja2.Template, gives: type) -> Iterator[str]:
        """Yield the examples whose reply does not fit the type of the prompt."""
        for n, example in enumerate(self._read_examples(template), 1):
            try:
                msgspec.json.decode(example.assistant, type=gives)
            except (msgspec.MsgspecError, RecursionError) as error:
                yield f"{template.filename}: the reply of example {n} is none of this prompt: {_first_line(error)}"

    def _find_block_faults(self, template: jinja2.Template, known: set[str]) -> Iterator[str]:
        parsed = self._parse(template)
        for node in parsed.tree.body:
            if not isinstance(node, nodes.Block) and not _is_blank(node):
                yield (
                    f"{template.filename}, line {node.lineno}: this stands outside of the blocks "
                    "'system', 'examples' and 'user', so no model would see it"
                )
        unknown = parsed.variables - known
        for node in parsed.tree.find_all(nodes.Name) if unknown else ():
            if node.name in unknown and node.ctx == "load":
                yield (
                    f"{template.filename}, line {node.lineno}: there is no variable {node.name!r} here; "
                    f"there are {', '.join(sorted(known))}"
                )

    def _parse(self, template: jinja2.Template) -> _ParsedTemplate:
        found = self._read_template(cast("str", template.name))
        assert found is not None, "it was there when it was compiled"
        source, path, _ = found
        return _parse_source(source, template.name, path)


class _ParsedTemplate(NamedTuple):
    tree: nodes.Template
    variables: frozenset[str]


@lru_cache(128)  # for a process that opens folders again and again: a check takes 60 ms of CPU without
def _parse_source(source: str, name: str | None, path: str) -> _ParsedTemplate:
    tree = _make_environment().parse(source, name, path)
    return _ParsedTemplate(tree, frozenset(meta.find_undeclared_variables(tree)))


def _make_environment(loader: jinja2.BaseLoader | None = None) -> ImmutableSandboxedEnvironment:
    jinja = ImmutableSandboxedEnvironment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        autoescape=False,  # plain text for a model, not HTML
    )
    filters = cast("dict[str, Callable[..., Any]]", jinja.filters)
    filters[fenced.__name__] = fenced
    return jinja


def fenced(text: str, label: str) -> str:
    """Fence a text. Messages about a template name the filter as the template does."""
    return fence_text(text, label)


@cache
def find_shipped_folders() -> tuple[Traversable, ...]:
    """Return the folder in the wheel, or else the one in the source tree."""
    package = files("intern")
    for folder in (package / "_prompts", Path(str(package)).parent / "prompts"):
        if folder.is_dir():
            return (folder,)
    return ()


def _is_blank(node: nodes.Node) -> bool:
    parts = node.nodes if isinstance(node, nodes.Output) else [node]
    return all(isinstance(part, nodes.TemplateData) and not part.data.strip() for part in parts)


def _find_error_place(error: BaseException, template: jinja2.Template) -> str:
    """Return the file and line of the innermost template frame of `error`."""
    place = f"{template.filename}"
    for frame, line in walk_tb(error.__traceback__):
        found = frame.f_globals.get("__jinja_template__")
        if isinstance(found, jinja2.Template):
            place = f"{found.filename}, line {found.get_corresponding_lineno(line)}"
    return place


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
