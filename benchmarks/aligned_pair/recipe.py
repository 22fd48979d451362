"""The recipe of a pair: sizes of its models, and how its text behaves. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama model; all divide by 16."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    def num_parameters(self, vocab_size: int) -> int:
        """Return the number of weights, with embedding and head, which are not tied."""
        key_values = 2 * self.hidden * self.hidden * self.kv_heads // self.heads
        attention = 2 * self.hidden * self.hidden + key_values
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + 2 * vocab_size * self.hidden + self.hidden


@dataclass(frozen=True, slots=True)
class PairRecipe:
    """A pair; the default one has 109.3 and 4.9 million parameters.

    Attributes:
        target: Shape of the large model.
        drafter: Shape of the small model.
        vocab_size: Vocabulary of both.
        context_length: Context of both, in tokens.
        noise: Standard deviation of the context noise in a logit, divided by the successor's logit.
        peak: Logit of the successor; the larger it is, the more certain are both models.
        branch: Largest share of the second successor, 0 to 1.
        seed: Seed of the weights.
    """

    target: Shape = Shape(768, 2816, 12, 12, 4)
    drafter: Shape = Shape(256, 704, 1, 4, 2)
    vocab_size: int = 8192
    context_length: int = 4096
    noise: float = 0.08
    peak: float = 12.0
    branch: float = 1.0
    seed: int = 0

    @property
    def sizes(self) -> str:
        """Numbers of parameters of target and drafter, in millions."""
        shapes = self.target, self.drafter
        return ", ".join(f"{shape.num_parameters(self.vocab_size) / 1e6:.1f}M" for shape in shapes)
