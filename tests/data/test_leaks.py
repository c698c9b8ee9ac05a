"""Leaks: the label inside the input, and test texts that were seen in training, are told before training."""

import json
from functools import partial

import pytest
from conftest import SHARED, sentiment_rows

from faithmeter import DataSpec
from faithmeter.data.splits import _tell_leaks, load_splits
from faithmeter.progress import Silent

TEN = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
ROWS = [
    {"text": f"{a} {b} films", "label": ("bad", "fine")[(i + j) % 2]}
    for i, a in enumerate(TEN)
    for j, b in enumerate(TEN)
]


class Listener(Silent):
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def warnings_for(tmp_path, rows, test=None, *, known=False, **spec):
    def written(name, table):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in table))
        return str(tmp_path / name)

    beside = {} if test is None else {"test_data": written("test.jsonl", test)}
    listener = Listener()
    load_splits(DataSpec(data=written("all.jsonl", rows), **beside, **spec), labels_known=known, reporter=listener)
    return listener.warnings


def test_clean_data_is_not_warned_about(tmp_path):
    assert warnings_for(tmp_path, ROWS) == []


def test_a_label_in_the_text_is_told_with_its_count(tmp_path):
    rows = [{**row, "text": f"{row['text']} ({row['label'].upper()})"} for row in ROWS]
    (warning,) = warnings_for(tmp_path, rows)
    assert warning.startswith("The label is in the text of 64 of 64 training rows, and in 0 another one:")


def test_a_label_in_the_context_under_another_name_is_told(tmp_path):
    rows = [{**row, "verdict": row["label"]} for row in ROWS]
    (warning,) = warnings_for(tmp_path, rows, context="verdict")
    assert warning.startswith("The label is in the context of 64 of 64 training rows")


def test_a_number_and_several_labels_in_the_text_are_told(tmp_path):
    numbers = [{"text": f"{row['text']}: {place / 4:g} stars", "stars": place / 4} for place, row in enumerate(ROWS)]
    assert "label is in the text of 64 of 64" in warnings_for(tmp_path, numbers, number="stars")[0]
    labels = [
        {
            "text": f"{row['text']}{' rude' * (place % 2)}{' mad' * (place % 3 > 0)}",
            "tags": ["rude"] * (place % 2) + ["mad"] * (place % 3 > 0),
        }
        for place, row in enumerate(ROWS)
    ]
    assert "The label is in the text of" in warnings_for(tmp_path, labels, labels="tags")[0]


def test_labels_that_texts_mention_among_others_are_no_leak(tmp_path):
    rows = [{"text": f"{row['text']} are bad or fine", "label": row["label"]} for row in ROWS]
    assert warnings_for(tmp_path, rows) == []
    rows = [
        {**row, "text": row["text"] + (" are finely bad" if place % 3 == 0 else "")} for place, row in enumerate(ROWS)
    ]
    assert warnings_for(tmp_path, rows) == []  # a third of them, of both classes


def test_test_texts_that_are_in_train_are_told_whatever_their_case_and_spaces(tmp_path):
    test = [{**row, "text": row["text"].upper().replace(" ", "  ")} for row in ROWS[:7]]
    test += [{"text": f"{row['text']} again", "label": row["label"]} for row in ROWS[:3]]
    (warning,) = warnings_for(tmp_path, ROWS, test)
    assert warning.startswith("7 of 10 test texts are also in train or validation (but for case and spaces)")


def test_a_pair_is_seen_only_if_both_its_texts_are(tmp_path):
    rows = [{**row, "about": "a premise"} for row in ROWS]
    other = [{**row, "about": "another"} for row in ROWS[:10]]
    assert warnings_for(tmp_path, rows, other, context="about") == []
    assert "10 of 10 test texts" in warnings_for(tmp_path, rows, rows[:10], context="about")[0]


def test_a_run_that_exists_is_not_warned_about_again(tmp_path):
    assert warnings_for(tmp_path, ROWS, ROWS[:10], known=True) == []
    assert "test texts are also in train" in warnings_for(tmp_path, sentiment_rows(400))[0]  # few texts are possible


def test_a_text_in_a_hundred_is_a_note_and_no_warning(tmp_path):
    test = [{"text": f"{row['text']} {turn}", "label": row["label"]} for turn in range(2) for row in ROWS]
    assert warnings_for(tmp_path, ROWS, [*test, ROWS[0]]) == []
    spec = DataSpec(data=str(tmp_path / "all.jsonl"), test_data=str(tmp_path / "test.jsonl"))
    assert any(note.startswith("1 of 201 test texts are also") for note in load_splits(spec).notes)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "repeated"), [("sst2", []), ("cb", []), ("cola", ["16 of 1043"]), ("tweeteval-hate", ["236 of 2970"])]
)
def test_no_label_is_found_in_the_texts_of_well_known_data_and_repeated_texts_are(name, repeated, monkeypatch):
    listener = Listener()
    monkeypatch.setattr("faithmeter.data.splits._tell_leaks", partial(_as_own, _tell_leaks))
    load_splits(DataSpec(task=name, data_dir=str(SHARED)), reporter=listener)
    assert [warning.split(" test texts")[0] for warning in listener.warnings] == repeated


def _as_own(tell, tables, reporter, *, own):
    return tell(tables, reporter, own=True)
