"""Which measure is named as the one to use: by what is sure of its area, not by the area that was found."""

from faithmeter.reports.sentences import recommended, verdict
from faithmeter.runs.results import Result, most_faithful


def rows(*areas):
    """The ACU rows of (measure, value, low, high)."""
    return [
        Result(
            kind="acu", value=value, metric="accuracy", n=10, measure=name, low=low, high=high, over="observations"
        ).as_row()
        for name, value, low, high in areas
    ]


# found on few texts, beam has the larger area and the wider interval
BY_FEW = rows(("beam", 0.50, 0.30, 0.70), ("loo-signed", 0.45, 0.43, 0.47), ("grad-l2", 0.35, 0.30, 0.37))


def test_the_most_faithful_measure_is_the_one_with_the_highest_lower_end_not_the_highest_value():
    assert most_faithful(BY_FEW) == "loo-signed"
    assert most_faithful(BY_FEW, among=("beam", "grad-l2")) == "beam"  # both lower ends are 0.30: the first
    assert most_faithful(rows(("beam", 0.50, 0.29, 0.70), ("grad-l2", 0.35, 0.30, 0.37))) == "grad-l2"


def test_the_measure_that_a_report_says_to_use_is_the_surest_one():
    assert recommended(BY_FEW) == "loo-signed"
    assert verdict(BY_FEW)[0] == "Use loo-signed to explain this model."


def test_a_measure_without_an_interval_wins_only_where_no_other_has_one():
    one_text, equal_texts = ("beam", 0.9, None, None), ("search", 0.8, 0.8, 0.8)
    assert most_faithful(rows(one_text, equal_texts, ("grad-l2", 0.1, -0.1, 0.3))) == "grad-l2"
    assert most_faithful(rows(equal_texts, one_text)) == "beam"
    assert most_faithful([]) is None
