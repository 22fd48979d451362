"""vLLM's own offline engine, in an environment of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.program import running
from benchmarks.scenarios.peers.plan import Answer, Decode

VARIABLE = "VLLM_PYTHON"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 10, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
"""vLLM's own look-up in the prompt and the response, with the lengths of its documentation."""
_SCRIPT = Path(__file__).with_name("vllm_offline.py")


@contextmanager
def offline_vllm(
    python: str, model: Path, dtype: str, threads: int, speculation: str, ending_ids: Sequence[int]
) -> Iterator[Decode]:
    """Yield a function that decodes by vLLM's own `generate`; the engine's process ends with the block.

    Args:
        python: Interpreter that has vLLM.
        model: Folder.
        dtype: Compute type.
        threads: Threads that compute.
        speculation: vLLM's `speculative_config` in JSON, or null.
        ending_ids: Tokens that end a response.

    Raises:
        NotReady: It ends before it is ready; the error has its last line.
    """
    with running(python, _SCRIPT, str(model), dtype, str(threads), speculation) as program:

        def decode(prompt: Sequence[int], max_new_tokens: int) -> Answer:
            asked = {"prompt": list(prompt), "max_new_tokens": max_new_tokens}
            tokens, seconds = program.ask(**asked, ending_ids=list(ending_ids))
            return Answer(tuple(tokens), seconds)

        yield decode
