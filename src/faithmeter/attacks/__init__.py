"""Text attacks: words and characters changed, by importance and within a budget, until the answer changes."""
