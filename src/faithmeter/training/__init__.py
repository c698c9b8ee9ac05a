"""Masked fine-tuning: what is masked (`strategy`), in which order (`curriculum`), the loop, and its checkpoints."""

from faithmeter.training.loop import Outcome, TrainingConfig, fine_tune

__all__ = ["Outcome", "TrainingConfig", "fine_tune"]
