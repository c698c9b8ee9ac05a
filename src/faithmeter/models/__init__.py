"""Models: the classifier, its sources, its checks, and how it is used without being changed."""
