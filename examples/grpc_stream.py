"""Stream a response with grpcio and the generated stubs alone: `grpc_stream.py [host:port]`.

Any language works like this, with stubs made from `protos/flyserve/v1/*.proto`. The Python client of the
package `flyserve` adds retries, resumption and types.
"""

import argparse

import grpc

from flyserve.v1 import generation_pb2 as pb
from flyserve.v1.generation_pb2_grpc import GenerationStub

PROMPT = (
    "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?\n"
)


def main(address: str) -> None:
    """Print the text as it is decided, then what the response cost."""
    request = pb.GenerateRequest(
        prompt=PROMPT, max_new_tokens=200, speculation=pb.SpeculationParams(mode=pb.MODE_EXACT)
    )
    with grpc.insecure_channel(address) as channel:
        for chunk in GenerationStub(channel).GenerateStream(request, timeout=60):
            print(chunk.text, end="", flush=True)
            if chunk.HasField("statistics"):
                statistics = chunk.statistics
                print(
                    f"\n{statistics.emitted} tokens in {statistics.rounds} rounds, tau {statistics.tau:.1f}"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", nargs="?", default="127.0.0.1:50051")
    main(parser.parse_args().address)
