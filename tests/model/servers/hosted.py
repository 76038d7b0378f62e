"""Profiles of servers that are reached over the internet."""

from __future__ import annotations

from typing import Any

from tests.model.servers.profile import Message, Profile, Said

GITHUB = "https://github.com"


def openai_error(message: str, kind: str, code: Any = None, param: str | None = None) -> dict[str, Any]:
    """Word an error as OpenAI's API does, and many others."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def google_error(code: int, message: str, status: str, *details: Any) -> list[Any]:
    """Word an error as Google's API does; its compatible face sends a list of one."""
    error = {"code": code, "message": message, "status": status}
    return [{"error": error | ({"details": list(details)} if details else {})}]


INVALID = "invalid_request_error"
SAYS_MAX_TOKENS = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
)
SAYS_TEMPERATURE = (
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported."
)
OPENAI_BUSY = Said(
    status=429,
    headers={"Retry-After": "1"},
    waits=0.5,
    body=openai_error(
        "Rate limit reached for gpt-4.1 in organization org-x on tokens per min (TPM): Limit 30000, Used 18928,"
        " Requested 11159. Please try again in 174ms. Visit https://platform.openai.com/account/rate-limits to learn"
        " more.",
        *("tokens", "rate_limit_exceeded"),
    ),
)
OPENAI_AWAY = Said(
    status=503,
    body=openai_error(
        "That model is currently overloaded with other requests. You can retry your request, or contact us through our"
        " help center at help.openai.com if the error persists.",
        "server_error",
    ),
)

OPENAI_REASONING = Profile(
    name="OpenAI, GPT-5 and o",
    sources=(
        f"{GITHUB}/griptape-ai/ComfyUI-Griptape/issues/312",  # max_tokens: the whole body
        f"{GITHUB}/johny-b/llmcomp/issues/69",  # temperature: the whole body
        f"{GITHUB}/cline/cline/issues/5474",  # too long: status and words
        f"{GITHUB}/DrShushen/climb/issues/13",  # too large for a minute: the whole body
        f"{GITHUB}/agent0ai/agent-zero/issues/711",  # the same of GPT-5: words
        f"{GITHUB}/continuedev/continue/issues/11472",  # 429: words
        f"{GITHUB}/waylaidwanderer/node-chatgpt-api/issues/34",  # 503: the whole body
        f"{GITHUB}/BerriAI/litellm/pull/33738",  # reasoning_tokens, refusal and annotations in a reply
    ),
    unverified="type and code of the error for a prompt that is too long",
    model="gpt-5-mini",
    host="api.openai.com",
    refuses={
        "max_tokens": Said(
            status=400, body=openai_error(SAYS_MAX_TOKENS, INVALID, "unsupported_parameter", "max_tokens")
        ),
        "temperature": Said(
            status=400, body=openai_error(SAYS_TEMPERATURE, INVALID, "unsupported_value", "temperature")
        ),
    },
    loses=frozenset({"limit", "temperature"}),
    message=lambda text: {"role": "assistant", "content": text, "refusal": None, "annotations": []},
    usage={
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 32, "accepted_prediction_tokens": 0},
    },
    beside={"service_tier": "default", "system_fingerprint": None},
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 289650 tokens."
                " Please reduce the length of the messages.",
                *(INVALID, "context_length_exceeded", "messages"),
            ),
        ),
        Said(
            status=429,
            body=openai_error(
                "Request too large for gpt-5 in organization org-x on tokens per min (TPM): Limit 30000, Requested"
                " 36055. The input or output tokens must be reduced in order to run successfully.",
                *("tokens", "rate_limit_exceeded"),
            ),
        ),
    ),
    busy=(OPENAI_BUSY,),
    away=(OPENAI_AWAY,),
    pages={"/v1/models": {"object": "list", "data": [{"id": "gpt-5-mini", "object": "model", "owned_by": "system"}]}},
    offers={"gpt-5-mini": None},
)

OPENAI = Profile(
    name="OpenAI, GPT-4.1",
    sources=(
        f"{GITHUB}/jina-ai/node-DeepResearch/issues/79",  # maxLength: words
        f"{GITHUB}/xtekky/gpt4free/issues/137",  # too long: the whole body
        f"{GITHUB}/continuedev/continue/issues/11472",  # 429: words
        f"{GITHUB}/waylaidwanderer/node-chatgpt-api/issues/34",  # 503: the whole body
    ),
    unverified="where the refusal of maxLength names its place; newer models take it",
    model="gpt-4.1",
    host="api.openai.com",
    refuses={
        "maxLength": Said(
            status=400,
            body=openai_error(
                "Invalid schema for response_format 'reply': In context=('properties', 'reason'), 'maxLength' is not"
                " permitted.",
                *(INVALID, None, "response_format"),
            ),
        )
    },
    loses=frozenset({"bounds"}),
    message=lambda text: {"role": "assistant", "content": text, "refusal": None, "annotations": []},
    usage={"prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0}},
    beside={"service_tier": "default", "system_fingerprint": "fp_x"},
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "This model's maximum context length is 4097 tokens. However, your messages resulted in 4301 tokens."
                " Please reduce the length of the messages.",
                *(INVALID, "context_length_exceeded", "messages"),
            ),
        ),
    ),
    busy=(OPENAI_BUSY,),
    away=(OPENAI_AWAY,),
    pages={"/v1/models": {"object": "list", "data": [{"id": "gpt-4.1", "object": "model", "owned_by": "system"}]}},
    offers={"gpt-4.1": None},
)

AZURE = Profile(
    name="Azure OpenAI",
    sources=(
        f"{GITHUB}/agno-agi/agno/issues/1066",  # stream_options: the whole body
        "https://dev.to/multigrid/streaming-responses-from-azure-openai-4cba",  # frames without choices
        f"{GITHUB}/alex-wolf-ps/dbchatprov2/issues/2",  # 429: words
        f"{GITHUB}/crewAIInc/crewAI-examples/issues/121",  # too long: the whole body, of OpenAI
        f"{GITHUB}/griptape-ai/griptape/issues/1640",  # newer versions take stream_options
        "https://cookbook.openai.com/examples/azure/chat",  # deployments, api-version, keys
    ),
    unverified="names of the fields of content filters; that a 429 comes with Retry-After",
    model="helper",
    host="contoso.openai.azure.com",
    path="/openai/deployments/helper",
    query="?api-version=2024-06-01",
    key_header="api-key",
    refuses={
        "stream_options": Said(
            status=400,
            body=openai_error("Unknown parameter: 'stream_options'.", INVALID, "unknown_parameter", "stream_options"),
        )
    },
    loses=frozenset({"counting"}),
    message=lambda text: {"role": "assistant", "content": text, "refusal": None},
    in_choice={"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}, "logprobs": None},
    opening='data: {"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,'
    '"content_filter_results":{"jailbreak":{"filtered":false,"detected":false}}}]}\n\n',
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens."
                " Please reduce the length of the messages.",
                *(INVALID, "context_length_exceeded", "messages"),
            ),
        ),
    ),
    busy=(
        Said(
            status=429,
            headers={"Retry-After": "8"},
            waits=8,
            body={
                "error": {
                    "code": "429",
                    "message": "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version"
                    " 2024-05-01-preview have exceeded token rate limit of your current OpenAI S0 pricing tier. Please"
                    " retry after 8 seconds. Please go here: https://aka.ms/oai/quotaincrease if you would like to"
                    " further increase the default rate limit.",
                }
            },
        ),
    ),
)

ANTHROPIC = Profile(
    name="Anthropic's compatible face",
    sources=(
        "https://docs.anthropic.com/es/api/openai-sdk",  # response_format and strict are ignored, system is hoisted
        f"{GITHUB}/sipeed/picoclaw/issues/2939",  # temperature: the whole body
        f"{GITHUB}/aaif-goose/goose/issues/3652",  # replies in a code block
        f"{GITHUB}/FoundationAgents/OpenManus/issues/746",  # 429: the whole body
        f"{GITHUB}/stackblitz-labs/bolt.diy/issues/401",  # too long: words
        f"{GITHUB}/anthropics/claude-code/issues/35779",  # 529: the whole body
    ),
    unverified="the shape of the error for a prompt that is too long, and that of a 529 at this face; Retry-After;"
    " what it lists. What it ignores, a model has from the examples: that its replies fit is an assumption",
    model="claude-opus-4-7",
    host="api.anthropic.com",
    refuses={
        "temperature": Said(
            status=400,
            body={"error": {"code": INVALID, "message": "temperature is deprecated for this model.", "type": INVALID}},
        )
    },
    loses=frozenset({"temperature"}),
    message=lambda text: {"role": "assistant", "content": f"Here is the reply:\n\n```json\n{text}\n```"},
    too_long=(
        Said(status=400, body=openai_error("prompt is too long: 202609 tokens > 200000 maximum", INVALID, INVALID)),
    ),
    busy=(
        Said(
            status=429,
            headers={"Retry-After": "12"},
            body=openai_error(
                "This request would exceed the rate limit for your organization of 20,000 input tokens per minute. For"
                " details, refer to: https://docs.anthropic.com/en/api/rate-limits. You can see the response headers"
                " for current usage. Please reduce the prompt length or the maximum tokens requested, or try again"
                " later. You may also contact sales at https://www.anthropic.com/contact-sales to discuss your options"
                " for a rate limit increase.",
                *(INVALID, "rate_limit_error"),
            ),
        ),
    ),
    away=(
        Said(
            status=529,
            body={"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"},
        ),
    ),
)

GEMINI = Profile(
    name="Google Gemini's compatible face",
    sources=(
        f"{GITHUB}/n4ze3m/page-assist/issues/406",  # address, and a 429 as a list
        f"{GITHUB}/ogkalu2/comic-translate/issues/403",  # 429: words and details
        f"{GITHUB}/google-gemini/gemini-cli/issues/5807",  # too long: status and words
        f"{GITHUB}/Alishahryar1/free-claude-code/issues/542",  # a field it does not know: the whole body
    ),
    unverified="that it takes all of our fields; words of a 503; what it lists",
    model="gemini-2.5-flash",
    host="generativelanguage.googleapis.com",
    path="/v1beta/openai",
    too_long=(
        Said(
            status=400,
            body=google_error(
                *(400, "The input token count (1091639) exceeds the maximum number of tokens allowed (1048576)."),
                "INVALID_ARGUMENT",
            ),
        ),
    ),
    busy=(
        Said(
            status=429,
            waits=58.821668433,
            body=google_error(
                429,
                "You exceeded your current quota, please check your plan and billing details. For more information on"
                " this error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. To monitor your current"
                " usage, head to: https://ai.dev/rate-limit. \n* Quota exceeded for metric:"
                " generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 20, model:"
                " gemini-2.5-flash\nPlease retry in 58.821668433s.",
                "RESOURCE_EXHAUSTED",
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
                },
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "58s"},
            ),
        ),
        Said(
            status=429,
            body=google_error(429, "Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED"),
        ),
    ),
    away=(
        Said(
            status=503,
            body=google_error(503, "The model is overloaded. Please try again later.", "UNAVAILABLE"),
        ),
    ),
    pages={
        "/v1beta/openai/models": {
            "object": "list",
            "data": [{"id": "models/gemini-2.5-flash", "object": "model", "owned_by": "google"}],
        }
    },
    offers={"models/gemini-2.5-flash": None},
)


def mistral_parts(text: str) -> Message:
    """Word a reply of a model that reasons."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "They ask {something}."}]}
    return {"role": "assistant", "content": [thought, {"type": "text", "text": text}]}


MISTRAL = Profile(
    name="Mistral",
    sources=(
        f"{GITHUB}/dnakov/anon-kode/issues/53",  # stream_options are refused
        f"{GITHUB}/editor-code-assistant/eca/issues/231",  # a field that is refused: the whole body
        f"{GITHUB}/cline/cline/issues/9085",  # 429: the whole body
        f"{GITHUB}/continuedev/continue/issues/6185",  # at capacity: the whole body
        f"{GITHUB}/BerriAI/litellm/pull/25078",  # at capacity: the status
        f"{GITHUB}/pydantic/pydantic-ai/issues/1885",  # another 429: the whole body
        "https://socket.dev/npm/package/@ai-sdk/mistral/diff/3.0.52",  # thoughts as content parts
    ),
    unverified="a prompt that is too long: its words are those in the tests of several public clients; what it lists",
    model="magistral-small-latest",
    host="api.mistral.ai",
    refuses={
        "stream_options": Said(
            status=422,
            body={
                "object": "error",
                "message": {
                    "detail": [
                        {
                            "type": "extra_forbidden",
                            "loc": ["body", "stream_options"],
                            "msg": "Extra inputs are not permitted",
                            "input": {"include_usage": True},
                        }
                    ]
                },
                "type": INVALID,
                "param": None,
                "code": None,
            },
        )
    },
    loses=frozenset({"counting"}),
    message=mistral_parts,
    too_long=(
        Said(
            status=400,
            body={
                "object": "error",
                "message": "Prompt contains 140000 tokens, too large for model with 131072 maximum context length",
                "type": INVALID,
                "param": None,
                "code": "3051",
            },
        ),
    ),
    busy=(
        Said(
            status=429,
            body={
                "object": "error",
                "message": "Rate limit exceeded",
                "type": "rate_limited",
                "param": None,
                "code": "1300",
            },
        ),
        Said(status=429, body={"message": "Requests rate limit exceeded"}),
    ),
    away=(
        Said(
            status=503,
            body={
                "object": "error",
                "message": "Service tier capacity exceeded for this model.",
                "type": INVALID,
                "param": None,
                "code": None,
            },
        ),
    ),
    pages={
        "/v1/models": {
            "object": "list",
            "data": [
                {
                    "id": "magistral-small-latest",
                    "object": "model",
                    "owned_by": "mistralai",
                    "capabilities": {"completion_chat": True},
                    "max_context_length": 131072,
                }
            ],
        }
    },
    offers={"magistral-small-latest": 131072},
)

GROQ_LIMIT = "in organization `org_x` service tier `on_demand` on tokens per minute (TPM): Limit"
GROQ_OFFER = "Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing"

GROQ = Profile(
    name="Groq",
    sources=(
        "https://v0.app/chat/groq-api-integration-jJZDjObZqiy",  # json_schema: words
        f"{GITHUB}/ago19800/HomeMind/issues/29",  # 429: words, type and code
        f"{GITHUB}/Pythagora-io/gpt-pilot/issues/862",  # Retry-After is sent with a 429 alone
        f"{GITHUB}/HunorLaczko/ha-groq-cloud-api/issues/27",  # too large for a minute: the whole body
        f"{GITHUB}/thepersonalaicompany/amurex-backend/issues/51",  # too long: the whole body
    ),
    unverified="the second sentence on json_schema; x_groq; words of a 503; what it lists",
    model="llama-3.3-70b-versatile",
    host="api.groq.com",
    path="/openai/v1",
    refuses={
        "json_schema": Said(
            status=400,
            body={
                "error": {
                    "message": "This model does not support response format `json_schema`. See supported models at"
                    " https://console.groq.com/docs/structured-outputs#supported-models",
                    "type": INVALID,
                    "param": "response_format",
                }
            },
        )
    },
    loses=frozenset({"output"}),
    usage={"queue_time": 0.05, "prompt_time": 0.01, "completion_time": 0.2, "total_time": 0.21},
    beside={"x_groq": {"id": "req_x"}},
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "Please reduce the length of the messages or completion.",
                *(INVALID, "context_length_exceeded", "messages"),
            ),
        ),
        Said(
            status=413,
            body={
                "error": {
                    "message": f"Request too large for model `llama-3.3-70b-versatile` {GROQ_LIMIT} 6000, Requested"
                    f" 12328, please reduce your message size and try again. {GROQ_OFFER}",
                    "type": "tokens",
                    "code": "rate_limit_exceeded",
                }
            },
        ),
    ),
    busy=(
        Said(
            status=429,
            headers={"Retry-After": "2"},
            waits=1.984999999,
            body={
                "error": {
                    "message": f"Rate limit reached for model `llama-3.3-70b-versatile` {GROQ_LIMIT} 12000, Used 2542,"
                    f" Requested 9855. Please try again in 1.984999999s. {GROQ_OFFER}",
                    "type": "tokens",
                    "code": "rate_limit_exceeded",
                }
            },
        ),
    ),
    away=(Said(status=503, body={"error": {"message": "Service Unavailable", "type": "internal_server_error"}}),),
    pages={
        "/openai/v1/models": {
            "object": "list",
            "data": [{"id": "llama-3.3-70b-versatile", "owned_by": "Meta", "active": True, "context_window": 131072}],
        }
    },
    offers={"llama-3.3-70b-versatile": 131072},
)

TOGETHER = Profile(
    name="Together",
    sources=(
        "https://docs.together.ai/reference/models",  # a list of models that is no object
        f"{GITHUB}/stanford-crfm/helm/pull/2079",  # too long: words
        "https://portkey.ai/error-library/input-validation-error-10151",  # too long: status
    ),
    unverified="that it takes all of our fields; the shape of errors; words of a 429 and a 503; the finish word",
    model="meta-llama/Llama-3.3-70B-Instruct-Turbo",
    host="api.together.xyz",
    finish="eos",
    in_choice={"seed": 1, "logprobs": None},
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5013 `inputs`"
                " tokens and 128 `max_new_tokens`",
                INVALID,
            ),
        ),
    ),
    busy=(
        Said(
            status=429,
            headers={"Retry-After": "1"},
            body=openai_error("You have reached the rate limit specific to this model.", "model_rate_limit"),
        ),
    ),
    away=(
        Said(
            status=503,
            body=openai_error("The server is overloaded or not ready yet.", "service_unavailable"),
        ),
    ),
    pages={
        "/v1/models": [
            {
                "id": "meta-llama/Llama-3.3-70B-Instruct-Turbo",
                "object": "model",
                "created": 1692896905,
                "type": "chat",
                "display_name": "Llama 3.3",
                "organization": "Meta",
                "context_length": 131072,
                "pricing": {"hourly": 0, "input": 0.3, "output": 0.3, "base": 0, "finetune": 0},
            }
        ]
    },
    offers={"meta-llama/Llama-3.3-70B-Instruct-Turbo": 131072},
)

OPENROUTER = Profile(
    name="OpenRouter",
    sources=(
        "https://openrouter.ai/docs/api/reference/errors-and-debugging",  # the shape; failures within a 200
        f"{GITHUB}/zed-industries/zed/issues/36094",  # tool_choice: the whole body
        f"{GITHUB}/dnakov/anon-kode/issues/2",  # tools: status and words
        "https://openrouter.ai/docs/errors",
    ),
    unverified="words for a response_format, a prompt that is too long and a 429; comments in streams; what it lists",
    model="z-ai/glm-4.5-air",
    host="openrouter.ai",
    path="/api/v1",
    refuses={
        "json_schema": Said(
            status=404,
            body={
                "error": {
                    "message": "No endpoints found that can handle the requested parameters. To learn more about"
                    " provider routing, visit: https://openrouter.ai/docs/provider-routing",
                    "code": 404,
                }
            },
        ),
        "tools": Said(
            status=404,
            body={
                "error": {
                    "message": "No endpoints found that support the provided 'tool_choice' value. To learn more about"
                    " provider routing, visit: https://openrouter.ai/docs/provider-routing",
                    "code": 404,
                }
            },
        ),
    },
    loses=frozenset({"output"}),
    message=lambda text: {"role": "assistant", "content": text, "refusal": None, "reasoning": "They ask."},
    in_choice={"native_finish_reason": "stop", "logprobs": None},
    beside={"provider": "Somebody"},
    opening=": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n",
    too_long=(
        Said(
            status=400,
            body={
                "error": {
                    "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about"
                    " 150000 tokens (145904 of text input, 4096 in the output).",
                    "code": 400,
                }
            },
        ),
    ),
    busy=(
        Said(
            status=429,
            headers={"Retry-After": "3"},
            body={"error": {"message": "Rate limit exceeded: free-models-per-min.", "code": 429}},
        ),
        Said(
            status=200,
            body={
                "error": {"message": "Provider returned error", "code": 429, "metadata": {"provider_name": "Somebody"}}
            },
            is_event=True,
        ),
    ),
    away=(
        Said(
            status=200,
            body={
                "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
                "error": {"message": "Provider disconnected", "code": 502},
            },
            is_event=True,
        ),
    ),
    pages={"/api/v1/models": {"data": [{"id": "z-ai/glm-4.5-air", "name": "GLM 4.5 Air", "context_length": 131072}]}},
    offers={"z-ai/glm-4.5-air": 131072},
)

DEEPSEEK = Profile(
    name="DeepSeek",
    sources=(
        f"{GITHUB}/llm-exe/llm-exe/issues/662",  # json_schema: the whole body
        f"{GITHUB}/osaurus-ai/osaurus/pull/1940",  # tool_choice: status and words
        f"{GITHUB}/browserbase/stagehand/issues/1204",  # json_object wants the word "json" in the prompt
        f"{GITHUB}/FoundationAgents/OpenManus/issues/62",  # too long: the whole body
        "https://api-docs.deepseek.com/quick_start/error_codes",  # 429 and 503
    ),
    unverified="bodies of a 429 and a 503; comments in streams; what it lists",
    model="deepseek-v4-flash",
    host="api.deepseek.com",
    path="",
    refuses={
        "json_schema": Said(
            status=400, body=openai_error("This response_format type is unavailable now", INVALID, INVALID)
        ),
        "tools": Said(
            status=400, body=openai_error("Thinking mode does not support this tool_choice", INVALID, INVALID)
        ),
    },
    loses=frozenset({"output"}),
    message=lambda text: {"role": "assistant", "content": text, "reasoning_content": "They ask {something}."},
    usage={"prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 40},
    opening=": keep-alive\n\n",
    too_long=(
        Said(
            status=400,
            body=openai_error(
                "This model's maximum context length is 65536 tokens. However, you requested 72814 tokens (68718 in the"
                " messages, 4096 in the completion). Please reduce the length of the messages or completion.",
                *(INVALID, INVALID),
            ),
        ),
    ),
    busy=(Said(status=429, body=openai_error("Rate Limit Reached", "rate_limit_error")),),
    away=(Said(status=503, body=openai_error("Server Overloaded", "service_unavailable_error")),),
    pages={
        "/models": {
            "object": "list",
            "data": [{"id": "deepseek-v4-flash", "object": "model", "owned_by": "deepseek"}],
        }
    },
    offers={"deepseek-v4-flash": None},
)

SAYS_THINKING = "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to"
DASHSCOPE = Profile(
    name="DashScope, Qwen",
    sources=(
        f"{GITHUB}/cloudwego/eino/issues/994",  # tool_choice: the whole body
        f"{GITHUB}/presenton/presenton/issues/184",  # JSON while it thinks: words
        f"{GITHUB}/infiniflow/ragflow/issues/5912",  # only streams: the whole body, for the shape
        "https://www.alibabacloud.com/help/es/model-studio/coding-plan-faq",  # too long: status and words
        "https://help.aliyun.com/en/model-studio/rate-limit",  # 429: words, and that they pass within a minute
        "https://help.aliyun.com/en/model-studio/error-code-start",  # 429: codes
    ),
    unverified="that json_schema is refused in the words that JSON mode is; bodies of a 429; what it lists",
    model="qwen3.5-plus",
    host="dashscope.aliyuncs.com",
    path="/compatible-mode/v1",
    refuses={
        **dict.fromkeys(
            ("json_schema", "json_object"),
            Said(
                status=400,
                body={
                    **openai_error(
                        "<400> InternalError.Algo.InvalidParameter: Json mode response is not supported when"
                        " enable_thinking is true",
                        *(INVALID, "invalid_parameter_error"),
                    ),
                    "request_id": "r",
                },
            ),
        ),
        "tools": Said(
            status=400,
            body={
                **openai_error(
                    f"{SAYS_THINKING} required or object in thinking mode", INVALID, "invalid_parameter_error"
                ),
                "id": "chatcmpl-r",
                "request_id": "r",
            },
        ),
    },
    loses=frozenset({"output"}),
    message=lambda text: {"role": "assistant", "content": text, "reasoning_content": "They ask."},
    too_long=(
        Said(
            status=400,
            body={
                **openai_error(
                    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
                    *(INVALID, "invalid_parameter_error"),
                ),
                "request_id": "r",
            },
        ),
    ),
    busy=(
        Said(
            status=429,
            body=openai_error("You exceeded your current requests list.", "limit_requests", "limit_requests"),
        ),
        Said(
            status=429,
            body=openai_error(
                "Allocated quota exceeded, please increase your quota limit.", *("insufficient_quota",) * 2
            ),
        ),
    ),
)

HOSTED = (
    *(OPENAI_REASONING, OPENAI, AZURE, ANTHROPIC, GEMINI, MISTRAL, GROQ, TOGETHER, OPENROUTER, DEEPSEEK),
    DASHSCOPE,
)
