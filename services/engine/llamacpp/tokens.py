"""Check that the router's tokenizer of a GGUF file makes the tokens that libllama makes."""

import ctypes
from pathlib import Path
from typing import Any

from flyserve.core.errors import ModelError, one_line

_TEXTS = (
    "The price is 1234567.89 EUR, i.e. 10% off; they're sure we'll see it.",
    "def add(a, b):\n    # Adds.\n\treturn a + b  # done\n\n\nprint(add(1,  2))\r\n",
    " leading and trailing  spaces   ",
    "日本語と中文 mixed, über straße, пример 😀🇩🇪 ½ ∑",
    "https://example.org/a_b?c=d&e=f#g {\"key\": [1, 2.5e-3, null]} <tag attr='x'/>",
)


def check_tokens(library: Any, model: int, folder: Path, file: Path) -> None:
    """Compare the tokens of some texts; `folder` has the tokenizer that was made of `file`.

    Raises:
        ModelError: They differ, or the tokenizer cannot be read.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises only this type
        raise ModelError(f"{file}: its tokenizer cannot be used: {one_line(error)}") from None
    vocabulary = library.llama_model_get_vocab(model)
    for text in _TEXTS:
        own, theirs = tokenizer.encode(text).ids, _tokens(library, vocabulary, text)
        if own != theirs:
            raise ModelError(
                f"{file}: its tokenizer (tokenizer.ggml.model, pre) is not supported: it makes {own[:16]} of"
                f" {text[:16]!r}..., libllama {theirs[:16]}"
            )


def _tokens(library: Any, vocabulary: int, text: str) -> list[int]:
    encoded = text.encode()
    found = (ctypes.c_int32 * (len(encoded) + 8))()
    number = library.llama_tokenize(vocabulary, encoded, len(encoded), found, len(found), True, True)
    return found[: max(0, number)]
