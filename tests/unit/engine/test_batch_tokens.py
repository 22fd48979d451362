"""The token rows of a forward by device."""

from pathlib import Path

import pytest

from flyserve.core.messages import VERIFIED_TOKENS, Role
from services.engine.config import ModelConfig


def batch_tokens(device: str, **fields: int) -> int:
    config = ModelConfig(role=Role.TARGET, model=Path("m"), device=device, **fields)  # type: ignore[arg-type]
    return config.batch_tokens


@pytest.mark.parametrize("max_sequences", [1, 64, 480])
def test_a_gpu_verifies_all_sequences_in_one_forward_beside_a_prefill(max_sequences: int) -> None:
    expected = max_sequences * VERIFIED_TOKENS + 512
    assert batch_tokens("cuda", max_sequences=max_sequences) == expected
    assert batch_tokens("cpu", max_sequences=max_sequences) == 512


def test_a_forward_on_a_gpu_has_a_limit_and_a_given_size_is_kept() -> None:
    assert batch_tokens("cuda", max_sequences=65_536) == 8192
    assert batch_tokens("cuda", max_batch_tokens=100) == batch_tokens("cpu", max_batch_tokens=100) == 100
