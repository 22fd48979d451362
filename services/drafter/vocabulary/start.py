"""Start to map a drafter's vocabulary: compare the token maps, report the overlap."""

import logging

from flyserve.core.errors import ConfigError
from services.common.model_source import model_folder
from services.common.token_map import token_map_hash
from services.drafter.config import AnyDrafterConfig
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.session import MappedDrafter
from services.engine.interface import DrafterEngine

logger = logging.getLogger(__name__)


def map_vocabulary(engine: DrafterEngine, config: AnyDrafterConfig) -> DrafterEngine:
    """Return a drafter for the target of the configuration: the engine itself if their token maps are equal.

    Raises:
        ConfigError: A key does not fit a drafter with another vocabulary.
        ModelError: A tokenizer cannot be read, or the drafter's cannot spell written text.
    """
    if config.vocabulary == "same":
        return engine
    assert config.model is not None and config.target_tokenizer is not None, "the configuration checks both"
    target = model_folder(config.target_tokenizer, has_weights=False)
    token_map = token_map_hash(target)
    if token_map == engine.info.token_map_hash:
        return engine
    if config.standalone_sequences:
        raise ConfigError(
            f"standalone_sequences: is {config.standalone_sequences}, must be 0 for a drafter with another"
            " vocabulary than its target"
        )
    mapping = VocabularyMap.load(target, model_folder(config.model, has_weights=False))
    logger.info("drafts are mapped by their text; the target has %.1f%% of the tokens", 100 * mapping.overlap)
    return MappedDrafter(engine, mapping, token_map, config.max_draft)
