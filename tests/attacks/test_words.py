"""A text as words and gaps: nothing is lost, and only the word that is meant changes."""

from hypothesis import given
from hypothesis import strategies as st

from faithmeter.attacks.words import divided


def test_words_are_runs_of_letters_and_digits_with_apostrophes_inside():
    words, spans = divided("It's  a well-made film, 'n 24h!")
    assert words.words == ("It's", "a", "well", "made", "film", "n", "24h")
    assert words.gaps == ("", "  ", " ", "-", " ", ", '", " ", "!")
    assert spans[0] == (0, 4)
    assert spans[-1] == (27, 30)


def test_a_mark_belongs_to_the_letter_before_it_and_an_emoji_is_no_word():
    assert divided("e\u0301te\u0301 ❤️ 👍🏽")[0].words == ("e\u0301te\u0301",)
    assert divided("?! …")[0].words == ()


def test_a_deleted_word_takes_one_space_with_it_and_no_more():
    words, _ = divided("a bad, bad  film")
    assert words.without(1).text == "a, bad  film"
    assert words.without(2).text == "a bad,  film"
    assert words.without(0).text == "bad, bad  film"
    assert words.without(3).text == "a bad, bad "
    assert words.without(1).changed == {1}


def test_a_changed_word_leaves_all_others_where_they_were():
    words, _ = divided(" Was it good?\n")
    assert words.with_words({2: "bad"}).text == " Was it bad?\n"
    assert words.with_words({0: "it", 1: "Was"}).changed == {0, 1}


@given(st.text())
def test_any_text_is_its_words_and_gaps_again(text):
    words, spans = divided(text)
    assert words.text == text
    assert tuple(text[start:end] for start, end in spans) == words.words
    assert len(words.gaps) == len(words.words) + 1
    assert all(word[0].isalnum() for word in words.words)
    assert not any(character.isalnum() for gap in words.gaps for character in gap)
