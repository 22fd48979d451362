"""Ask with OpenAI's package, whole and streamed, while `flyserve up` runs: `openai_chat.py [URL]`."""

import argparse

from openai import OpenAI

QUESTION = (
    "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?"
)


def main(url: str) -> None:
    """Print a whole response with its usage, then the same one as it arrives."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    whole = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0
    )
    print(whole.choices[0].message.content)
    if whole.usage is not None:
        print(f"{whole.usage.completion_tokens} tokens")
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    main(parser.parse_args().url)
