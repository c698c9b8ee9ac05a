"""ROAR and Recursive ROAR: mask what is called important, retrain, measure again."""
