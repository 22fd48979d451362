"""Let the model call a tool, and answer with its result, through LiteLLM: `litellm_tools.py URL MODEL`."""

import argparse
import json
from typing import Any

import litellm

PRICES = {"book": 7, "pen": 2}
TOOL = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Look up the price of an item in dollars.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"enum": list(PRICES)}},
            "required": ["item"],
            "additionalProperties": False,
        },
    },
}


def main(url: str, model: str) -> None:
    """Print the calls of the first response and the text of the second one."""
    asked: dict[str, Any] = {
        # NOTE: the provider `hosted_vllm` would remove `additionalProperties` and `strict` from the tool.
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "tools": [TOOL],
        "temperature": 0,
        "max_tokens": 200,
    }
    messages: list[Any] = [{"role": "user", "content": "How much is a book?"}]
    call_one = {"tool_choice": "required", "parallel_tool_calls": False}
    first = litellm.completion(**asked, **call_one, messages=messages).choices[0].message
    messages.append(first.model_dump(exclude_none=True))
    for call in first.tool_calls:
        arguments = json.loads(call.function.arguments)
        print(f"called {call.function.name} with {arguments}")
        result = f"{PRICES[arguments['item']]} dollars"
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = litellm.completion(**asked, messages=messages, tool_choice="none").choices[0]
    print(f"answered: {second.message.content}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="Of the HTTP API, such as http://127.0.0.1:8000.")
    parser.add_argument("model")
    main(**vars(parser.parse_args()))
