"""An answer as JSON that a schema allows, whatever the model would have liked to write."""

import argparse
import json

from flyserve import Client, Grammar, GrammarKind

TASK = "Q: Tom has 3 apples and eats 1. How many are left?\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 1000},
        "is_certain": {"type": "boolean"},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["answer", "is_certain", "colours"],
    "additionalProperties": False,
}


def main(address: str) -> None:
    """Print one answer, and how many of its draft tokens were accepted."""
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    with Client(address) as client:
        response = client.generate(TASK, 200, grammar=grammar)
    choice = response.choices[0]
    print(json.dumps(json.loads(choice.text), indent=2))
    print(f"{choice.statistics.accepted} of {choice.statistics.drafted} draft tokens accepted")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:50051")
    main(parser.parse_args().address)
