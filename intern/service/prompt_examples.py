"""An example input of each prompt, made from its type, to show a template and try it without a model.

A new field needs nothing here; a field of a name listed in `SAMPLES` reads like the real thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

import msgspec
from msgspec import inspect

from intern.models.prompt import InT, Prompt

SAMPLES: Mapping[str, str | int] = MappingProxyType(
    {
        "answer": "Set `listen` in `relay.toml` and restart the relay:\n\n```sh\nsystemctl restart relay\n```",
        "blocks": (
            "--- QA ---\n"
            "id: qa_20260112_091500.000000\n"
            "timestamp: 2026-01-12T09:15:00.000000Z\n"
            "User: which port does the relay use?\n"
            "Team: 7480. You can change it with `listen`."
        ),
        "conversation": (
            "User: the relay does not start, see the picture\n[image 0 of message 1200000000000000001]\n"
            "Team: another program uses the port; set `listen` to a free one"
        ),
        "alias": "S1",
        "description": "How the relay is configured: ports, addresses, certificates, and what each setting does.",
        "existing_facts": "f1 2026-01-12 decision The relay listens on port 7480 unless its operator sets another.",
        "file_path": "docs/configuration.md",
        "file_type": "documentation",
        "history": "asker: I installed the relay with apt\nmember: which version?\nasker: 2.4.1",
        "image_index": 0,
        "label": "S1: reference/configuration.md",
        "index": "team:relay-ports.txt\nWhich ports the relay uses, and how to change them.",
        "max_answer_chars": 3000,
        "max_sources": 5,
        "message_id": "1200000000000000001",
        "pair": (
            "--- QA ---\n"
            "id: qa_20260201_031056.228000\n"
            "timestamp: 2026-02-01T03:10:56.228000Z\n"
            "User: how do I move the relay to another port?\n"
            "Team: set `listen` in `relay.toml` and restart it"
        ),
        "query": "How is the port of the relay changed, version 2.4.1?",
        "question": "How do I move it to another port? It says `bind: address already in use`.",
        "questions": (
            "qa_20260112_091500.000000 which port does the relay use?\n"
            "qa_20260113_101500.000000 how do I renew the certificate?"
        ),
        "source_id": "kb:reference/configuration.md",
        "structure": "headings: Configuration; Addresses; Certificates",
        "text": "# Configuration\n\n`listen` is the address that the relay listens on. The default is `0.0.0.0:7480`.",
        "title": "Configuration",
        "topic": "relay-ports",
        "transcript": (
            "m1 User_1 (member): how do I move the relay to another port?\n"
            "m2 User_2 (team): set `listen` in `relay.toml` and restart it"
        ),
    }
)
"""Values by the name of their field."""

_ITEMS: Mapping[str, str] = MappingProxyType(
    {
        "citations": "kb:reference/configuration.md",
        "nearest": "S1: `listen` is the address that the relay listens on.",
        "suspicions": "systemctl restart relay",
        "unnamed": "Windows",
    }
)
"""The item of a list of texts, by the name of the list."""

_MARK = re.compile(r"<the text of (\w+)>")


def build_full_example(prompt: Prompt[InT, Any]) -> InT:
    """Return an input with all values present."""
    return msgspec.convert(_build_example(inspect.type_info(prompt.takes), "", _sample_text), type=prompt.takes)


def build_bare_example(prompt: Prompt[InT, Any]) -> InT:
    """Return an input with as many empty values as possible."""
    return msgspec.convert(
        _clear_values(_build_example(inspect.type_info(prompt.takes), "", _sample_text)), type=prompt.takes
    )


def build_marked_example(prompt: Prompt[InT, Any]) -> InT:
    """Return an input in which each text is its field's `mark`."""
    return msgspec.convert(_build_example(inspect.type_info(prompt.takes), "", mark), type=prompt.takes)


def mark(field: str) -> str:
    """Return a text that no template contains."""
    return f"<the text of {field}>"


def find_marks(text: str) -> list[str]:
    """Find the fields whose marks are in a text."""
    return _MARK.findall(text)


def _sample_text(field: str) -> str:
    return str(SAMPLES.get(field) or _ITEMS.get(field) or f"an example of {field}")


def _build_example(kind: inspect.Type, field: str, text: Callable[[str], str]) -> Any:
    match kind:
        case inspect.Metadata(type=inner):
            return _build_example(inner, field, text)
        case inspect.StructType(fields=fields):
            return {each.encode_name: _build_example(each.type, each.name, text) for each in fields}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [_build_example(item, field, text)]
        case inspect.UnionType(types=types):  # a field that may be a struct is for rules
            plain = [each for each in types if not isinstance(each, inspect.NoneType | inspect.StructType)]
            return _build_example(plain[0], field, text) if plain else None
        case inspect.StrType():
            return text(field)
        case _:
            return _scalar(kind, field)


def _scalar(kind: inspect.Type, field: str) -> bool | int | float | str:
    match kind:
        case inspect.LiteralType(values=values):
            return values[0] or ""
        case inspect.BoolType():
            return True
        case inspect.IntType():
            sample = SAMPLES.get(field)
            return sample if isinstance(sample, int) else 1
        case inspect.FloatType():
            return 1.0
        case _:
            raise TypeError(f"no example can be made of {field}: {kind}")


def _clear_values(value: Any) -> Any:
    """Return an empty value of the same type; a struct keeps its fields."""
    if not isinstance(value, dict):
        return None if value is None else type(value)()
    return {name: _clear_values(each) for name, each in cast("dict[str, Any]", value).items()}
