"""Items of a response and their events, from the parts of its message. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from router.http.chat_objects import ChatLogprob
from router.http.responses.objects import (
    ItemStatus,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
)
from router.json_text import is_json_object
from router.text.growing_text import GrowingText
from router.tools.parts import CallPart, Parts

Event = Mapping[str, Any]
"""An event of a stream, without its sequence number."""


class Output:
    """The items of one response, in the order in which they begin; one of them is open at a time.

    Attributes:
        items: Items so far.
    """

    def __init__(self, new_id: Callable[[str], str], makes_events: bool = True) -> None:
        """Use `new_id` to make ids from their prefix; without `makes_events` there are only items."""
        self.items: list[OutputItem] = []
        self._new_id = new_id
        self._makes_events = makes_events
        self._is_open = False
        self._pending = deque[ChatLogprob]()
        """Log-probabilities of the tokens whose part is not decided."""
        self._logprobs: list[ChatLogprob] = []
        """Those of the open message."""
        self._written = GrowingText()
        """Text or arguments of the open item, which has none until it ends."""

    @property
    def num_open(self) -> tuple[int, int]:
        """Numbers of characters and of log-probabilities of the open item, which its last events repeat."""
        return len(self._written), len(self._logprobs)

    def ends_item(self, parts: Parts) -> bool:
        """Return True if new parts end the open item."""
        if not self._is_open:
            return False
        if parts.reasoning and not isinstance(self.items[-1], OutputReasoning):
            return True
        is_message = isinstance(self.items[-1], OutputMessage)
        return any(each.name if isinstance(each, CallPart) else not is_message for each in parts.in_order)

    def add(self, parts: Parts, logprobs: Iterable[ChatLogprob] = ()) -> Iterator[Event]:
        """Add new parts of the message, and the log-probabilities of new tokens; yield their events."""
        self._pending.extend(logprobs)
        decided = [(self._pending.popleft(), flag) for flag in parts.are_content if self._pending]
        if parts.reasoning:
            yield from self._reasoning(parts.reasoning)
        own = [each for each, is_content in decided if is_content]
        for piece in parts.in_order:
            if isinstance(piece, CallPart):
                yield from self._call(piece)
            else:
                yield from self._text(piece, own)
                own = []

    def finish(self, status: ItemStatus) -> Iterator[Event]:
        """End the open item; yield its events. A call whose arguments are not whole is incomplete."""
        if not self._is_open:
            return
        self._is_open = False
        text, logprobs, self._logprobs = self._written.take(), self._logprobs, []
        match self.items[-1]:
            case OutputCall():
                status = status if is_json_object(text) else "incomplete"
                self._replaced(status=status, arguments=text)
            case OutputMessage():
                self._replaced(status=status, content=[OutputText(text=text, logprobs=logprobs)])
            case OutputReasoning():
                self._replaced(status=status, content=[ReasoningText(text=text)])
        if self._makes_events:
            yield from self._end_events(self.items[-1])

    def _end_events(self, item: OutputItem) -> Iterator[Event]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": len(self.items) - 1}
        match item:
            case OutputMessage(content=[part]):
                place["content_index"] = 0
                listed = part.model_dump()
                done = {"text": part.text, "logprobs": listed["logprobs"]}
                yield {"type": "response.output_text.done", **place, **done}
                yield {"type": "response.content_part.done", **place, "part": listed}
            case OutputReasoning(content=[part]):
                place["content_index"] = 0
                yield {"type": "response.reasoning_text.done", **place, "text": part.text}
                yield {"type": "response.content_part.done", **place, "part": part.model_dump()}
            case OutputCall():
                done = {"name": item.name, "arguments": item.arguments}
                yield {"type": "response.function_call_arguments.done", **place, **done}
        yield self._of_item("done")

    def _reasoning(self, text: str) -> Iterator[Event]:
        if not (self._is_open and isinstance(self.items[-1], OutputReasoning)):
            item = OutputReasoning(id=self._new_id("rs_"), status="in_progress", content=[])
            yield from self._open(item, ReasoningText(text=""))
        self._written.add(text)
        if self._makes_events:
            yield self._delta("response.reasoning_text.delta", text)

    def _text(self, text: str, logprobs: Sequence[ChatLogprob]) -> Iterator[Event]:
        if not (self._is_open and isinstance(self.items[-1], OutputMessage)):
            item = OutputMessage(id=self._new_id("msg_"), status="in_progress", content=[])
            yield from self._open(item, OutputText(text=""))
        self._logprobs += logprobs
        if self._makes_events:
            listed = [each.model_dump() for each in logprobs]
            yield self._delta("response.output_text.delta", text, logprobs=listed)
        self._written.add(text)

    def _delta(self, kind: str, text: str, **more: Any) -> Event:
        item = self.items[-1]
        place: dict[str, Any] = {"item_id": item.id, "output_index": len(self.items) - 1}
        if not isinstance(item, OutputCall):
            place["content_index"] = 0
        return {"type": kind, **place, "delta": text, **more}

    def _call(self, call: CallPart) -> Iterator[Event]:
        if call.name:
            item = OutputCall(
                id=self._new_id("fc_"), call_id=call.id, name=call.name, arguments="", status="in_progress"
            )
            yield from self._open(item)
        if call.arguments and self._is_open and isinstance(self.items[-1], OutputCall):
            self._written.add(call.arguments)
            if self._makes_events:
                yield self._delta("response.function_call_arguments.delta", call.arguments)

    def _open(self, item: OutputItem, part: OutputText | ReasoningText | None = None) -> Iterator[Event]:
        yield from self.finish("completed")
        self._is_open = True
        self.items.append(item)
        if not self._makes_events:
            return
        yield self._of_item("added")
        if part is not None:
            place = {"item_id": item.id, "output_index": len(self.items) - 1, "content_index": 0}
            yield {"type": "response.content_part.added", **place, "part": part.model_dump()}

    def _replaced(self, **changes: Any) -> Any:
        self.items[-1] = self.items[-1].model_copy(update=changes)
        return self.items[-1]

    def _of_item(self, what: str) -> Event:
        index = len(self.items) - 1
        kind = f"response.output_item.{what}"
        return {"type": kind, "output_index": index, "item": self.items[index].model_dump()}
