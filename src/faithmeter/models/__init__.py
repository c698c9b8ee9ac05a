"""Models: the classifier, where it comes from, what of it is refused, and how it is used without being changed."""
