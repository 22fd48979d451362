"""Structured output of SmolLM2: real schemas, and a tool call."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal

import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from tests.nightly.real.real_rig import MODEL_NAME

pytestmark = pytest.mark.timeout(3600)

CONCURRENCY = 4


class City(BaseModel, extra="forbid"):
    """A schema as users write it: nested, with limits."""

    name: str = Field(max_length=30)
    country: str = Field(max_length=30)
    continent: Literal["Africa", "America", "Asia", "Australia", "Europe"]
    sights: list[Annotated[str, Field(max_length=30)]] = Field(min_length=1, max_length=3)
    is_capital: bool


QUESTIONS = [
    f"Describe the city of {name} as JSON."
    for name in ("Paris", "Cairo", "Lima", "Tokyo", "Rome", "Oslo", "Nairobi", "Sydney")
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def test_answers_fit_a_pydantic_model(http: OpenAI) -> None:
    def ask(question: str) -> str | None:
        completion = http.chat.completions.parse(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": question}],
            response_format=City,
            max_tokens=300,
            temperature=0,
        )
        city = completion.choices[0].message.parsed
        return None if city is None else city.name

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        names = list(pool.map(ask, QUESTIONS))
    assert all(names) and len(set(names)) > 4, names


def test_a_required_tool_is_called_with_arguments_of_its_schema(tools_http: OpenAI) -> None:
    message = (
        tools_http.chat.completions.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "What is the weather in Paris, in Celsius?"}],
            tools=[WEATHER],  # type: ignore[list-item]
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=120,
            temperature=0,
        )
        .choices[0]
        .message
    )
    (call,) = message.tool_calls or ()
    assert call.type == "function" and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")
