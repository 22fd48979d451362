"""Texts, conversations and their tokens, for both public APIs: no model takes part."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flyserve.core.errors import InvalidRequest, refuse
from flyserve.core.response import TextToken
from router.config import LimitsConfig
from router.cost import cpu_s, off_loop
from router.requests.prompt_length import check_beginning, too_many_characters
from router.text.chat_template import ChatTemplate, Ending
from router.text.tokenizer import Tokenizer

_OF_TEMPLATE = 1_000_000
"""Characters of a rendered chat beyond twice those that its parts may have."""


class TextService:
    """Turn texts into tokens, and back.

    Attributes:
        template: Chat template of the model.
        image: Function that returns a token by itself, as log-probabilities show it.

    NOTE: methods that are no coroutines work in any thread, for long if the text is long.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate,
        limits: LimitsConfig,
        longest_context: Callable[[], int],
    ) -> None:
        """`longest_context` returns the most tokens that any model takes; 0 if it is unknown."""
        self._tokenizer = tokenizer
        self.template = chat_template
        self.image = tokenizer.image
        self._limits = limits
        self._longest_context = longest_context

    async def tokenize(self, text: str) -> tuple[TextToken, ...]:
        """Return the tokens of a text; raise InvalidRequest if it is too long."""
        return await off_loop(cpu_s(characters=len(text)), lambda: self._text_tokens(self.token_ids(text)))

    def token_ids(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Return the token ids of a text; raise InvalidRequest if it is too long."""
        limit = self._limits.prompt_characters
        if len(text) > limit:
            raise InvalidRequest(too_many_characters("text", f"has {len(text)} characters", limit))
        return self._tokenizer.encode(text, add_special_tokens)

    def refuse_long(self, field: str, *texts: str) -> None:
        """Raise InvalidRequest if the beginning of texts alone has more tokens than any model takes.

        Texts with too many characters are refused without tokens, where they are used.
        """
        if sum(map(len, texts)) > self._limits.prompt_characters:
            return
        refuse(check_beginning(field, texts, self._tokenizer.encode, self._longest_context()))

    def token_names(self, ids: Sequence[int]) -> list[str]:
        """Return the names of token ids in the vocabulary."""
        return self._tokenizer.names(ids)

    def tokenizer_info(self) -> dict[str, Any]:
        """Return the tokenizer's special tokens and the chat template."""
        template = self.template.source
        return {**self._tokenizer.special_tokens, "chat_template": template}

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        ending: Ending = Ending.ANSWER,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[int, ...]:
        """Return the token ids of a conversation.

        Each message has its role and content. Raise InvalidRequest if the messages are too long, or there is
        no chat template, or it rejects the messages or the variables, or repeats long ones.
        """
        limit = self._limits.prompt_characters
        if (length := sum(len(message["content"]) for message in messages)) > limit:
            raise InvalidRequest(too_many_characters("messages", f"have {length} characters", limit))
        most = 2 * (limit + self._limits.tool_characters) + _OF_TEMPLATE
        return self.template.render(messages, variables, ending, tools, most)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones included; raise InvalidRequest for an invalid id."""
        size = self._tokenizer.vocab_size
        if max(ids, default=0) >= size:
            index, token = next((index, token) for index, token in enumerate(ids) if token >= size)
            raise InvalidRequest.of(f"tokens[{index}]", f"is {token}, must be 0 to {size - 1}")
        return self.text_of(ids, skip_special_tokens=False)

    def text_of(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; ids that the tokenizer lacks have none."""
        return self._tokenizer.decode(ids, skip_special_tokens)

    async def tokenize_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[TextToken, ...]:
        """Return the tokens of a conversation; raises what `render_chat` does."""
        cost_s = cpu_s(characters=sum(len(each["content"]) for each in messages), items=len(messages))
        return await off_loop(cost_s, lambda: self._text_tokens(self.render_chat(messages, {})))

    def _text_tokens(self, ids: Sequence[int]) -> tuple[TextToken, ...]:
        return tuple(map(TextToken, ids, self._tokenizer.pieces(ids)))
