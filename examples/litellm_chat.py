"""Ask through LiteLLM (`pip install litellm`), while `flyserve up` runs: `litellm_chat.py [URL]`.

LiteLLM's proxy takes the same three values: `model: hosted_vllm/NAME`, `api_base` and `api_key`.
"""

import argparse

import litellm

QUESTION = (
    "Karl has 7 books. Now Karl loses 3 books. Next Karl wins 31 books. How many books does Karl have now?"
)


def main(url: str, model: str = "flyserve-demo") -> None:
    """Print a streamed response, then the usage of a whole one, in which fields of FlyServe are set."""
    messages = [{"role": "user", "content": QUESTION}]
    asked = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
    for chunk in litellm.completion(**asked, messages=messages, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    exact = {"speculation": {"mode": "exact"}}
    whole = litellm.completion(**asked, messages=messages, extra_body=exact)
    print(f"\n{whole.usage.completion_tokens} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("model", nargs="?", default="flyserve-demo")
    main(**vars(parser.parse_args()))
