"""Decode with vLLM's own offline engine: `offline.py FOLDER NEW_TOKENS STREAMS...`, prompts on stdin as JSON.

Prints, for each number of streams, the tokens of each and their number per second, as one JSON object.
"""

import json
import os
import sys
import time
from typing import Any

from services.engine.vllm.library import load_library


def main() -> None:
    folder, new_tokens, *streams = sys.argv[1:]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    load_library("cpu", 1)
    from vllm import LLM, SamplingParams

    fields: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "max_num_seqs": 16}
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True, **fields)
    params = SamplingParams(temperature=0.0, max_tokens=int(new_tokens), ignore_eos=True, detokenize=False)
    prompts = json.load(sys.stdin)
    found = {}
    for count in map(int, streams):
        batch = [{"prompt_token_ids": prompt} for prompt in prompts[:count]]
        llm.generate(batch, params, use_tqdm=False)
        started = time.perf_counter()
        outputs = llm.generate(batch, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        found[count] = {"tokens": tokens, "per_s": sum(map(len, tokens)) / seconds}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
