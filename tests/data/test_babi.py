import gzip
import json
from collections import Counter

import pytest

from faithmeter.data.babi import PLACES, Reader, generate


def answer(row, task):
    reader = Reader()
    for number, statement in enumerate(row["context"]):
        reader.read(number, statement)
    return reader.questions(task).get(row["question"])


@pytest.mark.shared
@pytest.mark.parametrize(("task", "split"), [(t, s) for t in (1, 2, 3) for s in ("train", "test")])
def test_the_reader_gives_the_published_answer_and_facts_for_every_published_question(shared, task, split):
    with gzip.open(shared / f"babi/qa{task}/{split}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    wrong = [row for row in rows if answer(row, task) != (row["answer"], row["supporting"])]
    assert not wrong


@pytest.mark.shared
@pytest.mark.parametrize("task", [1, 2, 3])
def test_generated_questions_use_the_words_of_the_published_ones_and_no_others(shared, task):
    def words(rows):
        return {word for row in rows for text in (*row["context"], row["question"]) for word in text.split()}

    with gzip.open(shared / f"babi/qa{task}/train.jsonl.gz", "rt", encoding="utf-8") as file:
        published = [json.loads(line) for line in file]
    assert words(generate(task, 1000, seed=0)) == words(published)


@pytest.mark.shared
def test_task_1_asks_about_facts_as_old_as_in_the_published_file(shared):
    def ages(rows):
        counts = Counter(len(row["context"]) - row["supporting"][0] for row in rows)
        return [counts[age] / len(rows) for age in range(1, 7)]

    with gzip.open(shared / "babi/qa1/train.jsonl.gz", "rt", encoding="utf-8") as file:
        published = ages([json.loads(line) for line in file])
    # 10,000 rows each: four standard errors of a share are at most 0.02
    assert ages(generate(1, 10_000, seed=0)) == pytest.approx(published, abs=0.02)


@pytest.mark.parametrize("task", [1, 2, 3])
def test_generated_answers_follow_from_their_supporting_facts(task):
    for row in generate(task, 300, seed=1):
        assert answer(row, task) == (row["answer"], row["supporting"])
        assert row["answer"] in PLACES
        assert len(row["supporting"]) == task
        assert len(row["context"]) - max(row["supporting"]) <= 5


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    assert generate(2, 50, seed=3) == generate(2, 50, seed=3)
    assert generate(2, 50, seed=3) != generate(2, 50, seed=4)


def test_answers_are_balanced_over_the_six_places():
    counts = Counter(row["answer"] for row in generate(1, 6000, seed=0))
    assert set(counts) == set(PLACES)
    assert min(counts.values()) > 850  # 1000 expected, standard deviation 29


def test_a_fourth_task_is_refused():
    with pytest.raises(ValueError, match="only tasks 1, 2 and 3"):
        generate(4, 1, seed=0)
