"""Conversations of three turns as agents hold them: `conversations.py URL MODEL KIND`.

Each sends back what it received: calls, a call that was cut, reasoning, and ends with a typed answer.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any, Literal

import litellm
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict

PRICES = {"book": 7, "pen": 2}
PARAMETERS = {
    "type": "object",
    "properties": {"item": {"enum": list(PRICES)}},
    "required": ["item"],
    "additionalProperties": False,
}
QUESTION = {"role": "user", "content": "A book?"}
AGAIN = {"role": "user", "content": "A pen?"}


class Answer(BaseModel):
    """A typed answer."""

    model_config = ConfigDict(extra="forbid")
    dollars: Literal[2, 7]


def answers(calls: list[Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call.id, "content": "7 dollars"} for call in calls]


def litellm_chat(url: str, model: str) -> None:
    """Send messages of LiteLLM back: as an object, as data, and joined from a stream."""
    tool = {"type": "function", "function": {"name": "price", "parameters": PARAMETERS}}
    asked: dict[str, Any] = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "tools": [tool],
        "temperature": 0,
    }
    messages: list[Any] = [QUESTION]
    first = litellm.completion(**asked, tool_choice="required", messages=messages, max_tokens=120)
    message = first.choices[0].message
    messages += [message, *answers(message.tool_calls), AGAIN]
    print(f"calls: {len(message.tool_calls)}")
    cut = litellm.completion(**asked, tool_choice="required", messages=messages, max_tokens=50, stream=True)
    joined = litellm.stream_chunk_builder(list(cut), messages=messages).choices[0].message
    calls = joined.tool_calls or []
    messages += [joined.model_dump(), *answers(calls), AGAIN]
    print(f"cut: {[call.function.arguments for call in calls]}")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": Answer.model_json_schema()}}
    # A call or an answer, as the model likes; then an answer.
    free = litellm.completion(**asked, messages=messages, response_format=form, max_tokens=120)
    for call in free.choices[0].message.tool_calls or []:
        assert json.loads(call.function.arguments)["item"] in PRICES
    last = litellm.completion(
        **asked, messages=messages, response_format=form, max_tokens=40, tool_choice="none"
    )
    print(f"typed: {Answer.model_validate_json(last.choices[0].message.content)}")


def litellm_responses(url: str, model: str) -> None:
    """Send items of LiteLLM's Responses back."""
    asked: dict[str, Any] = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"}
    tool = {"type": "function", "name": "price", "parameters": PARAMETERS, "strict": False}
    first = litellm.responses(
        **asked, input=[QUESTION], tools=[tool], tool_choice="required", max_output_tokens=120, temperature=0
    )
    output = [item.model_dump() if hasattr(item, "model_dump") else item for item in first.output]
    calls = [item for item in output if item["type"] == "function_call"]
    print(f"calls: {len(calls)}")
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "7 dollars"} for call in calls
    ]
    history = [QUESTION, *output, *results, AGAIN]
    second = litellm.responses(**asked, input=history, tools=[tool], max_output_tokens=20, temperature=0)
    print(f"answered: {second.status}")


@function_tool
def price(item: Literal["book", "pen"]) -> str:
    """Return a price."""
    return f"{PRICES[item]} dollars"


async def _agent_turns(model: Model) -> None:
    one_call = {"tool_choice": "required", "parallel_tool_calls": False}
    settings = ModelSettings(**one_call, temperature=0, max_tokens=200)
    caller = Agent(
        name="shop",
        tools=[price],
        tool_use_behavior="stop_on_first_tool",
        model=model,
        model_settings=settings,
    )
    first = await Runner.run(caller, QUESTION["content"])
    print(f"calls: {sum(item.type == 'tool_call_item' for item in first.new_items)}")
    second = Runner.run_streamed(caller, [*first.to_input_list(), AGAIN])
    async for _ in second.stream_events():
        pass
    print(f"items: {len(second.to_input_list())}")
    typed = Agent(
        name="cashier",
        tools=[price],
        model=model,
        output_type=Answer,
        model_settings=ModelSettings(temperature=0, max_tokens=120),
    )
    last = await Runner.run(typed, [*second.to_input_list(), AGAIN])
    print(f"typed: {last.final_output}")


def agents_chat(url: str, model: str) -> None:
    """Run an agent over chats."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    asyncio.run(_agent_turns(OpenAIChatCompletionsModel(model, client)))


def agents_responses(url: str, model: str) -> None:
    """Run an agent over Responses."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    asyncio.run(_agent_turns(OpenAIResponsesModel(model, client)))


KINDS: dict[str, Callable[[str, str], None]] = {
    "litellm-chat": litellm_chat,
    "litellm-responses": litellm_responses,
    "agents-chat": agents_chat,
    "agents-responses": agents_responses,
}


def main(url: str, model: str, kind: str) -> None:
    """Print a line for each turn."""
    set_tracing_disabled(True)
    KINDS[kind](url, model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="Of the HTTP API, such as http://127.0.0.1:8000.")
    parser.add_argument("model")
    parser.add_argument("kind", choices=KINDS)
    main(**vars(parser.parse_args()))
