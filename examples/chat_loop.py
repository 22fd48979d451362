"""Hold a conversation, while `flyserve up` runs: `chat_loop.py [URL]`; an empty line or Ctrl-D ends it."""

import argparse
from contextlib import suppress
from typing import Any

from openai import OpenAI


def main(url: str) -> None:
    """Read a line, stream the answer to the whole conversation, and repeat."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages: list[Any] = []
    while line := input("> ").strip():
        messages.append({"role": "user", "content": line})
        answer = ""
        for chunk in client.chat.completions.create(
            model=model, messages=messages, temperature=0, stream=True
        ):
            text = "".join(choice.delta.content or "" for choice in chunk.choices)
            print(text, end="", flush=True)
            answer += text
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    with suppress(EOFError):
        main(parser.parse_args().url)
