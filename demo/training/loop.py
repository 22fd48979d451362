"""The training loop: resumable, interruptible, with a progress bar and a log of the loss."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from torch.nn import functional
from transformers import LlamaForCausalLM

from demo.foreign_tokenizer import build_foreign_tokenizer
from demo.progress import tqdm
from demo.tokenizer import build_tokenizer
from demo.training import attention, checkpoint
from demo.training.data import Batch, BatchSource
from demo.training.model import build_config, build_model, export
from demo.training.optimizer import PairedOptimizer
from demo.training.recipes import Recipe
from demo.training.record import TrainingRecord, read_losses

_CHECKPOINT_EVERY_S = 120.0
_LOG_EVERY = 20
_MAX_GRADIENT_NORM = 1.0
_HAS_BF16 = bool(torch.cpu.get_capabilities().get("avx512_bf16"))
"""Without its own instructions bfloat16 is emulated, at less than half the speed of float32."""


@dataclass(slots=True)
class _Stop:
    """Set when the process has been asked to end."""

    requested: bool = False


def train(recipe: Recipe, work_dir: Path, folder: Path) -> bool:
    """Train to the end of the schedule and export, from the last checkpoint in `work_dir` if there is one.

    Returns:
        False if a signal ended the training early; its checkpoint has been written then.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    attention.register()
    tokenizer = build_foreign_tokenizer() if recipe.is_foreign else build_tokenizer()
    config = build_config(recipe.architecture, len(tokenizer), tokenizer.eos_token_id)
    model = build_model(config, recipe.seed)
    model.set_attn_implementation(attention.NAME)
    trainer = _Trainer(recipe, model, BatchSource(recipe, tokenizer), work_dir / f"{recipe.name}.pt")
    log = work_dir / f"{recipe.name}.jsonl"
    with log.open("a") as lines, _stop_on_signals() as stop:
        is_complete = trainer.run(lines, stop)
    if is_complete:
        export(model, tokenizer, folder)
        trainer.record(read_losses(log)).write(folder)
    return is_complete


class _Trainer:
    """A model in training and where it stands."""

    def __init__(self, recipe: Recipe, model: LlamaForCausalLM, source: BatchSource, path: Path) -> None:
        self._recipe = recipe
        self._model = model
        self._source = source
        self._path = path
        self._optimizer = PairedOptimizer(model, recipe.schedule)
        self._at = checkpoint.resume(path, model, self._optimizer)

    def run(self, log: TextIO, stop: _Stop) -> bool:
        """Do the remaining steps; False if stopped before the last."""
        steps = self._recipe.schedule.steps
        began = saved = time.monotonic()
        earlier = self._at.seconds
        with tqdm(total=steps, initial=self._at.step, desc=self._recipe.name, unit="step") as bar:
            while self._at.step < steps and not stop.requested:
                loss = self._step()
                now = time.monotonic()
                self._at = checkpoint.Checkpoint(self._at.step + 1, earlier + now - began)
                bar.update()
                if self._at.step % _LOG_EVERY == 0:
                    self._log(log, loss)
                    bar.set_postfix(loss=f"{loss:.3f}")
                if now - saved > _CHECKPOINT_EVERY_S:
                    self._save()
                    saved = now
        self._save()
        return self._at.step == steps

    def record(self, losses: tuple[tuple[int, float], ...]) -> TrainingRecord:
        """Sum the training up."""
        tokens = sum(self._recipe.data.tokens_at(step) for step in range(self._at.step))
        seconds = round(self._at.seconds, 1)
        return TrainingRecord(self._at.step, tokens, seconds, torch.get_num_threads(), losses)

    def _step(self) -> float:
        loss = _loss(self._model, self._source.batch(self._at.step))
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), _MAX_GRADIENT_NORM)
        self._optimizer.step(self._at.step)
        return loss.item()

    def _log(self, log: TextIO, loss: float) -> None:
        entry = {"step": self._at.step, "loss": round(loss, 4), "seconds": round(self._at.seconds, 1)}
        print(json.dumps(entry), file=log, flush=True)

    def _save(self) -> None:
        checkpoint.save(self._path, self._at, self._model, self._optimizer)


def _loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted cross-entropy of the predictions that count; only these pass through the head."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=_HAS_BF16):
        hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1)[batch.index])
    losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
    return (losses * batch.weights).sum() / batch.weights.sum()


@contextmanager
def _stop_on_signals() -> Iterator[_Stop]:
    """Turn SIGTERM and SIGINT into a request to stop after the current step."""
    stop = _Stop()

    def request(*_: object) -> None:
        stop.requested = True

    previous = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
