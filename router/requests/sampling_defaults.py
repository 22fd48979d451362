"""How a model's makers want it sampled, for requests that leave it open as OpenAI's may."""

from pathlib import Path

from fly.request import SamplingParams
from router.text.tokenizer import read_json

_UNSAID = SamplingParams(temperature=1.0)


def sampling_defaults(folder: Path) -> SamplingParams:
    """From the generation config: greedy where it says `do_sample: false`; what it leaves open is OpenAI's.

    Raises:
        ModelError: The generation config is not JSON.
    """
    said = read_json(folder / "generation_config.json")
    if said.get("do_sample") is False:
        return SamplingParams()

    def number(name: str, default: float) -> float:
        found = said.get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else default

    return SamplingParams(
        temperature=number("temperature", _UNSAID.temperature),
        top_k=max(0, int(number("top_k", _UNSAID.top_k))),
        top_p=number("top_p", _UNSAID.top_p),
        min_p=number("min_p", _UNSAID.min_p),
        repetition_penalty=number("repetition_penalty", _UNSAID.repetition_penalty),
    )
