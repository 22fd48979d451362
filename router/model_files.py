"""The files of a model that a router reads: tokenizer, chat template, sampling defaults."""

import logging
from dataclasses import dataclass
from pathlib import Path

from flyserve.core.messages import ModelInfo
from flyserve.core.request import SamplingParams
from router.config import RouterConfig
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, sampling_defaults
from services.common.model_source import model_folder
from services.common.token_map import token_map_hash

logger = logging.getLogger(__name__)

_SIMULATED = "simulated"
"""Architecture of simulated models: their token ids have no text, so any tokenizer is accepted."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The parts of a model in `folder` that a router reads."""

    folder: Path
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    sampling_defaults: SamplingParams
    token_map_hash: str

    def fault(self, target: ModelInfo) -> str:
        """Return the reason why the ids of the tokenizer mean something else to a target; empty if none."""
        own_size = self.tokenizer.vocab_size
        if own_size > target.vocab_size:
            return f"{self.folder} has {own_size} tokens, but the target has {target.vocab_size}"
        takes_any = target.architecture == _SIMULATED or not target.token_map_hash
        if not takes_any and target.token_map_hash != self.token_map_hash:
            return f"{self.folder} maps tokens to other ids than the target"
        return ""


def read_model(config: RouterConfig) -> ModelFiles:
    """Read the files; the model may have to be downloaded. Raise ModelError if one cannot be used."""
    folder = model_folder(config.model, has_weights=False)
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate(tokenizer, config.chat_template)
    if lost := template.lost_tokens():
        logger.warning("chat template: control tokens %s become plain text: write them with + or ~", lost)
    return ModelFiles(folder, tokenizer, template, sampling_defaults(folder), token_map_hash(folder))
