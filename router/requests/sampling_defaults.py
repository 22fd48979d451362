"""Sampling defaults from the model's generation config, for HTTP requests that set none."""

from pathlib import Path

from fly.request import SamplingParams
from router.text.tokenizer import read_json

_OPENAI = SamplingParams(temperature=1.0)


def sampling_defaults(folder: Path) -> SamplingParams:
    """Return the defaults: greedy with `do_sample: false`; fields that the config leaves open are OpenAI's.

    Raises:
        ModelError: The generation config is not JSON.
    """
    config = read_json(folder / "generation_config.json")
    if config.get("do_sample") is False:
        return SamplingParams()

    def number(name: str, default: float) -> float:
        found = config.get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default

    return SamplingParams(
        temperature=number("temperature", _OPENAI.temperature),
        top_k=max(0, int(number("top_k", _OPENAI.top_k))),
        top_p=number("top_p", _OPENAI.top_p),
        min_p=number("min_p", _OPENAI.min_p),
        repetition_penalty=number("repetition_penalty", _OPENAI.repetition_penalty),
    )
