"""Groups of texts, and rows whose order in the file does not matter."""

import json
import random

import numpy as np
import pytest
from conftest import sentiment_rows

from faithmeter import DataSpec, InputError
from faithmeter.data.batch import Encoded
from faithmeter.data.splits import SPLITS, _nearest_sum, load_splits
from faithmeter.runs.texts import numbered_groups


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def by_authors(count=200, authors=25):
    """Rows of authors who wrote 1 to 20 of them."""
    chosen = random.Random(0).choices(range(authors), weights=range(1, authors + 1), k=count)
    return [{**row, "author": f"author {number}"} for row, number in zip(sentiment_rows(count), chosen, strict=True)]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_author_is_in_two_splits_and_their_sizes_are_as_asked(tmp_path, seed):
    rows = by_authors()
    splits = load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), group="author", seed=seed))
    authors = [set(getattr(splits, part)["group"]) for part in SPLITS]
    assert not authors[0] & authors[1] | authors[0] & authors[2] | authors[1] & authors[2]
    assert sum(len(getattr(splits, part)) for part in SPLITS) == 200
    assert len(splits.test) == 40  # these authors can be put together to exactly 20 %
    assert len(splits.validation) == 32
    assert any("of 200 training rows were set aside for it, of" in note for note in splits.notes)


def test_groups_are_taken_so_that_their_sum_is_nearest():
    assert _nearest_sum([5, 3, 4, 2], 6) == [2, 3]  # 4 + 2, and not 5
    assert _nearest_sum([7, 4, 4], 6) == [0]  # one more is nearer than two fewer
    assert _nearest_sum([4, 4, 9], 6) == [0]  # as near as 8, and fewer
    assert _nearest_sum([13, 14], 6) == []
    assert _nearest_sum([1, 2, 3], 3) == [0, 1]  # the first ones that can
    many = [1, 2] * 1500
    assert sum(many[number] for number in _nearest_sum(many, 1001)) == 1001


def test_the_seed_decides_which_authors_are_set_aside(tmp_path):
    file = written(tmp_path / "a.jsonl", by_authors())
    first, again, other = (
        set(load_splits(DataSpec(data=file, group="author", seed=s)).test["group"]) for s in (0, 0, 1)
    )
    assert first == again != other


def test_without_groups_rows_in_the_order_of_the_file_split_as_they_always_did(tmp_path):
    rows = [{"text": f"text {number}", "label": str(number % 2)} for number in range(20)]
    splits = load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), row_order="file", seed=3))
    order = np.random.default_rng([3, 20]).permutation(20).tolist()
    front = [next(i for i in order if i % 2 == order[0] % 2), next(i for i in order if i % 2 != order[0] % 2)]
    order = [*front, *(i for i in order if i not in front)]
    assert splits.test["text"][:] == [f"text {i}" for i in sorted(order[16:])]


@pytest.mark.parametrize("group", [None, "author"])
def test_a_shuffled_file_has_the_same_splits_in_the_same_order(tmp_path, group):
    rows = by_authors(60, 12)
    spec = {"group": group, "train_rows": 20}
    straight = load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), **spec))
    random.Random(1).shuffle(rows)
    file = written(tmp_path / "b.jsonl", rows)
    shuffled = load_splits(DataSpec(data=file, **spec))
    for part in SPLITS:
        assert getattr(straight, part).to_list() == getattr(shuffled, part).to_list()
    assert straight.fingerprint == shuffled.fingerprint
    assert load_splits(DataSpec(data=file, row_order="file", **spec)).fingerprint != shuffled.fingerprint


def test_rows_of_given_files_are_ordered_and_kept_columns_follow_their_rows(tmp_path):
    rows = [{**row, "why": number} for number, row in enumerate(sentiment_rows(40))]
    of_row = {number: row["text"] for number, row in enumerate(rows)}
    found = []
    for name in "ab":
        file = written(tmp_path / f"{name}.jsonl", rows)
        found.append(load_splits(DataSpec(data=file, test_data=file), keep=("why",)).test.to_list())
        random.Random(1).shuffle(rows)
    assert found[0] == found[1]
    assert all(of_row[row["why"]] == row["text"] for row in found[0])
    assert [row["why"] for row in found[0]] != list(range(40))


def test_an_empty_cell_is_a_group_of_its_own_and_told_once(tmp_path):
    rows = by_authors(100, 10)
    for number in range(0, 100, 3):
        rows[number]["author"] = ("", "  ", None)[number % 9 // 3]
    splits = load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), group="author"))
    assert [note for note in splits.notes if "no author" in note] == [
        "34 of 100 rows have no author: each is a group of its own."
    ]
    assert "" in splits.train["group"][:]
    assert "" in splits.test["group"][:]
    assert numbered_groups(["b", "", "a", "", "b"]).tolist() == [0, 1, 2, 3, 0]


def test_numbers_are_groups_and_spaces_around_a_name_are_not(tmp_path):
    names = [1, 1.0, "1", " 1 "] * 5 + [2, float("nan"), None, ""] * 5
    rows = [{**row, "by": name} for row, name in zip(sentiment_rows(40), names, strict=True)]
    file = written(tmp_path / "a.jsonl", rows)
    splits = load_splits(DataSpec(data=file, test_data=file, validation_data=file, group="by", row_order="file"))
    assert splits.test["group"][:] == ["1"] * 20 + ["2", "", "", ""] * 5
    assert "2 of 2 groups of test texts (by) are in train or validation, too." in splits.notes


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ("writer", "no column 'writer'; it has 'text', 'label', 'author'.*--group"),
        ("text", "'text' is used twice, as text and as group"),
        ("label", "'label' is used twice, as label and as group"),
    ],
)
def test_a_group_that_is_none_is_refused(tmp_path, group, says):
    with pytest.raises(InputError, match=says):
        load_splits(DataSpec(data=written(tmp_path / "a.jsonl", by_authors(40)), group=group))


def test_texts_may_be_grouped_by_their_context(tmp_path):
    rows = [{**row, "premise": f"premise {number // 4}"} for number, row in enumerate(sentiment_rows(80))]
    splits = load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), context="premise", group="premise"))
    assert not set(splits.test["context"]) & {*splits.train["context"], *splits.validation["context"]}


def test_too_few_groups_are_refused_with_what_to_do(tmp_path):
    rows = [{**row, "author": f"{number % 2}"} for number, row in enumerate(sentiment_rows(40))]
    with pytest.raises(InputError, match=r"40 rows are of 2 groups, too few.*finer column with --group"):
        load_splits(DataSpec(data=written(tmp_path / "a.jsonl", rows), group="author"))


def test_another_group_of_the_same_text_is_other_data(tmp_path):
    rows = by_authors(60, 12)
    file = written(tmp_path / "a.jsonl", rows)
    spec = DataSpec(data=file, test_data=file, validation_data=file, group="author")
    before = load_splits(spec).fingerprint
    written(tmp_path / "a.jsonl", [{**rows[0], "author": "somebody else"}, *rows[1:]])
    assert load_splits(spec).fingerprint != before


def test_rows_that_look_like_stories_are_told_of_where_no_group_is_named(tmp_path):
    rows = [
        {"text": f"story {number // 4} " + "goes on " * (number % 4), "label": str(number % 2)} for number in range(40)
    ]
    file = written(tmp_path / "a.jsonl", rows)
    notes = " ".join(load_splits(DataSpec(data=file)).notes)
    assert "30 of 40 rows (train) begin like the row before" in notes
    assert "begin like" not in " ".join(load_splits(DataSpec(data=file, row_order="file")).notes)


def test_options_name_the_group_and_only_the_order_of_old_runs():
    assert DataSpec(data="a.csv", group="author").options["group"] == "author"
    assert "row_order" not in DataSpec(data="a.csv").options
    assert DataSpec.read({"data": "a.csv"}).options["row_order"] == "file"
    assert DataSpec.read({"data": "a.csv"}).group is None
    assert DataSpec.read({"task": "babi-1"}) == DataSpec(task="babi-1")
    with pytest.raises(InputError, match="no order of rows 'line': choose content or file"):
        DataSpec(data="a.csv", row_order="line")


def test_sources_are_the_groups_of_the_data_where_it_names_them():
    ids = np.array([5, 5, 6, 7])
    rows = Encoded(ids, None, np.zeros(4, dtype=np.int8), np.zeros(4, dtype=bool), np.array([0, 1, 3, 4]), ids[:3], 0)
    assert rows.sources().tolist() == [0, 0, 1]  # the second text begins with the first
    named = Encoded(**{**vars(rows), "groups": np.array([0, 1, 0])})
    assert named.sources().tolist() == [0, 1, 0]
    assert named.joined(named).sources().tolist() == [0, 1, 0, 2, 3, 2]
    assert named.joined(rows).groups is None
