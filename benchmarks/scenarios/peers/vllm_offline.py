"""vLLM's own offline engine, by an interpreter that has vLLM: `vllm_offline.py FOLDER DTYPE THREADS DRAFTS`.

DRAFTS is vLLM's `speculative_config` in JSON, or null. Answers `prompt`, `max_new_tokens` and `ending_ids`
with the tokens of the response and its seconds.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.harness.program import serve
from services.engine.vllm.library import load_library
from services.engine.vllm_args import DEFAULT_CPU_KV_BYTES, environment
from services.target.config import VllmTargetConfig


def main() -> None:
    folder, dtype, threads, drafts = sys.argv[1:]

    def start() -> tuple[str, Any]:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        config = VllmTargetConfig(model=Path(folder), threads=int(threads))
        load_library("cpu", environment(config, os.environ))
        from vllm import LLM, SamplingParams

        arguments: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "skip_tokenizer_init": True}
        arguments |= {"max_num_seqs": 1, "kv_cache_memory_bytes": DEFAULT_CPU_KV_BYTES}
        llm = LLM(folder, dtype=dtype, speculative_config=json.loads(drafts), **arguments)

        def decode(prompt: list[int], max_new_tokens: int, ending_ids: list[int]) -> tuple[list[int], float]:
            limits = {"max_tokens": max_new_tokens, "stop_token_ids": ending_ids, "ignore_eos": True}
            params = SamplingParams(temperature=0.0, detokenize=False, **limits)
            # A salt of its own: no prompt is found in the cache of an earlier one.
            asked = {"prompt_token_ids": prompt, "cache_salt": uuid4().hex}
            started = time.perf_counter()
            (output,) = llm.generate([asked], params, use_tqdm=False)
            return list(output.outputs[0].token_ids), time.perf_counter() - started

        return "", decode

    serve(start)


if __name__ == "__main__":
    main()
