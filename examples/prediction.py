"""Show what a prediction gains, while `flyserve up` runs: `prediction.py [URL of the HTTP API]`.

The demo's model solves small tasks, so the prediction is its own solution with another name and another
number. With a model that edits code, it is the code before the change.
"""

import argparse
import time

from openai import OpenAI

TASK = (
    "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?\n"
)


def main(url: str) -> None:
    """Ask without a prediction, with a good one and with a wrong one; print time and usage of each."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id

    def ask(prediction: str) -> str:
        started = time.perf_counter()
        response = client.completions.create(
            model=model,
            prompt=TASK,
            max_tokens=200,
            temperature=0,
            extra_body={"prediction": {"type": "content", "content": prediction}},
        )
        spent_ms = 1e3 * (time.perf_counter() - started)
        details = response.usage and response.usage.completion_tokens_details
        counts = details.model_dump(exclude_none=True) if details else {}
        print(f"{spent_ms:6.0f} ms, {counts}")
        return response.choices[0].text

    print("without a prediction")
    text = ask("")
    print("a solution with another name and another number")
    ask(text.replace("Karl", "Anna", 1).replace("31", "13", 1))
    print("something else")
    ask("It was a dark and stormy night; the rain fell in torrents.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    main(parser.parse_args().url)
