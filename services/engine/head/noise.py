"""The noise of `flyserve.core.noise` in torch: one hash on every device, for many rows and tokens at once.

Words of 64 bits are held as int64: its sums and products wrap around as those of unsigned words do, and a
shift to the right is made logical by a mask.
"""

import math

import torch
from torch import Tensor

from flyserve.core.noise import BLOCK, GOLDEN, MIX_1, MIX_2, Purpose, Words


def key_tensor(keys: Words, device: torch.device) -> Tensor:
    """Return noise keys as int64 words on a device."""
    return torch.from_numpy(keys.view("int64")).to(device)


def block_noise_maxima(keys: Tensor, blocks: Tensor) -> Tensor:
    """Return the largest noise of blocks, (rows, n): keys are (rows, 1), block numbers (rows or 1, n)."""
    drawn = _uniform(_mix(_mix(keys, Purpose.MAXIMUM), blocks))
    return drawn.log_().neg_().log_().neg_().add_(math.log(BLOCK))


def block_noise_winners(keys: Tensor, blocks: Tensor) -> Tensor:
    """Return the place in each block of the token that has its largest noise; as `block_noise_maxima`."""
    return _mix(_mix(keys, Purpose.WINNER), blocks) & (BLOCK - 1)


def token_noise(keys: Tensor, ids: Tensor, maxima: Tensor | None = None) -> Tensor:
    """Return the noise of the tokens `ids`, (rows, n); `maxima` is that of their blocks, if it is known."""
    blocks, within = ids // BLOCK, ids % BLOCK
    if maxima is None:
        maxima = block_noise_maxima(keys, blocks)
    drawn = _uniform(_mix(_mix(_mix(keys, Purpose.TOKEN), blocks), within))
    below = maxima.neg().exp_().sub_(drawn.log_()).log_().neg_()
    return torch.where(within == block_noise_winners(keys, blocks), maxima, below)


def _mix(state: Tensor, value: Tensor | int) -> Tensor:
    """Mix a value into a hash, as `flyserve.core.noise` does."""
    if isinstance(value, int):
        mixed = state + _signed((value + 1) * int(GOLDEN))
    else:
        mixed = (value + 1).mul_(_signed(int(GOLDEN))) + state
    for bits, factor in ((30, MIX_1), (27, MIX_2)):
        mixed.bitwise_xor_(_shifted(mixed, bits)).mul_(_signed(int(factor)))
    return mixed.bitwise_xor_(_shifted(mixed, 31))


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Return a logical shift to the right."""
    return (words >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """Return the int64 with the bits of a word."""
    return (word + 2**63) % 2**64 - 2**63


def _uniform(words: Tensor) -> Tensor:
    return _shifted(words, 12).double().add_(0.5).mul_(2.0**-52)
