"""Masked fine-tuning: how (`config`), what is masked (`strategy`), in which order (`curriculum`), what is added to
cross-entropy (`robust`), the loop, and its checkpoints.
"""

from faithmeter.training.config import TrainingConfig
from faithmeter.training.loop import Outcome, fine_tune

__all__ = ["Outcome", "TrainingConfig", "fine_tune"]
