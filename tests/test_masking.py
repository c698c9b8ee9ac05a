import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from faithmeter.masking import Purpose, masked_count, random_count_mask, random_ratio_mask, random_stream

booleans = st.lists(st.booleans(), max_size=600).map(lambda bits: np.array(bits, dtype=np.bool_))


def test_counts_are_whole_numbers_where_floats_round_down():
    # int(0.7 * 90) is 62, because 0.7 * 90 is 62.99999999999999
    assert masked_count(90, 7) == 63


@given(booleans, st.integers(0, 10))
def test_a_step_masks_exactly_its_share_and_only_maskable_tokens(maskable, step):
    mask = random_count_mask(maskable, step, 10, random_stream(0, 5))
    assert mask.sum() == maskable.sum() * step // 10
    assert not (mask & ~maskable).any()


@given(booleans, st.integers(1, 10))
def test_a_later_step_masks_what_the_earlier_one_did(maskable, step):
    earlier = random_count_mask(maskable, step - 1, 10, random_stream(0, 5))
    later = random_count_mask(maskable, step, 10, random_stream(0, 5))
    assert not (earlier & ~later).any()


@given(booleans, st.integers(0, 1000))
def test_a_random_ratio_masks_only_maskable_tokens(maskable, row):
    assert not (random_ratio_mask(maskable, random_stream(0, row)) & ~maskable).any()


def test_the_masked_share_is_uniform_from_none_to_all():
    maskable = np.ones(400, dtype=np.bool_)
    shares = np.array([random_ratio_mask(maskable, random_stream(0, row)).mean() for row in range(2000)])
    # a uniform share has mean 1/2, deviation 1/sqrt(12) = .289, and a tenth of it lies in each tenth
    assert abs(shares.mean() - 0.5) < 4 * 0.289 / np.sqrt(2000)
    counts, _ = np.histogram(shares, bins=10, range=(0, 1))
    assert counts.min() > 145
    assert counts.max() < 255


def test_a_stream_belongs_to_its_keys_alone():
    assert random_stream(1, 2, 3).random() == random_stream(1, 2, 3).random()
    assert random_stream(1, 2, 3).random() != random_stream(1, 2, 4).random()
    assert random_stream(1, 2).random() != random_stream(1, 2, 1).random()


def test_every_purpose_has_a_number_of_its_own():
    assert len({int(purpose) for purpose in Purpose.__members__.values()}) == len(Purpose.__members__)
