"""Profiles of servers that run on one's own machines."""

from __future__ import annotations

from typing import Any

from tests.model.servers.hosted import GITHUB, INVALID, openai_error
from tests.model.servers.profile import Profile, Said

# What a reverse proxy says in front of a server that lets requests wait.
NGINX_BUSY = Said(
    status=429,
    body="<html>\r\n<head><title>429 Too Many Requests</title></head>\r\n<body>\r\n"
    "<center><h1>429 Too Many Requests</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n",
)


def flat_error(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    """Word an error as vLLM does, and SGLang after it."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


OLLAMA = Profile(
    name="Ollama",
    sources=(
        "https://docs.ollama.com/api/openai-compatibility",  # the fields that it takes
        f"{GITHUB}/lukestanley/ollama",  # openai/openai.go: shapes of messages, errors and usage
        f"{GITHUB}/ollama/ollama/issues/4159",  # busy: words
        f"{GITHUB}/ollama/ollama/pull/4144",  # busy: the status
        f"{GITHUB}/ollama/ollama/issues/15934",  # 503 of its cloud: the whole body
    ),
    unverified="a prompt that is too long: its words are those in the tests of several public clients, and most prompts"
    " are cut off without a word; what it lists; a 429 is that of a proxy",
    model="qwen3:0.6b",
    message=lambda text: {"role": "assistant", "content": text, "reasoning": "They ask {something}."},
    beside={"system_fingerprint": "fp_ollama"},
    too_long=(
        Said(status=400, body=openai_error("prompt too long; exceeded max context length by 4096 tokens", INVALID)),
    ),
    busy=(
        NGINX_BUSY,
        Said(
            status=503,
            body=openai_error("server busy, please try again.  maximum pending requests exceeded", "api_error"),
        ),
        Said(status=503, body={"error": "Server overloaded, please retry shortly (ref: aaa65c70)"}),
    ),
    pages={
        "/v1/models": {
            "object": "list",
            "data": [{"id": "qwen3:0.6b", "object": "model", "created": 1, "owned_by": "library"}],
        },
        "/api/ps": {"models": [{"name": "qwen3:0.6b", "context_length": 8192}]},
    },
    offers={"qwen3:0.6b": 8192},
)

SAYS_KEEPING = (
    "Trying to keep the first 14538 tokens when context the overflows. However, the model is loaded with context length"
    " of only 2048 tokens, which is not enough. Try to load the model with a larger context length, or provide a"
    " shorter input"
)
LM_STUDIO = Profile(
    name="LM Studio",
    sources=(
        f"{GITHUB}/lmstudio-ai/lmstudio-bug-tracker/issues/169",  # response_format: the status
        f"{GITHUB}/LoadShine/tada/issues/16",  # response_format: the whole body
        f"{GITHUB}/lmstudio-ai/lmstudio-bug-tracker/issues/237",  # too long: 400
        f"{GITHUB}/dyad-sh/dyad/issues/925",  # too long within a stream: words
        f"{GITHUB}/lmstudio-ai/lmstudio-bug-tracker/issues/2339",  # too long on MLX: words
        "https://lmstudio.ai/docs/api/rest-api",  # its own list
    ),
    unverified="events of streams; a 429 is that of a proxy; what it lists",
    model="qwen3-4b-instruct",
    refuses={"json_object": Said(status=400, body={"error": "'response_format.type' must be 'json_schema' or 'text'"})},
    usage={"completion_tokens_details": {"reasoning_tokens": 0}},
    beside={"stats": {}, "system_fingerprint": "qwen3-4b-instruct"},
    too_long=(
        Said(status=400, body={"error": SAYS_KEEPING}, is_event=True),
        Said(status=400, body={"error": {"message": SAYS_KEEPING}}, is_event=True),
        Said(status=400, body={"error": "Context size has been exceeded"}),
    ),
    busy=(NGINX_BUSY,),
    pages={
        "/v1/models": {"data": [{"id": "qwen3-4b-instruct", "object": "model", "owned_by": "organization_owner"}]},
        "/api/v0/models": {
            "data": [{"id": "qwen3-4b-instruct", "max_context_length": 32768, "loaded_context_length": 8192}]
        },
    },
    offers={"qwen3-4b-instruct": 8192},
)

SAYS_SIZE = "the request exceeds the available context size. try increasing the context size or enable context shift"
LLAMA_CPP = Profile(
    name="llama.cpp",
    sources=(
        f"{GITHUB}/ggml-org/llama.cpp/pull/15780",  # too long: the whole body
        f"{GITHUB}/oobabooga/textgen/issues/7257",  # too long: under another status than the body names
        f"{GITHUB}/continuedev/continue/issues/9797",  # too long: 400
    ),
    unverified="a 503 while it loads; timings; what it lists; a 429 is that of a proxy",
    model="small.gguf",
    beside={"timings": {"cache_n": 0, "prompt_n": 40, "prompt_ms": 12.5, "predicted_n": 40, "predicted_ms": 80.0}},
    too_long=tuple(
        Said(
            status=status,
            body={
                "error": {
                    "code": status if status != 200 else 400,
                    "message": SAYS_SIZE,
                    "type": "exceed_context_size_error",
                    "n_prompt_tokens": 14429,
                    "n_ctx": 8192,
                }
            },
        )
        for status in (400, 500, 200)
    ),
    busy=(NGINX_BUSY,),
    away=(Said(status=503, body={"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),),
    pages={"/v1/models": {"data": [{"id": "small.gguf", "owned_by": "llamacpp", "meta": {"n_ctx": 8192}}]}},
    offers={"small.gguf": 8192},
)

VLLM = Profile(
    name="vLLM",
    sources=(
        f"{GITHUB}/vllm-project/vllm/pull/2964",  # the role system: the whole body
        f"{GITHUB}/vllm-project/vllm/issues/20409",  # too long: words
        f"{GITHUB}/vllm-project/vllm/issues/4667",  # too long, told as a limit below zero: the whole body
        f"{GITHUB}/vllm-project/vllm/issues/14170",  # reasoning_content
    ),
    unverified="a 429 is that of a proxy; what it lists",
    model="google/gemma-2-2b-it",
    refuses=dict.fromkeys(("system", "developer"), Said(status=400, body=flat_error("System role not supported"))),
    loses=frozenset({"system"}),
    message=lambda text: {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": []},
    in_choice={"stop_reason": 107, "logprobs": None},
    beside={"prompt_logprobs": None, "kv_transfer_params": None},
    too_long=(
        Said(
            status=400,
            body=flat_error(
                "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in"
                " the messages, 10000 in the completion). Please reduce the length of the messages or completion."
            ),
        ),
        Said(status=400, body=flat_error("max_tokens must be at least 1, got -186.")),
    ),
    busy=(NGINX_BUSY,),
    pages={
        "/v1/models": {
            "object": "list",
            "data": [{"id": "google/gemma-2-2b-it", "owned_by": "vllm", "max_model_len": 8192, "permission": []}],
        }
    },
    offers={"google/gemma-2-2b-it": 8192},
)

SGLANG = Profile(
    name="SGLang",
    sources=(
        f"{GITHUB}/sgl-project/sglang/issues/4550",  # fields of a stream, and no finish word at all
        f"{GITHUB}/sgl-project/sglang/issues/3428",  # reasoning_content
    ),
    unverified="a prompt that is too long: its words are those in several public clients; the shape of errors;"
    " a 429 is that of a proxy; what it lists",
    model="deepseek-ai/DeepSeek-R1",
    finish=None,
    message=lambda text: {
        "role": "assistant",
        "content": text,
        "reasoning_content": "They ask {something}.",
        "tool_calls": None,
    },
    in_choice={"logprobs": None, "matched_stop": None},
    too_long=(
        Said(
            status=400,
            body=flat_error("The input (5030 tokens) is longer than the model's context length (4096 tokens)."),
        ),
        Said(
            status=400,
            body=flat_error(
                "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total"
                " of 5030 tokens: 934 tokens from the input messages and 4096 tokens for the completion."
            ),
        ),
    ),
    busy=(NGINX_BUSY,),
    pages={
        "/v1/models": {
            "object": "list",
            "data": [{"id": "deepseek-ai/DeepSeek-R1", "owned_by": "sglang", "root": "r", "max_model_len": 4096}],
        }
    },
    offers={"deepseek-ai/DeepSeek-R1": 4096},
)

SAYS_INPUTS = "Input validation error: `inputs` must have less than 4096 tokens. Given: 4545"
TGI = Profile(
    name="TGI",
    sources=(
        f"{GITHUB}/huggingface/text-generation-inference/issues/439",  # 429: words
        f"{GITHUB}/meta-llama/llama/issues/1103",  # too long: status and words
        f"{GITHUB}/meta-llama/llama-cookbook/issues/368",  # too long: the whole body
        f"{GITHUB}/huggingface/text-generation-inference/issues/2749",  # too long: under status 200
        f"{GITHUB}/bytedance/UI-TARS-desktop/issues/626",  # too long: 422
    ),
    unverified="the body of a 429, which stands in public code; finish words; words for json_schema,"
    " which older versions do not know; what it lists",
    model="tgi",
    refuses={
        "json_schema": Said(
            status=422,
            body="Failed to deserialize the JSON body into the target type: response_format: unknown variant"
            " `json_schema`, expected `json_object` or `regex` at line 1 column 1193",
        )
    },
    loses=frozenset({"output"}),
    finish="eos_token",
    beside={"system_fingerprint": "3.0.0-native"},
    too_long=(
        Said(status=422, body={"error": SAYS_INPUTS, "error_type": "validation"}),
        Said(
            status=422,
            body={
                "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 8509"
                " `inputs` tokens and 64 `max_new_tokens`",
                "error_type": "validation",
            },
            is_event=True,
        ),
    ),
    busy=(Said(status=429, body={"error": "Model is overloaded", "error_type": "overloaded"}),),
    pages={"/v1/models": {"object": "list", "data": [{"id": "tgi", "object": "model", "owned_by": "tgi"}]}},
    offers={"tgi": None},
)

RECEIVED = "Received Model Group=gpt-5-mini\nAvailable Model Group Fallbacks=None"


def litellm_error(message: str, kind: str | None = "None", code: str = "400") -> dict[str, Any]:
    """Word an error as LiteLLM's proxy does."""
    return openai_error(f"litellm.{message}", str(kind), code)


LITELLM = Profile(
    name="LiteLLM",
    sources=(
        f"{GITHUB}/Vivswan/litellm-vscode-chat/issues/18",  # temperature: the whole body
        f"{GITHUB}/logancyang/obsidian-copilot/issues/1477",  # max_tokens: words
        f"{GITHUB}/OpenHands/OpenHands/issues/5350",  # too long: the whole body
        f"{GITHUB}/jasonacox/TinyLLM/issues/17",  # 429: the whole body
        f"{GITHUB}/BerriAI/litellm/pull/33738",  # a reply
    ),
    unverified="the shape of the refusal of max_tokens; what it lists",
    model="gpt-5-mini",
    path="",
    refuses={
        "max_tokens": Said(
            status=400,
            body=litellm_error(
                "BadRequestError: OpenAIException - Unsupported parameter: 'max_tokens' is not supported with this"
                f" model. Use 'max_completion_tokens' instead.. {RECEIVED}"
            ),
        ),
        "temperature": Said(
            status=400,
            body=litellm_error(
                "UnsupportedParamsError: gpt-5 models (including gpt-5-codex) don't support temperature=0.7. Only"
                " temperature=1 is supported. For gpt-5.1, temperature is supported when reasoning_effort='none' (or"
                " not specified, as it defaults to 'none'). To drop unsupported params set litellm.drop_params = True."
                f" {RECEIVED}"
            ),
        ),
    },
    loses=frozenset({"limit", "temperature"}),
    message=lambda text: {
        "role": "assistant",
        "content": text,
        "provider_specific_fields": {"refusal": None},
        "annotations": [],
    },
    in_choice={"provider_specific_fields": {}},
    too_long=(
        Said(
            status=400,
            body=litellm_error(
                'BadRequestError: litellm.ContextWindowExceededError: AnthropicError - {"type":"error","error":{"type":'
                '"invalid_request_error","message":"prompt is too long: 209303 tokens > 200000 maximum"}}'
            ),
        ),
    ),
    busy=(
        Said(
            status=429,
            waits=60,
            body=litellm_error(
                "RateLimitError: AzureException RateLimitError - Error code: 429 - {'error': {'code': '429', 'message':"
                " 'Requests to the ChatCompletions_Create Operation under Azure OpenAI API version 2023-05-15 have"
                " exceeded token rate limit of your current AIServices S0 pricing tier. Please retry after 86400"
                f" seconds.'}}}}\n{RECEIVED}",
                *("throttling_error", "429"),
            ),
        ),
    ),
    pages={
        "/models": {
            "object": "list",
            "data": [{"id": "gpt-5-mini", "object": "model", "created": 1677610602, "owned_by": "openai"}],
        }
    },
    offers={"gpt-5-mini": None},
)

LOCAL = (OLLAMA, LM_STUDIO, LLAMA_CPP, VLLM, SGLANG, TGI, LITELLM)
