"""Text attacks: words or characters are changed, by importance and within a budget, until the prediction changes."""
