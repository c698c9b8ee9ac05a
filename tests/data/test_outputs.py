"""Several labels at once, and numbers, as people write them in files."""

import numpy as np
import pytest

from faithmeter import DataSpec
from faithmeter.data.splits import load_splits, require_data
from faithmeter.errors import InputError


def comments(count: int = 20) -> list[dict]:
    """Comments of which every second is toxic and every fourth a threat, and none of the fourths toxic alone."""
    return [
        {
            "text": f"comment {number}",
            "toxic": number % 2,
            "threat": int(number % 4 == 3),
            "kinds": [name for name, told in (("toxic", number % 2), ("threat", number % 4 == 3)) if told],
            "stars": 1 + number % 5 / 2,
        }
        for number in range(count)
    ]


def gold_by_text(splits) -> dict[str, list]:
    return {row["text"]: row["label"] for part in ("train", "validation", "test") for row in getattr(splits, part)}


def test_columns_of_0_and_1_and_a_column_of_lists_say_the_same(write):
    rows = comments()
    file = str(write("comments.jsonl", rows))
    ticked, listed = (load_splits(DataSpec(data=file, labels=labels)) for labels in ("threat,toxic", "kinds"))
    assert ticked.labels == listed.labels == ("threat", "toxic")
    assert gold_by_text(ticked) == {row["text"]: [row["threat"], row["toxic"]] for row in rows}
    assert gold_by_text(listed) == gold_by_text(ticked)
    assert ticked.task.metric == "label-micro-f1"
    assert any("of 13 training rows have none of the labels" in note for note in ticked.notes)


@pytest.mark.parametrize("written", ["toxic,threat", "toxic; threat", "toxic|threat", '[""toxic"", ""threat""]'])
def test_a_cell_of_a_csv_file_lists_labels_with_commas_or_as_json(write, written):
    cells = [("", "threat", "toxic", written)[number % 4] for number in range(24)]
    file = write("comments.csv", [{"text": f"comment {i}", "kinds": cell} for i, cell in enumerate(cells)])
    gold = gold_by_text(load_splits(DataSpec(data=str(file), labels="kinds")))
    assert [gold[f"comment {number}"] for number in range(4)] == [[0, 0], [1, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize("yes", ["1", "1.0", "True", "true "])
def test_whether_a_text_has_a_label_may_be_a_number_or_true(write, yes):
    rows = [{"text": f"c {i}", "a": yes if i % 2 else "0", "b": yes if i % 3 else "false"} for i in range(20)]
    gold = gold_by_text(load_splits(DataSpec(data=str(write("c.csv", rows)), labels="a,b")))
    assert [gold[f"c {number}"] for number in range(3)] == [[0, 0], [1, 1], [0, 1]]


def test_a_rare_label_stays_in_train(write):
    rows = [{"text": f"c {i}", "a": int(i == 7), "b": int(i == 8), "c": i % 2} for i in range(50)]
    for seed in range(5):
        spec = DataSpec(data=str(write("c.jsonl", rows)), labels="a,b,c", train_rows=4, seed=seed)
        splits = load_splits(spec)
        assert np.sum(splits.train["label"], axis=0)[:2].tolist() == [1, 1]
        assert any("No test text has 'a' or 'b'" in note for note in splits.notes)


def test_a_number_is_read_as_it_is(write):
    rows = comments()
    splits = load_splits(DataSpec(data=str(write("c.csv", rows)), number="stars"))
    assert splits.labels == ("stars",)
    assert splits.task.metric == "r2"
    assert gold_by_text(splits) == {row["text"]: [row["stars"]] for row in rows}


def test_labels_in_a_models_order_are_the_same_labels(write):
    splits = load_splits(DataSpec(data=str(write("c.jsonl", comments())), labels="threat,toxic"))
    turned = splits.in_order_of(("toxic", "threat"))
    assert turned.labels == ("toxic", "threat")
    assert gold_by_text(turned) == {text: gold[::-1] for text, gold in gold_by_text(splits).items()}
    assert splits.in_order_of(("toxic", "insult")) is None
    assert splits.in_order_of(("LABEL_0", "LABEL_1")).labels == ("threat", "toxic")
    assert splits.in_order_of(("toxic", "threat", "insult")) is None


BAD = {
    "a column too few": ({}, "toxic,threat,insult", r"no column 'insult'.*--labels"),
    "not 0 or 1": ({"toxic": -1}, "toxic,threat", r"row 1: the column 'toxic' holds -1 where 0 or 1 is expected"),
    "no list": ({"kinds": 3}, "kinds", r"row 1: the column 'kinds' holds 3 where a list of labels is expected"),
    "half a list": ({"kinds": '["toxic"'}, "kinds", r"no list of labels"),
    "missing": ({"kinds": None}, "kinds", r"holds None where a list of labels"),
    "one column of 0 and 1": ({}, "toxic", r"a list of labels is expected.*--labels\s+toxic,threat"),
    "the same column twice": ({}, "toxic,toxic", r"name each column once"),
    "the text itself": ({}, "text,toxic", r"'text' is used twice"),
}


@pytest.mark.parametrize("fault", BAD)
def test_labels_that_cannot_be_read_are_refused_in_a_sentence(write, fault):
    changed, labels, said = BAD[fault]
    rows = comments()
    rows[0] |= changed
    with pytest.raises(InputError, match=said):
        load_splits(DataSpec(data=str(write("c.jsonl", rows)), labels=labels))


def test_one_column_of_0_and_1_in_a_csv_file_is_a_choice_between_classes(write):
    with pytest.raises(InputError, match=r"labels \(0, 1\), and several labels are expected.*--label"):
        load_splits(DataSpec(data=str(write("c.csv", comments())), labels="toxic"))


def test_a_label_of_no_or_of_every_training_row_is_refused(write):
    for value, which in ((0, "no"), (1, "every")):
        rows = [row | {"always": value} for row in comments()]
        with pytest.raises(InputError, match=f"{which} training row has the label 'always'"):
            load_splits(DataSpec(data=str(write("c.jsonl", rows)), labels="toxic,always"))


def test_a_label_that_only_test_rows_have_is_refused(write):
    strange = write("test.jsonl", [{"text": "x", "kinds": ["spam"]}, {"text": "y", "kinds": []}])
    spec = DataSpec(data=str(write("c.jsonl", comments())), test_data=str(strange), labels="kinds")
    with pytest.raises(InputError, match="the label 'spam' is in test but never in train"):
        load_splits(spec)


@pytest.mark.parametrize(
    ("value", "said"), [("good", "'good'"), ("", "nothing"), (None, "nothing"), ("nan", "'nan'"), ("inf", "'inf'")]
)
def test_what_is_no_number_is_refused_with_its_row(write, value, said):
    rows = comments()
    rows[2]["stars"] = value
    with pytest.raises(
        InputError, match=rf"row 3: the column 'stars' holds {said} where a number is expected.*--label"
    ):
        load_splits(DataSpec(data=str(write("c.jsonl", rows)), number="stars"))


def test_a_number_that_never_changes_is_refused(write):
    rows = [row | {"stars": 3} for row in comments()]
    with pytest.raises(InputError, match="every training row has the number 3"):
        load_splits(DataSpec(data=str(write("c.jsonl", rows)), number="stars"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"labels": "a,b", "number": "stars"}, "--labels and --number name two kinds of answers"),
        ({"number": "stars", "label": "class"}, "--number and --label name two kinds"),
        ({"number": "stars", "classes": "1=one"}, "--classes is for data with one class per text"),
        ({"labels": "a,b", "clean_labels": True}, "--clean-labels is for data with one class"),
        ({"number": "stars", "metric": "accuracy"}, r"no metric 'accuracy' for --number COLUMN.*r2"),
        ({"labels": "a,b", "metric": "r2"}, "no metric 'r2' for --labels"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        DataSpec(data="file.csv", **options)


def test_a_metric_of_numbers_is_refused_for_classes(write):
    spec = DataSpec(data=str(write("c.csv", comments())), label="toxic", metric="r2")
    with pytest.raises(InputError, match="no metric 'r2' for --label COLUMN"):
        spec.resolved()


def test_a_missing_column_is_refused_before_libraries_are_loaded(write):
    with pytest.raises(InputError, match="no column 'insult'"):
        require_data(DataSpec(data=str(write("c.csv", comments())), labels="toxic,insult"))


def test_data_that_was_stored_before_there_were_labels_and_numbers_has_classes():
    stored = {"task": None, "data": "reviews.csv", "text": "text", "label": "label", "metric": "accuracy", "seed": 0}
    assert DataSpec.read(stored).problem == "classes"
    assert DataSpec(data="reviews.csv").metric == "accuracy"


def test_a_column_of_lists_is_not_read_as_classes(write):
    with pytest.raises(InputError, match=r"row 1: the column 'kinds' holds a list.*--labels kinds"):
        load_splits(DataSpec(data=str(write("c.jsonl", comments())), label="kinds"))


def test_many_classes_with_decimals_are_told_to_look_like_a_number(write):
    rows = [{"text": f"c {i}", "score": f"{i % 25 / 4}"} for i in range(400)]
    assert any(
        "--number" in note for note in load_splits(DataSpec(data=str(write("c.csv", rows)), label="score")).notes
    )
    few = [row | {"score": f"{i % 5 / 2}"} for i, row in enumerate(rows)]
    assert not any(
        "--number" in note for note in load_splits(DataSpec(data=str(write("d.csv", few)), label="score")).notes
    )
