"""ROAR and Recursive ROAR: mask the most important tokens, retrain, measure again."""
