"""Ask a question, and stream the answer, while `flyserve up` runs."""

from flyserve import Client

TEXT = "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?"

if __name__ == "__main__":
    with Client() as client, client.stream_chat(TEXT, mode="exact") as stream:
        for chunk in stream:
            print(chunk.text, end="", flush=True)
