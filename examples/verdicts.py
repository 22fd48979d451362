"""Show the verdict of each token in every mode, while `flyserve up` runs: `verdicts.py [host:port]`."""

import argparse
from collections import Counter

from flyserve import Client, Mode, SpeculationParams

PROMPT = (
    "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?\n"
)


def main(address: str) -> None:
    """Asks the same in every mode, and prints what each kept, and how fast it was."""
    with Client(address) as client:
        for mode in (Mode.PLAIN, Mode.EXACT, Mode.FLY):
            response = client.generate(PROMPT, speculation=SpeculationParams(mode=mode))
            verdicts = Counter(token.verdict.value for token in response.tokens)
            rate = len(response.tokens) / response.statistics.total_s
            print(f"{mode.value:>5}: {rate:5.0f} tokens/s, {dict(verdicts)}")
            print(f"       {response.text!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:50051")
    main(parser.parse_args().address)
