"""State that all requests of a router share."""

from dataclasses import dataclass

from flyserve.core.clock import Clock
from router.config import RouterConfig
from router.generation.log_limit import LogLimit
from router.metrics import RouterMetrics
from router.replicas.directory import ReplicaDirectory
from router.replicas.draft_model import DraftModel
from router.requests.grammars import Grammars
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from services.common.telemetry.tracing import Tracer


@dataclass(frozen=True, slots=True)
class RouterContext:
    """State shared by all requests of a router."""

    replicas: ReplicaDirectory
    draft_model: DraftModel
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    grammars: Grammars
    config: RouterConfig
    clock: Clock
    tracer: Tracer | None
    metrics: RouterMetrics
    rejection_log: LogLimit
