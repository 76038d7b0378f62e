"""The words of servers for a refusal and a reply. The client does not import this; each entry names its source.

A shape takes the fields that are refused and what is said of each, and gives status and body. A wording takes the text
of a reply and whether a stream was asked for, and gives the message (or the delta of a stream) and the finish word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Callable[[Sequence[str]], tuple[int, bytes]]


def _json(status: int, value: Any) -> tuple[int, bytes]:
    return status, json.dumps(value).encode()


def openai(fields: Sequence[str]) -> tuple[int, bytes]:
    """https://platform.openai.com/docs/guides/error-codes; wording: openai/openai-python issue 1929 (max_tokens)."""
    said = " ".join(f"Unsupported parameter: '{each}' is not supported with this model." for each in fields)
    error: dict[str, Any] = {
        "message": said,
        "type": "invalid_request_error",
        "param": fields[0],
        "code": "unsupported_parameter",
    }
    if len(fields) > 1:
        error["param"] = None
    return _json(400, {"error": error})


def openai_value(fields: Sequence[str]) -> tuple[int, bytes]:
    """OpenAI's o1 and GPT-5: "Unsupported value: 'temperature' does not support 0 with this model"."""
    said = " ".join(f"Unsupported value: '{each}' does not support that with this model." for each in fields)
    return _json(400, {"error": {"message": said, "type": "invalid_request_error", "code": "unsupported_value"}})


def pydantic_nested(fields: Sequence[str]) -> tuple[int, bytes]:
    """Mistral (docs.mistral.ai/api, 422) and FastAPI servers: a list of faults, each with its `loc`."""
    detail = [
        {
            "type": "extra_forbidden",
            "loc": ["body", *each.split(".")],
            "msg": "Extra inputs are not permitted",
            "input": 1,
        }
        for each in fields
    ]
    return _json(422, {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None})


def fastapi(fields: Sequence[str]) -> tuple[int, bytes]:
    """FastAPI's own validation error: fastapi.tiangolo.com/tutorial/handling-errors."""
    detail = [{"loc": ["body", *each.split(".")], "msg": "unexpected value", "type": "value_error"} for each in fields]
    return _json(422, {"detail": detail})


def google(fields: Sequence[str]) -> tuple[int, bytes]:
    """Gemini's compatible face answers with a list: ai.google.dev/gemini-api/docs/openai and its error format."""
    said = "\n".join(f'Invalid JSON payload received. Unknown name "{each}": Cannot find field.' for each in fields)
    return _json(400, [{"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}}])


def groq(fields: Sequence[str]) -> tuple[int, bytes]:
    """Groq: console.groq.com/docs/openai ("currently not supported", 400)."""
    said = ", ".join(f"property '{each}' is unsupported" for each in fields)
    return _json(400, {"error": {"message": said, "type": "invalid_request_error"}})


def vllm(fields: Sequence[str]) -> tuple[int, bytes]:
    """vLLM's flat error object: docs.vllm.ai, OpenAI-compatible server, ErrorResponse."""
    said = "; ".join(f"{each} is not supported by this model" for each in fields)
    return _json(400, {"object": "error", "message": said, "type": "BadRequestError", "param": None, "code": 400})


def plain(fields: Sequence[str]) -> tuple[int, bytes]:
    """Small servers answer in plain text."""
    return 400, f"Unrecognized request argument supplied: {', '.join(fields)}".encode()


def inside_200(fields: Sequence[str]) -> tuple[int, bytes]:
    """OpenRouter puts a provider's error into a 200: openrouter.ai/docs/api-reference/errors."""
    said = f"Provider returned error: {' and '.join(fields)} not supported"
    return _json(200, {"error": {"code": 400, "message": said, "metadata": {"provider_name": "x"}}, "user_id": "u"})


def llama_cpp(fields: Sequence[str]) -> tuple[int, bytes]:
    """llama.cpp's server reports many faults of a request as 500: tools/server/README.md."""
    said = "\n".join(f"Unsupported param: {each}" for each in fields)
    return _json(500, {"error": {"code": 500, "message": said, "type": "server_error"}})


def with_advice(fields: Sequence[str]) -> tuple[int, bytes]:
    """LiteLLM names its own parameters: docs.litellm.ai/docs/completion/drop_params (UnsupportedParamsError)."""
    said = (
        f"litellm.UnsupportedParamsError: x does not support parameters: {list(fields)}. Supported parameters: model,"
    )
    return _json(
        400, {"error": {"message": f"{said} messages, tools, stream, max_tokens, temperature.", "code": "400"}}
    )


SHAPES: tuple[Shape, ...] = (
    *(openai, openai_value, pydantic_nested, fastapi, google, groq, vllm, plain, inside_200, llama_cpp, with_advice),
)

Wording = Callable[[str], tuple[Mapping[str, Any], str | None]]

WORDINGS: Mapping[str, Wording] = {
    # OpenAI's API reference.
    "stop": lambda text: ({"role": "assistant", "content": text}, "stop"),
    # TGI: huggingface.co/docs/text-generation-inference, FinishReason.
    "eos_token": lambda text: ({"role": "assistant", "content": text}, "eos_token"),
    # TabbyAPI and others on exllama.
    "eos": lambda text: ({"content": text}, "eos"),
    # Anthropic's word, as proxies pass it on.
    "end_turn": lambda text: ({"content": text}, "end_turn"),
    # Gemini's word, as proxies pass it on.
    "STOP": lambda text: ({"content": text}, "STOP"),
    # Seen at gateways that know no reason.
    "empty": lambda text: ({"role": "assistant", "content": text}, ""),
    "none": lambda text: ({"content": text, "tool_calls": None, "refusal": None}, None),
    # Content parts: Mistral's magistral models and OpenAI's own type of a message.
    "parts": lambda text: (
        {"content": [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]},
        "stop",
    ),
    # vLLM with a reasoning parser that takes the whole reply for a thought: vllm-project/vllm issue 13375.
    "reasoning_content": lambda text: ({"content": None, "reasoning_content": text}, "stop"),
    # OpenRouter's and Ollama's name for it.
    "reasoning": lambda text: ({"content": "", "reasoning": text}, "stop"),
    # A function that is called though none was offered, or with the wrong finish word.
    "called": lambda text: (
        {"content": None, "tool_calls": [{"index": 0, "function": {"arguments": text}}]},
        "tool_calls",
    ),
    # Local models fence their JSON, and think before it.
    "fenced": lambda text: ({"content": f"<think>so</think>\n```json\n{text}\n```"}, "stop"),
}


def mute(fields: Sequence[str]) -> tuple[int, bytes]:
    """Some servers give no reason."""
    del fields
    return 400, b"Bad Request"


def _required(fields: Sequence[str]) -> tuple[int, bytes]:
    """Anthropic's compatible faces and FastAPI servers: docs.anthropic.com, `max_tokens: Field required`."""
    detail = [{"type": "missing", "loc": ["body", each], "msg": "Field required"} for each in fields]
    return _json(422, {"detail": detail})


def _only_streams(fields: Sequence[str]) -> tuple[int, bytes]:
    """Alibaba's DashScope for QwQ: "This model only supports stream mode"."""
    said = " ".join(f"{each} must be set for this model." for each in fields)
    return _json(400, {"error": {"message": said, "type": "invalid_request_error", "param": None, "code": None}})


DEMANDS: tuple[Shape, ...] = (_required, _only_streams)
