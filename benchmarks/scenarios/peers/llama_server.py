"""llama.cpp's own server: `llama_server.py FILE THREADS [NGRAM]`, by an interpreter that has xllamacpp.

Reports its URL, and ends with its input.
"""

import sys
from importlib import import_module
from typing import Any

from benchmarks.harness.program import serve

_CONTEXT_TOKENS = 2048


def main() -> None:
    model, threads, *ngrams = sys.argv[1:]

    def start() -> tuple[str, Any]:
        xllamacpp: Any = import_module("xllamacpp")
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers = model, _CONTEXT_TOKENS, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
        kinds = xllamacpp.common_speculative_type
        names = [f"COMMON_SPECULATIVE_TYPE_{each.replace('-', '_').upper()}" for each in ngrams]
        params.speculative.types = [
            getattr(kinds, name) for name in names or ["COMMON_SPECULATIVE_TYPE_NONE"]
        ]
        server = xllamacpp.Server(params)
        return server.listening_address, lambda: server.listening_address

    serve(start)


if __name__ == "__main__":
    main()
