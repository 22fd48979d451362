"""Chat prompts for a real model: rewriting and extraction, whose answers repeat parts of the prompt."""

from itertools import product
from pathlib import Path

from benchmarks.harness.client import Prompts
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

_TASKS = (
    "Repeat the following text, but change every name to 'Alex'.",
    "Copy all sentences of the following text that contain a number.",
    "Correct the spelling of the following text and change nothing else.",
    "Answer with the first two sentences of the following text.",
)
_TEXTS = (
    "Maria runs a small bakery in Porto. She opens at 6 in the morning and sells 200 loaves a day. Her"
    " brother Paulo delivers the bread by bicycle. On Sundays teh bakery is closed.",
    "The museum opened in 1921. It shows 340 paintings and twelve sculptures. John, the director, plans a"
    " new wing. Visiters pay nothing on the first Monday of the month.",
    "def area(width, height):\n    # Computes the area of an rectangle.\n    result = width * height\n"
    "    return result\n\nprint(area(3, 4))  # John expects 12 here",
    "Dear Ms. Keller, thank you for your order of 25 chairs. We will ship them on 3 May. Please call Tom if"
    " the adress has changed. Kind regards, Anna.",
)


def real_prompts(folder: Path, count: int) -> Prompts:
    """Return chat prompts as tokens of a model; beyond 16 they repeat."""
    template = ChatTemplate(Tokenizer.load(folder))
    asked = [f"{task}\n\n{text}" for text, task in product(_TEXTS, _TASKS)]
    # Neighbours differ in text and in task: a short run has some of each.
    mixed = [asked[(5 * place) % len(asked)] for place in range(count)]
    return tuple(template.render([{"role": "user", "content": text}], {}) for text in mixed)
