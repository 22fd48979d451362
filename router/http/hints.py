"""Hints of a request: used where the chat template has a variable for them, else ignored with a warning."""

from collections.abc import Iterator
from typing import Any, Literal

from router.http.request_model import RequestModel
from router.text.chat_template import ChatTemplate

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]

_SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that only turn reasoning on and off."""

_IDLE = "has no effect: the model's chat template has no variable for it"


class HintFields(RequestModel):
    """Hints about the length of an answer.

    Attributes:
        reasoning_effort: For the template's variable of this name, or `none` turns its reasoning off, and
            any other value on.
        verbosity: For the template's variable of this name.
    """

    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None

    def variables(self, template: ChatTemplate) -> dict[str, Any]:
        """Return the variables of a chat template that the hints set."""
        hints = (("reasoning_effort", self.reasoning_effort), ("verbosity", self.verbosity))
        found: dict[str, Any] = {name: value for name, value in hints if value and template.takes(name)}
        if self.reasoning_effort and "reasoning_effort" not in found:
            switches = filter(template.takes, _SWITCHES)
            found |= {name: self.reasoning_effort != "none" for name in switches}
        return found

    def warnings(self, template: ChatTemplate) -> Iterator[str]:
        """Yield a warning for each hint that the template cannot use; `none` asks for no reasoning at all."""
        effort = None if self.reasoning_effort == "none" else self.reasoning_effort
        if effort and not any(map(template.takes, ("reasoning_effort", *_SWITCHES))):
            yield f"reasoning_effort {_IDLE}"
        if self.verbosity and not template.takes("verbosity"):
            yield f"verbosity {_IDLE}"
