"""Masked fine-tuning: settings, what is masked, in which order, what is added to cross-entropy, the loop."""
