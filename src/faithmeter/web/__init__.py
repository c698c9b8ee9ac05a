"""The page to explore a model: a small server on this machine (extra `web`)."""
