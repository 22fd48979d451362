"""Conversations fitted to chat templates that refuse, or leave out, a part of what clients send."""

from pathlib import Path
from typing import Any

import pytest

from flyserve.core.errors import InvalidRequest
from router.text.chat_template import ChatTemplate, Ending
from router.text.template_fit import TemplateFit
from router.text.tokenizer import Tokenizer
from tests.support.chat_tokenizers import chat_tokenizer

RAISES = "{{ raise_exception('refused') }}"
ANY = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" + RAISES + "{% endif %}"
    "{{ m.role }}={{ m.content }};{% endfor %}"
)
"""As Qwen 3.5: a system message comes first, or not at all."""
FIRST_ONLY = (
    "{% if messages[0].role in ('system', 'developer') %}developer={{ messages[0].content }};{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}user={{ m.content }};{% endif %}{% endfor %}"
)
"""As GPT-OSS: the first message instructs, and others that do are not rendered."""
ONE_CALL = (
    "{% for m in messages %}{{ m.role }}={{ m.content }};{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}" + RAISES + "{% endif %}"
    "{{ m.tool_calls[0].function.name }}({{ m.tool_calls[0].function.arguments | tojson }});"
    "{% endif %}{% endfor %}"
)
"""As Llama 3."""
FIRST_CALL = ONE_CALL.replace(RAISES, "")
"""As GPT-OSS: the first call is rendered, others are not."""
CALLS = (
    "{% for m in messages %}{{ m.role }}{{ m.tool_call_id }}={{ m.content }};"
    "{% for c in m.tool_calls or [] %}{{ c.id }}:{{ c.function.name }}(ARGUMENTS);{% endfor %}{% endfor %}"
)
NINE = "{% if c.id | length != 9 %}" + RAISES + "{% endif %}"


def said(role: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(number: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": f"f{number}", "arguments": arguments}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(chat_tokenizer("bytes"), ())


@pytest.fixture
def text(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """Function that returns the prompt of a conversation by a template."""

    def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
        file = tmp_path / "own.jinja"
        file.write_text(source, encoding="utf-8")
        ids = ChatTemplate(tokenizer, file).render(messages, {}, **options)
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    return render


A, B, C = said("system", "a"), said("system", "b"), said("developer", "c")
HI, YO = said("user", "hi"), said("assistant", "yo")


@pytest.mark.parametrize(
    ("source", "messages", "prompt"),
    [
        (ANY, (A, B, HI), "system=a;system=b;user=hi;"),
        (ANY, (A, HI, YO, B, HI), "system=a;user=hi;assistant=yo;system=b;user=hi;"),
        (ANY, (A, C, HI), "system=a\n\nc;user=hi;"),
        (ANY, (C, HI), "system=c;user=hi;"),
        (ANY + "{# 'developer' #}", (A, C, HI), "system=a;developer=c;user=hi;"),
        (STRICT, (A, HI), "system=a;user=hi;"),
        (STRICT, (A, B, HI), "system=a\n\nb;user=hi;"),
        (STRICT, (HI, YO, B, HI), "system=b;user=hi;assistant=yo;user=hi;"),
        (STRICT, (A, B, A, B, HI), "system=a\n\nb\n\na\n\nb;user=hi;"),
        (FIRST_ONLY, (C, HI), "developer=c;user=hi;"),
        (FIRST_ONLY, (A, C, HI), "developer=a\n\nc;user=hi;"),
        (FIRST_ONLY, (A, B, HI), "developer=a\n\nb;user=hi;"),
        (FIRST_ONLY, (A, HI, YO, C, HI), "developer=a\n\nc;user=hi;user=hi;"),
    ],
)
def test_all_that_instructs_the_model_is_in_the_prompt(
    text: Any, source: str, messages: tuple[dict[str, Any], ...], prompt: str
) -> None:
    assert text(source, *messages) == prompt


def test_a_template_for_requests_with_tools_is_tried_with_one(text: Any) -> None:
    source = "{% for tool in tools %}{{ tool.function.name }};{% endfor %}" + ANY
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert text(source, HI, YO, B, HI, tools=tools) == "f;user=hi;assistant=yo;system=b;user=hi;"


def test_no_other_message_is_continued_than_the_last(text: Any) -> None:
    assert text(ANY, HI, YO, B, ending=Ending.CONTINUATION) == "user=hi;assistant=yo;system=b"
    with pytest.raises(InvalidRequest, match="does not render at its end: set continue_final_message"):
        text(STRICT, HI, YO, B, ending=Ending.CONTINUATION)


@pytest.mark.parametrize("source", [ONE_CALL, FIRST_CALL])
def test_calls_of_one_message_are_messages_of_their_own_where_a_template_takes_no_second(
    text: Any, source: str
) -> None:
    several = said("assistant", "so", tool_calls=[call("1"), call("2"), call("3")])
    results = [said("tool", f"r{number}", tool_call_id=number) for number in ("2", "1", "9", "1")]
    assert text(source, HI, several, *results, YO) == (
        "user=hi;assistant=so;f1({});tool=r1;assistant=;f2({});tool=r2;assistant=;f3({});"
        "tool=r1;tool=r9;assistant=yo;"
    )


def test_calls_of_one_message_stay_together_where_a_template_takes_them(text: Any) -> None:
    several = said("assistant", "so", tool_calls=[call("1"), call("2")])
    source = CALLS.replace("ARGUMENTS", "{{ c.function.arguments | tojson }}")
    assert text(source, HI, several) == "user=hi;assistant=so;1:f1({});2:f2({});"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a": "b"}'),
        ("{{ '' + c.function.arguments }}", '{"a":"b"}'),  # as DeepSeek's own
        ("{{ c.function.arguments }}", '{"a":"b"}'),  # which writes an object as Python does
        ("{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}", "a=b"),
        ("{{ c.function.arguments if c.function.arguments is string else 'object' }}", '{"a":"b"}'),
    ],
)
def test_arguments_have_the_form_that_a_template_takes(text: Any, written: str, shown: str) -> None:
    asked = said("assistant", tool_calls=[call("1", '{"a":"b"}')])
    assert text(CALLS.replace("ARGUMENTS", written), asked) == f"assistant=;1:f1({shown});"


def test_ids_of_calls_are_shortened_where_a_template_takes_no_others(text: Any) -> None:
    source = CALLS.replace("{{ c.id }}", NINE + "{{ c.id }}").replace("ARGUMENTS", "")
    source = source.replace("()", "({{ c.function.arguments | tojson }})")
    asked = said("assistant", tool_calls=[call("call_of_another"), call("abcdefgh9")])
    answers = [said("tool", "r", tool_call_id=each) for each in ("call_of_another", "abcdefgh9")]
    first, second, *results = text(source, asked, *answers).removeprefix("assistant=;").split(";")
    own = first.partition(":")[0]
    assert len(own) == 9 and own.isalnum()
    assert (second.partition(":")[0], results[:2]) == ("abcdefgh9", [f"tool{own}=r", "toolabcdefgh9=r"])


def test_a_template_that_renders_no_calls_gets_them_as_they_are(text: Any) -> None:
    several = said("assistant", "so", tool_calls=[call("1"), call("2")])
    assert text(ANY, HI, several, said("tool", "r", tool_call_id="1")) == "user=hi;assistant=so;tool=r;"


def test_a_template_is_tried_once_for_each_form_and_the_messages_are_kept() -> None:
    tried = []

    def render(messages: Any) -> str:
        tried.append(messages)
        raise InvalidRequest.of("messages", "are refused")

    fit = TemplateFit(render, "")
    messages = [A, B, HI, said("assistant", tool_calls=[call("1", '{"a": 1}')])]
    copy = repr(messages)
    found = [fit.fitted(messages) for _ in range(3)]
    assert repr(messages) == copy and found[0] == found[2]
    assert found[0][-1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert len(tried) == 5
