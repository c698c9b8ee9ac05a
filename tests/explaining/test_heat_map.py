import pytest
from conftest import read
from hypothesis import given
from hypothesis import strategies as st

from faithmeter.explaining.heat_map import heat_map, visible

NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "<b>\"quoted\" & 'single'</b>",
    "null\x00byte and bell\x07",
    "right \u202eto left\u202c and \u2066isolated\u2069",
    "{{ 7 * 7 }} {% raw %}",
    "]]> <!-- -->",
)


def shown(text: str) -> str:
    """The text with what cannot be seen made visible."""
    return read(visible(text)).text


@pytest.mark.parametrize("text", NASTY)
def test_markup_and_control_characters_are_shown_as_text(text):
    found = read(heat_map(text, [(0, 3, 1.0), (3, len(text), -0.5)]))
    assert set(found.tags) == {"span"}
    assert found.attributes <= {"class", "data-n", "dir", "style", "title"}
    assert found.text == shown(text)
    assert not set(found.text) & set("\x00\x07\u202e\u2066")


@given(st.text(), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.floats(-9, 9)), max_size=5))
def test_any_text_keeps_its_characters_and_gains_no_tag(text, pieces):
    spans, at = [], 0
    for gap, length, importance in pieces:
        start, at = at + gap, at + gap + length
        if at <= len(text):
            spans.append((start, at, importance))
    found = read(heat_map(text, spans))
    assert found.text == shown(text)
    assert set(found.tags) == {"span"}
    assert len(found.tags) == 1 + len(spans)


def test_colours_say_sign_and_strength():
    html = heat_map("good bad film", [(0, 4, 2.0), (5, 8, -1.0), (9, 13, 0.0)])
    assert 'rgba(213,94,0,0.85)" title="+2.000">good' in html
    assert 'rgba(0,114,178,0.42)" title="-1.000">bad' in html
    assert '<span data-n="2" style="background:rgba(0,114,178,0.00)" title="+0.000">film' in html


def test_pieces_of_one_character_are_shown_once():
    # byte-level tokens of one emoji all have its place
    assert read(heat_map("a 😀 b", [(0, 1, 1.0), (2, 3, 1.0), (2, 3, 0.5), (4, 5, 0.1)])).text == "a 😀 b"
