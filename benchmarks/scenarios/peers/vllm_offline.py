"""vLLM's own offline engine: `vllm_offline.py FOLDER DTYPE MAX_SEQUENCES`, by an interpreter that has vLLM.

Prints "ready". Then it decodes each line of stdin, a JSON object with `prompts`, `max_new_tokens` and
`ending_ids`, all prompts at once, and prints an object with the `tokens` of each prompt and the `seconds`.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from services.engine.vllm.library import load_library
from services.engine.vllm_args import DEFAULT_CPU_KV_BYTES, environment
from services.target.config import VllmTargetConfig


def main() -> None:
    folder, dtype, max_sequences = sys.argv[1:]
    # NOTE: only answers go to stdout; libraries print as well.
    answers, _ = os.fdopen(os.dup(1), "w", buffering=1), os.dup2(2, 1)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    load_library("cpu", environment(VllmTargetConfig(model=Path(folder), threads=1), os.environ))
    from vllm import LLM, SamplingParams

    arguments: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "skip_tokenizer_init": True}
    arguments |= {"max_num_seqs": int(max_sequences), "kv_cache_memory_bytes": DEFAULT_CPU_KV_BYTES}
    llm = LLM(folder, dtype=dtype, **arguments)
    print("ready", file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=asked["max_new_tokens"],
            stop_token_ids=asked["ending_ids"],
            ignore_eos=True,
            detokenize=False,
        )
        # A salt of its own: no prompt is found in the cache of an earlier one.
        batch = [{"prompt_token_ids": ids, "cache_salt": uuid4().hex} for ids in asked["prompts"]]
        started = time.perf_counter()
        outputs = llm.generate(batch, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        print(json.dumps({"tokens": tokens, "seconds": seconds}), file=answers)


if __name__ == "__main__":
    main()
