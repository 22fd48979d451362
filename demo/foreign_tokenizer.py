"""The tokenizer of the foreign drafter: an ordinary byte-level BPE, learned from the same texts."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

from demo.tokenizer import END_OF_TEXT, sample, wrap

FOREIGN_VOCABULARY_SIZE = 1024


def build_foreign_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Learn the tokenizer from a sample of the corpus.

    Texts are cut as GPT-2 cuts them. Unlike in the pair's tokenizer, frequent numbers of several digits are
    one token, and rare words are several.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=FOREIGN_VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(seed), trainer)
    return wrap(tokenizer)
