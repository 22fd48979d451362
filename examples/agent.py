"""An agent of the OpenAI Agents SDK (`pip install openai-agents`) that calls a tool: `agent.py URL MODEL`."""

import argparse
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool
def price(item: Literal["book", "pen"]) -> str:
    """Look up the price of an item in dollars."""
    print(f"called price with {item}")
    return {"book": "7 dollars", "pen": "2 dollars"}[item]


def main(url: str, model: str) -> None:
    """Print the calls of the agent, and its answer."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    agent = Agent(
        name="shop",
        instructions="Answer questions about prices.",
        tools=[price],
        model=OpenAIChatCompletionsModel(model, client),
        # After the first call the framework leaves the choice to the model.
        model_settings=ModelSettings(tool_choice="required", temperature=0, max_tokens=200),
    )
    print(f"answered: {Runner.run_sync(agent, 'How much is a book?').final_output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="Of the HTTP API, such as http://127.0.0.1:8000.")
    parser.add_argument("model")
    main(**vars(parser.parse_args()))
