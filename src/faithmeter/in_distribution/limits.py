"""What a verdict needs: numbers of texts, and how confident a model may be that has nothing to read."""

# In nats. For models trained on masks (a toy, bAbI-1, MiniLM on SST2) the upper ends of the intervals were 0.005 to
# 0.02, for the same trained without masks the lower ends 0.23 (SST2) to 3.5 (the toy). Chosen on
# these six alone: it was 0.25 until the plain SST2 model stayed below it.
EXCESS_ALLOWED = 0.05
# What a pass needs to be a verdict, in validation texts and in test texts. Fitted on 100 validation texts, the test
# detected 89 % of the texts with half of their tokens random words; on 50, 50 %; on 20, 24 %. With 100 test texts it
# rejects a split of which 14 are atypical; of 20 it takes 6, and of 4 it takes 3 (a 22nd of the level for each of two
# tests at eleven ratios). A rejection needs no number: the level holds for any.
TEXTS_FOR_A_VERDICT = 100
TEXTS_TO_FIND_HALF = 50  # validation texts, below which the test misses most of the texts just described


def too_few(validation: float, tested: float) -> str | None:
    """Return why these numbers of texts give no verdict in favour of masking; None if they do."""
    if min(validation, tested) >= TEXTS_FOR_A_VERDICT:
        return None
    missed = f" Fitted on fewer than {TEXTS_TO_FIND_HALF}, it misses most texts with half of their tokens random words."
    return (
        f"Too few texts for a verdict: the test was fitted on {validation:.0f} and applied to {tested:.0f}, and "
        f"{TEXTS_FOR_A_VERDICT} of each are needed.{missed if validation < TEXTS_TO_FIND_HALF else ''}"
    )
