"""Faithfulness metrics: each masks what an explanation calls important and predicts again."""
