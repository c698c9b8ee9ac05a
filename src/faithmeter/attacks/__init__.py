"""Text attacks: words or characters are changed, by importance and within a budget, until the prediction changes."""

from faithmeter.attacks.kinds import ATTACKS, DEFAULT_KINDS
from faithmeter.attacks.search import BUDGET, Attack, attack_texts, check_settings

__all__ = ["ATTACKS", "BUDGET", "DEFAULT_KINDS", "Attack", "attack_texts", "check_settings"]
