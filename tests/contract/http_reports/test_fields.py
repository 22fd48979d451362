"""Fields of requests: known, ignored, hints and refused ones, alike in all APIs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import pytest_asyncio
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as response
from openai.types.responses.function_tool_param import FunctionToolParam
from openai.types.responses.response_text_config_param import ResponseTextConfigParam
from openai.types.responses.tool_param import ToolParam

from router.http.chat import ChatRequest
from router.http.completions import CompletionRequest
from router.http.known_fields import IGNORED, UNSERVED
from router.http.responses.fields import BuiltInTool, FunctionTool, ResponsesRequest, TextOptions
from tests.contract.http_reports.report_rig import CHAT, COMPLETIONS, RESPONSES, USER, Report, answer
from tests.contract.http_rig import HttpRig
from tests.contract.test_http_tools import TOOLS, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

APIS: list[tuple[Any, Any]] = [
    (CompletionRequest, completion.CompletionCreateParamsBase),
    (ChatRequest, chat.CompletionCreateParamsBase),
    (ResponsesRequest, response.ResponseCreateParamsBase),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpRig]:
    async with serving(tmp_path_factory.mktemp("model"), "Let me see.") as rig:
        yield rig


async def test_every_parameter_of_the_openai_package_is_in_the_table() -> None:
    """A new release of the package that adds one fails here, by its name."""
    table = {*UNSERVED, *IGNORED}
    for model, params in APIS:
        missing = set(get_type_hints(params)) - {*model.model_fields} - table
        assert not missing, f"{model.__name__}: {sorted(missing)}"
    for model, params in ((FunctionTool, FunctionToolParam), (TextOptions, ResponseTextConfigParam)):
        served = {each.alias or name for name, each in model.model_fields.items()}
        assert set(get_type_hints(params)) - served <= {
            "allowed_callers",
            "async",
            "defer_loading",
            "output_schema",
        }
    theirs = {kind for tool in get_args(ToolParam) for kind in texts(get_type_hints(tool)["type"])}
    assert texts(BuiltInTool.model_fields["type"].annotation) == theirs - {"custom", "function", "namespace"}
    for name in ("service_tier", "reasoning_effort", "verbosity"):
        theirs = get_type_hints(chat.CompletionCreateParamsBase)[name]
        assert texts(theirs) == texts(ChatRequest.model_fields[name].annotation), name


def texts(hint: Any) -> set[str]:
    """Return the texts among the literals of a type."""
    parts = get_args(hint)
    return {part for part in parts if isinstance(part, str)}.union(*(texts(part) for part in parts))


async def test_every_field_of_one_api_is_known_in_the_others() -> None:
    names = {name for model, _ in APIS for name in model.model_fields}
    for model, _ in APIS:
        assert not names - {*model.model_fields} - {*UNSERVED, *IGNORED}, model.__name__


NOTHING: dict[str, Any] = {
    **{
        name: None
        for name in ("previous_response_id", "conversation", "prompt", "context_management", "n", "stop")
    },
    **{"background": False, "moderation": None, "top_logprobs": 0, "presence_penalty": 0, "logit_bias": {}},
    **{"functions": [], "tools": [], "audio": None, "modalities": ["text"], "logprobs": False, "suffix": ""},
    **{"reasoning_effort": None, "a_field_of_next_year": None, "tool_choice": "auto", "best_of": None},
    **{"prompt_cache_options": {"mode": "implicit"}, "truncation": "disabled", "echo": False, "store": False},
}
CACHED: dict[str, Any] = {
    "prompt_cache_retention": "24h",
    "prompt_cache_key": "a",
    "client_metadata": {"a": "b"},
}
EXTRAS = [{**TOOLS[0], "cache_control": {"type": "ephemeral"}}]
HINT = "reasoning_effort has no effect: the model's chat template has no variable for it"
REPORTS = [
    Report(
        "",
        "a number of alternatives without log-probabilities",
        RESPONSES,
        {"top_logprobs": 2},
        words="top_logprobs has no effect without message.output_text.logprobs in include",
    ),
    Report("CLIProxyAPI#2466 CLIProxyAPI#5068", "a cache hint ends the conversation", CHAT, CACHED),
    Report("opencodex#2092", "a cache hint is refused", RESPONSES, CACHED),
    Report("", "a cache hint is refused", COMPLETIONS, CACHED),
    Report(
        "home-ops#3391", "an effort is refused on every turn", CHAT, {"reasoning_effort": "low"}, words=HINT
    ),
    Report(
        "openai-agents-python#492",
        "a reasoning option is refused",
        RESPONSES,
        {"reasoning": {"effort": "high", "summary": "auto"}},
        words="reasoning.effort has no effect",
    ),
    Report("", "a verbosity is refused", CHAT, {"verbosity": "low"}, words="verbosity has no effect"),
    Report(
        "", "a verbosity", RESPONSES, {"text": {"verbosity": "low"}}, words="text.verbosity has no effect"
    ),
    Report("", "no reasoning is refused where there is none", CHAT, {"reasoning_effort": "none"}),
    Report(
        "",
        "an unknown effort counts as one",
        CHAT,
        {"reasoning_effort": "huge"},
        "reasoning_effort",
        "'none'",
    ),
    Report(
        "livekit/agents#1276",
        "metadata and store are unknown",
        CHAT,
        {"metadata": {"a": "b"}, "store": False},
    ),
    Report(
        "", "a response that is to be kept is not kept", RESPONSES, {"store": True}, "store", "only false is"
    ),
    Report("", "a wish to be kept is refused", CHAT, {"store": True}, words="store has no effect"),
    Report("", "a wish to be kept is refused", COMPLETIONS, {"store": True}, words="store has no effect"),
    Report("", "fields that request nothing are refused", CHAT, NOTHING),
    Report("", "an empty stop string", CHAT, {"stop": ""}),
    Report("", "an empty stop string", COMPLETIONS, {"stop": ""}),
    Report("", "empty options", RESPONSES, {"text": {}, "reasoning": {}, "include": [], "metadata": {}}),
    Report(
        "",
        "an option of a stream that requests nothing",
        RESPONSES,
        {"stream_options": {"include_obfuscation": False}},
    ),
    Report(
        "", "the same", COMPLETIONS, {k: v for k, v in NOTHING.items() if k not in ("prompt", "logprobs")}
    ),
    Report("", "fields that request nothing are refused", RESPONSES, {**NOTHING, "stream_options": None}),
    Report("", "a state is forgotten", RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    Report("", "a batch job runs at once", RESPONSES, {"background": True}, "background", "only false is"),
    Report(
        "", "a limit under another name", RESPONSES, {"max_tokens": 5}, "max_tokens", "use max_output_tokens"
    ),
    Report(
        "",
        "a misspelled field is ignored",
        CHAT,
        {"temperatur": 0},
        "temperatur",
        "did you mean temperature?",
    ),
    Report("", "a misspelled field is ignored", RESPONSES, {"inputs": ""}, "inputs", "did you mean input?"),
    Report("", "false is a number", COMPLETIONS, {"best_of": False}, "best_of", "is False, is not supported"),
    Report(
        "pi#7938 experientiallabs/experiential#612",
        "a mark for a cache on a tool is refused",
        CHAT,
        {"tools": EXTRAS},
        words="tools[0].cache_control has no effect",
    ),
    Report(
        "",
        "a misspelled part of a tool is lost in silence",
        CHAT,
        {"tools": [{"type": "function", "function": {"name": "f", "paramters": {}}}]},
        words="tools[0].function.paramters has no effect: the field is unknown",
    ),
    Report(
        "", "a truncation is refused", RESPONSES, {"truncation": "auto"}, words="truncation has no effect"
    ),
    Report(
        "",
        "a marked text is refused",
        CHAT,
        {
            "messages": [
                {**USER, "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
            ]
        },
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=str)
async def test_a_field_is_served_ignored_or_refused_by_name(rig: HttpRig, report: Report) -> None:
    await answer(rig, report)


@pytest.mark.parametrize(
    ("template", "added"),
    [
        ("{{ reasoning_effort ~ verbosity }}", {"low": "lowhigh", "none": "nonehigh"}),
        ("{{ enable_thinking }}{{ verbosity }}", {"low": "Truehigh", "none": "Falsehigh"}),
        ("{{ thinking }}{{ verbosity }}", {"low": "Truehigh", "none": "Falsehigh"}),
    ],
)
async def test_a_hint_reaches_the_template(tmp_path: Path, template: str, added: dict[str, str]) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}{{ m.content }}{% endfor %}" + template, encoding="utf-8")
    async with serving(tmp_path, "ok", chat_template=file) as rig:
        for effort, text in added.items():
            bodies = {
                CHAT: {"messages": [USER], "reasoning_effort": effort, "verbosity": "high"},
                RESPONSES: {
                    "input": USER["content"],
                    "reasoning": {"effort": effort},
                    "text": {"verbosity": "high"},
                },
            }
            for path, body in bodies.items():
                sent = (await rig.post(path, {**body, "speculation": {"mode": "plain"}})).json()
                expected = (await rig.post("/tokenize", {"prompt": USER["content"] + text})).json()
                assert not sent.get("warnings")
                usage = sent["usage"]
                assert usage.get("prompt_tokens", usage.get("input_tokens")) == expected["count"]
        chosen = {"chat_template_kwargs": {"verbosity": "x", "reasoning_effort": "", "enable_thinking": 1}}
        body = {"messages": [USER], "verbosity": "high", **chosen}
        assert (await rig.post(CHAT, body)).status_code == 200
