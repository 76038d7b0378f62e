"""A reply that fits is read wherever a local model puts it, and no thought or example is taken for it."""

from __future__ import annotations

from contextlib import suppress
from time import process_time
from typing import get_args

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec import Struct

from intern.core.errors import ModelReplyError
from intern.models.options import LlmOptions, StructuredOutput
from intern.models.prompt import Prompt
from intern.models.replies import decode_reply, read_completion


class AskIn(Struct, frozen=True):
    question: str


class AskOut(Struct, frozen=True):
    answer: str
    sure: bool = False


ASK = Prompt("ask", takes=AskIn, gives=AskOut)
RIGHT = '{"answer": "right", "sure": true}'
DRAFT = '{"answer": "draft"}'


def said(content: str, mode: StructuredOutput = "json_schema", *, called: bool = False) -> AskOut:
    call = {"function": {"name": "ask", "arguments": content}}
    message = {"content": "", "tool_calls": [call]} if called else {"content": content}
    body = msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]})
    return decode_reply(read_completion(body, what="ask"), ASK, LlmOptions(structured_output=mode), what="ask")


@pytest.mark.parametrize(
    "content",
    [
        RIGHT,
        f"\n {RIGHT} \n",
        f"```json\n{RIGHT}\n```",
        f"```\n{RIGHT}```",
        f"~~~json\n{RIGHT}\n~~~\n",
        f"``` JSON\r\n{RIGHT}\r\n```\r\nI hope this helps!",
        f"Here is the reply:\n\n```json\n{RIGHT}\n```\n\nIt has two fields.",
        f"Sure! {RIGHT}",
        f"<think>\n\n</think>\n\n{RIGHT}",
        f"<think>The reply may be {DRAFT}, or not.</think>{RIGHT}",
        f"<think>```json\n{DRAFT}\n```</think>\n```json\n{RIGHT}\n```",
        f"The template has opened it. {DRAFT}</think>{RIGHT}",
        f"<THINKING>{DRAFT}</THINKING> {RIGHT}",
        f"<think>one {DRAFT}</think> two {DRAFT} <think>three</think>{RIGHT}",
        f"<think>He wrote </think> and {DRAFT}.</think>{RIGHT}",
        f'Such as ```json\n{DRAFT}\n``` or {{"else": 1}}, but then ```json\n{RIGHT}\n```',
        f'```json\n{RIGHT}\n```\n```json\n{{"type": "object", "properties": {{}}}}\n```',
        f"In {{braces}} and {{{{more}}}}: {RIGHT}",
        f"\ufeff{RIGHT}",
        f"{RIGHT}\n<think>Was that right?",
        f"[THINK]{DRAFT}[/THINK]{RIGHT}",
    ],
)
def test_a_reply_is_read_in_a_fence_behind_a_thought_and_between_sentences(content: str) -> None:
    assert said(content) == AskOut("right", sure=True)


@pytest.mark.parametrize("mode", get_args(StructuredOutput))
def test_a_reply_that_comes_as_text_is_read_alike_however_it_was_asked_for(mode: StructuredOutput) -> None:
    assert said(f"<think>{DRAFT}</think>```json\n{RIGHT}\n```", mode) == AskOut("right", sure=True)


@pytest.mark.parametrize("around", ["{}", "```json\n{}\n```", "<think>hm</think>{}", "<think>hm</think>\n```\n{}\n```"])
@pytest.mark.parametrize("answer", ["Write <think> and </think>.", "```json\n{}\n```", '{"answer": "x"}', "</think>"])
def test_an_answer_about_fences_and_thoughts_is_read_whole(around: str, answer: str) -> None:
    written = msgspec.json.encode(AskOut(answer)).decode()
    assert said(around.replace("{}", written)).answer == answer


def test_the_arguments_of_a_call_are_read_alike() -> None:
    assert said(f"<think>{DRAFT}</think>```json\n{RIGHT}\n```", "function_calling", called=True).answer == "right"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (f"<think>I could say {DRAFT}", "is a thought that never ends; raise llm.max_tokens, or turn"),
        (f"<think>I could say</think><think>{DRAFT}", "is a thought that never ends"),
        (f"<think>I could say {DRAFT}</think>", "does not fit AskOut"),
        (f"<think>I could say {DRAFT}</think>I do not know.", "does not fit AskOut"),
        ('```json\n{"answer": 1}\n```', "does not fit AskOut: Expected `str`, got `int` - at `$.answer`"),
        ('<think>x</think>{"sure": true}', "does not fit AskOut: Object missing required field `answer`"),
        ('```json\n{"answer": "cut', "does not fit AskOut"),
        ("[1, 2]{", "does not fit AskOut"),
    ],
)
def test_no_thought_is_taken_for_the_reply_and_the_error_says_what_is_wrong(content: str, why: str) -> None:
    with pytest.raises(ModelReplyError) as raised:
        said(content)
    assert why in str(raised.value)


@given(
    st.lists(
        st.sampled_from(
            [
                RIGHT,
                DRAFT,
                "<think>",
                "</think>",
                "```json\n",
                "```",
                "{",
                "}",
                '"',
                "\\",
                "[",
                "x",
                " ",
                "\n",
                '{"answer":',
            ]
        ),
        max_size=12,
    )
)
def test_any_reply_is_read_or_refused(pieces: list[str]) -> None:
    with suppress(ModelReplyError):
        assert said("".join(pieces)).answer in {"right", "draft"}


@pytest.mark.rest
@pytest.mark.parametrize(
    "piece", ["{", '{"a":', '{"a":"', "[", "<think>", "</think>", "```json\n{", '{"a":1}', "</think>{"]
)
def test_a_hostile_reply_takes_no_long_time(piece: str) -> None:
    began = process_time()
    with pytest.raises(ModelReplyError):
        said(piece * (1_000_000 // len(piece)))
    assert process_time() - began < 1
