"""Trained experiments: one head is not enough, what trained heads look at, a small writer."""

from .blend import CONTROLS, ROWS, STEPS, Blend, Reporter, stored, train_blend, train_words
from .trained import (
    KINDS,
    TrainedHeads,
    load_trained_model,
    model_attention,
    trained_heads,
    without_specials,
)
from .writer import FLOOR, SENTENCES, Trained, Writer, best_loss, train_writer

__all__ = [
    "CONTROLS",
    "FLOOR",
    "KINDS",
    "ROWS",
    "SENTENCES",
    "STEPS",
    "Blend",
    "Reporter",
    "Trained",
    "TrainedHeads",
    "Writer",
    "best_loss",
    "load_trained_model",
    "model_attention",
    "stored",
    "train_blend",
    "train_words",
    "train_writer",
    "trained_heads",
    "without_specials",
]
