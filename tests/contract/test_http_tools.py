"""Tools and reasoning over HTTP: a model that writes what the test says, as the `openai` package sees it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from tokenizers import Tokenizer

from flyserve.core.request import SamplingParams
from tests.contract.fakes import EOS, HashModel, save_tokenizer
from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http

MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.q }}</tool_call>{% endfor %}; "
    "{% endfor %}{% if open %}<think>\n{% endif %}{# </think> #}"
)
ASK = [{"role": "user", "content": "the fox"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"
]
F = '<tool_call>\n{"name": "f", "arguments": {"q": "你好"}}\n</tool_call>'
G = '<tool_call>{"name": "g"}</tool_call>'
EXACT = {"speculation": {"mode": "exact"}}


@dataclass(frozen=True)
class Writer(HashModel):
    """A model that writes the same tokens after every prompt."""

    script: tuple[int, ...] = ()

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        place = len(ids) - prompt_length
        return self.script[place] if place < len(self.script) else EOS


def serving(
    folder: Path,
    text: str,
    context_length: int = 512,
    markers: Sequence[str] = MARKERS,
    template_text: str = TEMPLATE,
    **config: Any,
) -> Any:
    """Serve a model that writes `text`, in which `markers` are special tokens."""
    save_tokenizer(folder, markers=markers)
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    template = folder / "tools.jinja"
    template.write_text(template_text, encoding="utf-8")
    config = {"chat_template": template, **config}
    model = Writer(script=tuple(ids), context_length=context_length)
    return serving_http(folder, model=model, markers=markers, **config)


async def ask(rig: HttpRig, **fields: Any) -> ChatCompletion:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "max_tokens": 200, **fields}
    completion: ChatCompletion = await rig.openai.chat.completions.create(**asked, extra_body=EXACT)
    return completion


async def test_calls_come_whole_and_in_a_stream_alike(tmp_path: Path) -> None:
    async with serving(tmp_path, f"<think>\nhm {G}</think>\n\nLet me see.\n{F}\n{G}") as rig:
        whole = await ask(rig, tools=TOOLS, n=2, logprobs=True)
        for choice in whole.choices:
            message = choice.message
            assert (choice.finish_reason, message.content) == ("tool_calls", "Let me see.")
            assert message.reasoning == message.reasoning_content == 'hm <tool_call>{"name": "g"}</tool_call>'
            assert [(c.function.name, c.function.arguments) for c in message.tool_calls] == [
                ("f", '{"q": "你好"}'),
                ("g", "{}"),
            ]
        ids = [call.id for choice in whole.choices for call in choice.message.tool_calls]
        assert len(set(ids)) == 4 and all(each.startswith("call_") for each in ids)
        assert whole.usage is not None
        assert sum(len(c.logprobs.content) for c in whole.choices) == whole.usage.completion_tokens
        asked = {"model": MODEL, "messages": ASK, "max_tokens": 200, "tools": TOOLS, **EXACT}
        chunks = await rig.stream("/v1/chat/completions", **{**asked, "model": MODEL})
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."
        assert "".join(delta.get("reasoning", "") for delta in deltas) == message.reasoning
        names = [(call["index"], call["function"]["name"]) for call in parts if "id" in call]
        assert names == [(0, "f"), (1, "g")]
        arguments = ["".join(c["function"]["arguments"] for c in parts if c["index"] == i) for i in (0, 1)]
        assert arguments == ['{"q": "你好"}', "{}"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


TAGGED_TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n<function={{ c.function.name }}>\n"
    "{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}; {% endfor %}"
)
TAGGED = """<tool_call>
<function=write>
<parameter=text>
print("你好")

</parameter>
<parameter=lines>
2
</parameter>
</function>
</tool_call>"""
WRITE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "lines": {"type": "integer"}},
            "required": ["text"],
        },
    },
}


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_arguments_between_tags_come_as_json(tmp_path: Path, choice: str) -> None:
    async with serving(tmp_path, TAGGED, template_text=TAGGED_TEMPLATE) as rig:
        asked: dict[str, Any] = {"tools": [WRITE], "tool_choice": choice}
        whole = (await ask(rig, **asked)).choices[0]
        (call,) = whole.message.tool_calls
        assert (whole.finish_reason, call.function.name) == ("tool_calls", "write")
        assert call.function.arguments == '{"text": "print(\\"你好\\")\\n", "lines": 2}'
        body = {"model": MODEL, "messages": ASK, "max_tokens": 200, **asked, **EXACT}
        chunks = await rig.stream("/v1/chat/completions", **body)
        parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(part["function"]["arguments"] for part in parts) == call.function.arguments
        answered = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
        turns = [*ASK, whole.message.model_dump(exclude_none=True), answered]
        assert (await ask(rig, messages=turns, **asked)).choices[0].finish_reason == "tool_calls"


async def test_a_call_that_is_no_call_is_content(tmp_path: Path) -> None:
    async with serving(tmp_path, 'Hi <tool_call>{"name": "no"}</tool_call>') as rig:
        choice = (await ask(rig, tools=TOOLS)).choices[0]
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content == 'Hi <tool_call>{"name": "no"}</tool_call>'
        silent = (await ask(rig, tools=TOOLS, tool_choice="none")).choices[0]
        assert silent.message.content == 'Hi {"name": "no"}', (
            "special tokens have no text where none is parsed"
        )


async def test_a_call_that_is_cut_off_ends_with_length(tmp_path: Path) -> None:
    async with serving(tmp_path, '<tool_call>{"name": "f", "arguments": {"q": "a long text"}}') as rig:
        whole = (await ask(rig, tools=TOOLS)).usage
        assert whole is not None
        choice = (await ask(rig, tools=TOOLS, max_tokens=whole.completion_tokens - 6)).choices[0]
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "length" and choice.message.content is None
        assert '{"q": "a long text"}'.startswith(call.function.arguments)


async def test_a_prompt_may_open_the_reasoning_and_a_request_leave_it_out(tmp_path: Path) -> None:
    async with serving(tmp_path, "hm</think>\n\nyes") as rig:
        asked = {"model": MODEL, "messages": ASK, "chat_template_kwargs": {"open": True}, **EXACT}
        for fields, reasoning in (({}, "hm"), ({"include_reasoning": False}, None)):
            body = (await rig.post("/v1/chat/completions", {**asked, **fields})).json()
            message = body["choices"][0]["message"]
            assert (message["content"], message.get("reasoning")) == ("yes", reasoning)


CHANNELED = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes",
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
)
THOUGHT = ("<|channel>thought\nhm<channel|>yes", ("<|channel>", "<channel|>"))


@pytest.mark.parametrize(("text", "markers"), [CHANNELED, THOUGHT])
async def test_channels_are_reasoning_and_content(
    tmp_path: Path, text: str, markers: tuple[str, ...]
) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{# " + "".join(markers) + " #}")
    async with serving(tmp_path, text, markers=markers, chat_template=own) as rig:
        whole = await ask(rig)
        assert (whole.choices[0].message.reasoning, whole.choices[0].message.content) == ("hm", "yes")
        asked = {"messages": ASK, **EXACT}
        chunks = await rig.stream("/v1/chat/completions", **asked)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == "yes"
        assert "".join(delta.get("reasoning", "") for delta in deltas) == "hm"
        body: dict[str, Any] = {"model": MODEL, "input": "the fox", "extra_body": EXACT}
        items = (await rig.openai.responses.create(**body)).output
        assert [item.content[0].text for item in items] == ["hm", "yes"]
    async with serving(tmp_path, text, markers=markers, chat_template=own, reasoning_parser="none") as rig:
        assert (await ask(rig)).choices[0].message.content == "".join(re.split(r"<\|?\w+\|?>", text))


async def test_a_call_in_a_channel_comes_after_reasoning_and_goes_back(tmp_path: Path) -> None:
    template = (
        "{% for t in tools or [] %}functions.{{ t.function.name }} {% endfor %}"
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.content and m.thinking and m.tool_calls %}{{ raise_exception('both') }}{% endif %}"
        "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}; "
        "{% endfor %}{# " + "".join(CHANNELED[1]) + " #}"
    )
    text = CHANNELED[0].removesuffix("final<|message|>yes")
    text += 'commentary to=functions.write <|constrain|>json<|message|>{"text": "a"}'
    markers = (*CHANNELED[1], "<|constrain|>", "<|call|>")
    async with serving(tmp_path, text, markers=markers, template_text=template) as rig:
        for choice in ("auto", "required"):
            whole = (await ask(rig, tools=[WRITE], tool_choice=choice)).choices[0]
            (call,) = whole.message.tool_calls
            assert (whole.finish_reason, whole.message.reasoning) == ("tool_calls", "hm")
            assert (whole.message.content, call.function.arguments) == (None, '{"text": "a"}')
        said = {**whole.message.model_dump(exclude_none=True), "content": "I write."}
        turns = [*ASK, said, {"role": "tool", "tool_call_id": call.id, "content": "ok"}]
        assert (await ask(rig, messages=turns, tools=[WRITE])).choices[0].message.tool_calls


async def test_answers_of_tools_and_the_tools_are_rendered(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"q": "fox"})}}
    notes = {"refusal": None, "provider_specific_fields": {"refusal": None}}  # LiteLLM sends them back
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], **notes},
        {"role": "tool", "tool_call_id": "c", "content": "the dog"},
    ]
    async with serving(tmp_path, "ok") as rig:
        await ask(rig, messages=messages, tools=TOOLS)
        tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        read = tokenizer.decode(rig.target.updates.steps[-1][1], skip_special_tokens=False)
        prompt = "f g user:the fox; assistant:<tool_call>fox</tool_call>; tool:the dog; "
        assert read.startswith(prompt)


async def test_a_call_of_llama_comes_back_to_a_template_that_takes_one_call(tmp_path: Path) -> None:
    one = '{"name": "f", "parameters": {"q": "fox"}}'
    template = Path(__file__).parents[1] / "data" / "chat_templates" / "llama3.jinja"
    config = {"chat_template": template, "tool_parser": "llama3", "reasoning_parser": "none"}
    for written in (f"{one}; {one}", f"{one}\n{one}"):
        async with serving(tmp_path, written, 2048, **config) as rig:
            for choice in ("auto", "required"):
                message = (await ask(rig, tools=TOOLS, tool_choice=choice)).choices[0].message
                (call,) = message.tool_calls
                assert (call.function.arguments, message.content) == ('{"q": "fox"}', None)
                result = {"role": "tool", "tool_call_id": call.id, "content": "the dog"}
                await ask(rig, messages=[*ASK, message, result], tools=TOOLS)


async def test_a_line_of_a_stream_is_one_line_to_every_client(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c\u2029d\u4f60"
    async with serving(tmp_path, text, reasoning_parser="none") as rig:
        asked = {"model": MODEL, "stream": True, **EXACT}
        bodies = {
            "/v1/chat/completions": {"messages": ASK},
            "/v1/completions": {"prompt": "the fox"},
            "/v1/responses": {"input": "the fox"},
        }
        for path, body in bodies.items():
            async with rig.http.stream("POST", path, json={**asked, **body}) as response:
                lines = [line async for line in response.aiter_lines()]
            data = [line.removeprefix("data: ") for line in lines if line and not line.startswith("event: ")]
            sent = [json.loads(each) for each in data if each != "[DONE]"]
            choices = [choice for each in sent for choice in each.get("choices", ())]
            parts = [choice["text"] if "text" in choice else choice["delta"]["content"] for choice in choices]
            parts += [each["delta"] for each in sent if each.get("type") == "response.output_text.delta"]
            assert "".join(parts) == text, path


@pytest.mark.parametrize(
    ("config", "choice", "part"),
    [
        ({"tool_parser": "none"}, "required", "router.tool_parser is none"),
        ({"chat_template": "{{ tools }}{{ messages }}"}, "auto", "a format that was not recognized"),
    ],
)
async def test_a_model_without_a_known_format_is_refused(
    tmp_path: Path, config: dict[str, Any], choice: str, part: str
) -> None:
    if "chat_template" in config:
        (tmp_path / "own.jinja").write_text(config["chat_template"])
        config = {"chat_template": tmp_path / "own.jinja"}
    async with serving(tmp_path, "ok", **config) as rig:
        asked = {"model": MODEL, "messages": ASK, "tools": TOOLS, "tool_choice": choice}
        response = await rig.post("/v1/chat/completions", asked)
        assert response.status_code == 400 and part in error_of(response)["message"]


async def test_a_grammar_begins_after_the_reasoning(tmp_path: Path) -> None:
    async with serving(tmp_path, "<think>\nhm</think>\n\nyes") as rig:
        answered = await ask(rig, response_format={"type": "json_object"})
        assert (answered.choices[0].message.reasoning, answered.choices[0].message.content) == ("hm", "yes")
        whole, answer = json.loads(rig.target.openings[-1].grammar)["grammars"]
        assert "start: before @answer" in whole["lark_grammar"] and answer["name"] == "answer"
    async with serving(tmp_path, "yes", reasoning_parser="none") as rig:
        await ask(rig, response_format={"type": "json_object"})
        assert len(json.loads(rig.target.openings[-1].grammar)["grammars"]) == 1


async def test_a_budget_of_reasoning_reaches_the_target(tmp_path: Path) -> None:
    budget = {**EXACT, "thinking_token_budget": 7}
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK}
    async with serving(tmp_path, "<think>\nhm</think>\n\nyes") as rig:
        answered = await rig.openai.chat.completions.create(**asked, extra_body=budget)
        assert answered.choices[0].message.content == "yes"
        assert "max_tokens=7" in rig.target.openings[-1].grammar
    async with serving(tmp_path, "yes", reasoning_parser="none") as rig:
        refused = await rig.post("/v1/chat/completions", {**asked, **budget})
        assert refused.status_code == 400 and error_of(refused)["param"] == "thinking_token_budget"
        assert error_of(refused)["message"].startswith("thinking_token_budget is 7, but cannot be applied")
