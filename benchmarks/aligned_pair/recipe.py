"""What a pair is made of: two shapes, and how far its models agree."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's sizes; all divide by 16."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    def num_parameters(self, vocab_size: int) -> int:
        """Weights of the model, embedding and head (which are not tied) included."""
        key_values = 2 * self.hidden * self.hidden * self.kv_heads // self.heads
        attention = 2 * self.hidden * self.hidden + key_values
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + 2 * vocab_size * self.hidden + self.hidden


@dataclass(frozen=True, slots=True)
class PairRecipe:
    """A pair; the default one has 109.3 and 4.9 million parameters.

    Attributes:
        target: The large model.
        drafter: The small one.
        vocab_size: Of both.
        context_length: Of both, in tokens.
        noise: Standard deviation of the context noise in a logit, by the successor's logit.
        peak: The successor's logit: the larger, the surer both are.
        branch: Largest share of the second successor, 0 to 1.
        seed: Another one gives other weights.
        period: Tokens of each cycle that text goes round in, a divisor of the vocabulary's size; None is one
            cycle through all of it.
        sub_drafter: A still smaller model, where one is wanted.
    """

    target: Shape = Shape(768, 2816, 12, 12, 4)
    drafter: Shape = Shape(256, 704, 1, 4, 2)
    vocab_size: int = 8192
    context_length: int = 4096
    noise: float = 0.08
    peak: float = 12.0
    branch: float = 1.0
    seed: int = 0
    period: int | None = None
    sub_drafter: Shape | None = None
