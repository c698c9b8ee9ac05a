"""The level of the in-distribution test for short and long texts, for texts of one story, and at every ratio."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import random_classifier
from safetensors.torch import load_file, save_file

from faithmeter.errors import InputError
from faithmeter.in_distribution import masf as module
from faithmeter.in_distribution.masf import MaSF, atypicality, fit_calibrated, masked_at_random
from faithmeter.in_distribution.p_values import design_effect
from faithmeter.in_distribution.verdict import dataset_verdict, footing
from faithmeter.masking import Purpose, random_stream

LAYERS, CHANNELS = 2, 8


def texts(count: int, seed: int, shift: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features that stray the further the fewer tokens a text has, and the lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 80, (count,), generator=generator)
    noise = torch.randn(count, LAYERS, 2, CHANNELS, generator=generator)
    return noise * (10 / lengths.sqrt())[:, None, None, None] + shift, lengths


def own(masf: MaSF, features: torch.Tensor, lengths: torch.Tensor, step: int = 0) -> torch.Tensor:
    return masf.p_values(features, lengths, torch.arange(len(features)), step)[0]


def by_fifth(p_values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.stack([(p_values[lengths.sub(5).div(15).floor() == k] <= 0.05).double().mean() for k in range(5)])


def levels(size: int, fits: int) -> torch.Tensor:
    found = []
    for seed in range(fits):
        masf = fit_calibrated([texts(size, 2 * seed)[0]], texts(size, 2 * seed)[1], steps=1, seed=seed)
        found.append(by_fifth(own(masf, *texts(1000, 2 * seed + 1)), texts(1000, 2 * seed + 1)[1]))
    return torch.stack(found).mean(dim=0)


def test_from_300_texts_on_the_level_holds_in_every_fifth_of_length(monkeypatch):
    # a fifth's level has a spread of sqrt(.0475/30) = 4 points from fit to fit, so the mean of 60 fits one of .5
    assert ((levels(300, 60) - 0.05).abs() < 0.02).all()
    monkeypatch.setattr(module, "LENGTH_GROUPS", 1)  # as it was: calibrated together, short texts pay for long ones
    together = levels(300, 20)
    assert together[0] > 0.12
    assert together[4] < 0.02


def test_atypical_texts_are_found_as_before_with_texts_calibrated_by_length(monkeypatch):
    (features, lengths), (odd, odd_lengths) = texts(300, 0), texts(500, 1, shift=6)
    by_length = own(fit_calibrated([features], lengths, steps=1), odd, odd_lengths)
    monkeypatch.setattr(module, "LENGTH_GROUPS", 1)
    together = own(fit_calibrated([features], lengths, steps=1), odd, odd_lengths)
    found, before = ((p_values <= 0.05).double().mean() for p_values in (by_length, together))
    assert found > 0.9
    assert found > before - 0.03


@pytest.mark.parametrize(("size", "groups"), [(50, 1), (100, 1), (130, 2), (300, 5), (2000, 5)])
def test_there_are_five_groups_of_length_from_300_texts_on_and_fewer_of_fewer(size, groups):
    features, lengths = texts(size, 0)
    masf = fit_calibrated([features], lengths, steps=1)
    assert len(masf.calibration_rows) == groups
    assert sum(masf.calibration_rows) == size - size // 2
    assert len(fit_calibrated([features], torch.full((size,), 9), steps=1).calibration_rows) == 1  # nothing to cut


def test_groups_of_length_are_cut_without_a_look_at_the_texts_that_calibrate():
    features, lengths = texts(300, 0)
    masf = fit_calibrated([features], lengths, steps=1, seed=4)
    calibrates = torch.from_numpy(random_stream(4, Purpose.REFERENCE_HALVES).permutation(300)[150:].copy())
    others = lengths.clone()
    others[calibrates] = 79
    assert fit_calibrated([features], others, steps=1, seed=4).length_edges == masf.length_edges
    others[:] = 79 - lengths
    assert fit_calibrated([features], others, steps=1, seed=4).length_edges != masf.length_edges


def test_p_values_are_those_of_a_naive_count_among_texts_of_the_same_group_of_length():
    features, lengths = texts(300, 0)
    masf = fit_calibrated([features], lengths, steps=1, seed=4)
    (reference,) = masf.references[0]
    drawn = random_stream(4, Purpose.REFERENCE_HALVES).permutation(300).tolist()
    describe, calibrate = sorted(drawn[:150]), drawn[150:]
    ordered = sorted(lengths[describe].tolist())
    edges = [ordered[30], ordered[60], ordered[90], ordered[120]]  # fifths of the 150 that describe
    assert masf.length_edges == tuple(edges)
    fresh, fresh_lengths = texts(40, 1)
    fresh[:9], fresh_lengths[:9] = features[calibrate[:9]], lengths[calibrate[:9]]  # ties
    grid = [torch.round(values, decimals=3) for values in (features, fresh)]
    before, now = (
        atypicality(reference, values, sizes, "calibrated").tolist()
        for values, sizes in zip(grid, (lengths, fresh_lengths), strict=True)
    )
    found = own(masf, fresh, fresh_lengths).tolist()
    for row in range(40):
        group = sum(edge <= fresh_lengths[row] for edge in edges)
        peers = [before[i] for i in calibrate if sum(edge <= lengths[i] for edge in edges) == group]
        larger, equal = (sum(test(s) for s in peers) for test in (now[row].__lt__, now[row].__eq__))
        uniform = random_stream(4, Purpose.TIES, row).random()
        assert found[row] == pytest.approx((larger + uniform * (1 + equal)) / (len(peers) + 1), abs=1e-5)


def test_a_length_that_no_calibrating_text_has_gives_a_p_value_of_pure_chance():
    features, lengths = texts(300, 0)
    masf = fit_calibrated([features], lengths, steps=1)
    (reference,) = masf.references[0]
    kept = int(reference.sizes[0])
    emptied = replace(
        reference, sizes=torch.tensor([0, *reference.sizes[1:]]), atypicality=reference.atypicality[kept:]
    )
    masf = replace(masf, references=((emptied,),))
    odd, odd_lengths = texts(400, 1, shift=50)
    p_values = own(masf, odd, odd_lengths)
    short = masf.length_groups(odd_lengths) == 0
    assert float(p_values[short].mean()) == pytest.approx(0.5, abs=0.1)
    assert p_values[~short].max() < 0.05


def stored_as(folder, number, *left_out):
    """Turn a stored test into one of another format, without what that did not store."""
    header = json.loads((folder / "masf.json").read_text())
    kept = {name: value for name, value in header.items() if name not in left_out}
    (folder / "masf.json").write_text(json.dumps({**kept, "format": number}))
    for file in folder.glob("*.safetensors"):
        tensors = {name: one for name, one in load_file(file).items() if name.split(".")[0] not in left_out}
        save_file(tensors, file)
    for file in folder.glob("*.sum"):
        file.unlink()


def test_an_in_distribution_test_of_an_unknown_format_is_refused_in_words(tmp_path):
    features, lengths = texts(100, 0)
    fit_calibrated([features], lengths, steps=1, folder=tmp_path / "masf")
    stored_as(tmp_path / "masf", 1)
    with pytest.raises(InputError, match="run `faithmeter check` again"):
        MaSF.load(tmp_path / "masf")


def test_a_test_of_the_format_before_lengths_judges_as_it_did(tmp_path):
    lengths = torch.full((100,), 20)
    steps = [texts(100, step, 3.0 * step)[0] for step in range(11)]
    fit_calibrated(steps, lengths, folder=tmp_path / "masf")
    stored_as(tmp_path / "masf", 2, "tercile_edges", "design_effect", "sizes")
    masf = MaSF.load(tmp_path / "masf")
    given = texts(60, 50)[0], lengths[:60], torch.arange(60)
    own, outside = masf.p_values(*given, 4)
    table = masf.p_value_table(*given)
    assert torch.equal(own, table[4])
    assert torch.equal(outside, torch.maximum(table[4], table[-1]))  # its own ratio and the mixture, and no other


# ------------------------------------------------------------------------------------------------- every ratio


def steps_of(count: int, seed: int, shift: float) -> list[torch.Tensor]:
    return [texts(count, seed + step, shift * step)[0] / 3 for step in range(11)]


def test_outside_is_the_largest_p_value_of_every_ratio_and_their_mixture():
    lengths = torch.full((400,), 20)
    masf = fit_calibrated(steps_of(400, 0, 9.0), lengths)
    unmasked = texts(200, 50)[0] / 3
    given = unmasked, lengths[:200], torch.arange(200)
    table = masf.p_value_table(*given)
    assert table.shape == (12, 200)
    for step in (0, 3, 10):
        mine, outside = masf.p_values(*given, step)
        assert torch.equal(mine, table[step])
        # asked about only where a text is atypical at its own ratio: elsewhere it is not out-of-distribution anyway
        assert torch.equal(outside, torch.where(mine <= 0.05, table.max(dim=0).values, mine))
        alone = replace(masf, references=(masf.references[step],), anywhere=())
        assert torch.equal(alone.p_values(*given, 0)[0], table[step])
    assert torch.equal(replace(masf, references=(masf.anywhere,), anywhere=()).p_values(*given, 0)[0], table[-1])
    # unmasked texts are typical of 0 % and of nothing else: out-of-distribution at no ratio, though the mixture, of
    # which they are an eleventh, may find them atypical
    mine, outside = masf.p_values(*given, 5)
    assert (mine <= 0.05).double().mean() > 0.9
    assert (outside <= 0.05).double().mean() <= 0.08


def test_a_step_that_masks_nothing_is_never_atypical_and_the_text_itself_may_be():
    classifier = random_classifier("bert")
    encoded = classifier.encode(["bad plot", "The film was great, it was not awful at all.", "the story"] * 20)
    lengths = torch.from_numpy(encoded.lengths)
    features = [classifier.features(masked_at_random(encoded, step, (0, 1))) for step in range(11)]
    masf = fit_calibrated(features, lengths)
    batch = encoded.batch([0, 1])
    odd = features[0][:2] + 30
    for step in (0, 3, 10):
        mine, outside = masf.walk_p_values(batch, odd, step)
        expected = 1.0 if step else 0.1
        assert ((mine == 1) if step else (mine < expected)).all()
        assert ((outside == 1) if step else (outside < expected)).all()
    half = batch.with_masked(batch.maskable & (torch.arange(batch.maskable.shape[1]) % 2 == 0))
    assert (masf.walk_p_values(half, odd, 5)[1] < 0.1).all()
    # a vector of steps, as one text's walk has
    mine, _ = masf.walk_p_values(batch, odd, torch.tensor([0, 4]))
    assert mine[0] < 0.1
    assert mine[1] == 1


# ------------------------------------------------------------------------------------------- stories and authors


def test_the_design_effect_worked_by_hand_and_by_a_naive_analysis_of_variance():
    values, groups = torch.tensor([1.0, 1, 5, 5]), torch.tensor([7, 7, 3, 3])
    assert design_effect(values, groups) == pytest.approx(2)  # two pairs of equal values: as good as two values
    assert design_effect(values, torch.arange(4)) == 1
    assert design_effect(values, torch.zeros(4)) == 4  # one group tells no more than one value
    assert design_effect(torch.tensor([1.0, 5, 1, 5]), groups) == 1  # less alike than by chance counts as chance
    assert design_effect(torch.ones(4), groups) == 1
    random = np.random.default_rng(0)
    names = random.integers(0, 12, 60)
    drawn = random.normal(size=12)[names] + random.normal(size=60)
    parts = [drawn[names == name] for name in np.unique(names)]
    between = sum(len(p) * (p.mean() - drawn.mean()) ** 2 for p in parts) / (len(parts) - 1)
    within = sum(((p - p.mean()) ** 2).sum() for p in parts) / (60 - len(parts))
    squares = sum(len(p) ** 2 for p in parts)
    typical = (60 - squares / 60) / (len(parts) - 1)
    correlation = (between - within) / (between + (typical - 1) * within)
    found = design_effect(torch.from_numpy(drawn), torch.from_numpy(names))
    assert found == pytest.approx(1 + correlation * (squares / 60 - 1), abs=1e-5)


def stories(count: int, seed: int, alike: float = 0.9, shift: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Five texts of growing length a story, alike but for a tenth."""
    generator = torch.Generator().manual_seed(seed)
    story = torch.randn(count, 1, LAYERS, 2, CHANNELS, generator=generator)
    text = torch.randn(count, 5, LAYERS, 2, CHANNELS, generator=generator)
    features = alike**0.5 * story + (1 - alike) ** 0.5 * text + shift
    return features.flatten(0, 1), torch.tensor([10, 20, 30, 40, 50]).repeat(count), torch.arange(count * 5) // 5


def test_a_story_describes_or_calibrates_as_a_whole():
    groups = torch.tensor([5, 5, 5, 9, 9, 2, 2, 2, 2, 4] * 10) + 10 * torch.arange(10).repeat_interleave(10)
    for seed in range(5):
        describes = module._describing(groups, 50, seed)
        assert not set(groups[describes].tolist()) & set(groups[~describes].tolist())
        assert 46 <= describes.sum() <= 50  # a story of four may not fit in
    with pytest.raises(InputError, match="100 rows of 1 stories or authors"):
        module._describing(torch.zeros(100), 50, 0)


def test_the_verdict_on_texts_of_stories_holds_its_level_and_finds_what_is_atypical():
    counted = np.zeros(4)
    for seed in range(120):
        features, lengths, groups = stories(60, 2 * seed)
        masf = fit_calibrated([features], lengths, steps=1, groups=groups, seed=seed)
        for at, shift in ((0, 0.0), (2, 1.5)):
            fresh, fresh_lengths, fresh_groups = stories(40, 2 * seed + 1, shift=shift)
            given = (*masf.p_values(fresh, fresh_lengths, torch.arange(200), 0), fresh_lengths, 0)
            counted[at] += dataset_verdict(masf, *given, fresh_groups).random.rejected
            counted[at + 1] += dataset_verdict(replace(masf, design_effect=1.0), *given).random.rejected
    level, ignored, power, _ = counted / 120
    assert level < 0.1  # 5 %, and 2.5 standard errors of 2 points
    assert ignored > 0.13  # texts of a story taken for independent
    assert power > 0.9


def test_texts_that_are_stories_of_their_own_are_judged_as_ever():
    features, lengths, _ = stories(40, 0)
    masf = fit_calibrated([features], lengths, steps=1)
    assert masf.design_effect == 1
    given = (*masf.p_values(*stories(20, 1)[:2], torch.arange(100), 0), stories(20, 1)[1], 0)
    assert dataset_verdict(masf, *given, torch.arange(100)) == dataset_verdict(masf, *given)


# ---------------------------------------------------------------------------------------------------- few texts


def test_what_a_verdict_can_rest_on_with_few_texts_and_with_many():
    few, some, many = (footing(fit_calibrated([texts(n, 0)[0]], texts(n, 0)[1], steps=1), 200) for n in (50, 300, 2000))
    assert (few.length_groups, some.length_groups, many.length_groups) == (1, 5, 5)
    assert few.level[1] > some.level[1] > many.level[1] > 0.05 > many.level[0] > some.level[0] > few.level[0]
    assert few.needed > some.needed > many.needed > 10
    assert few.words.startswith(
        "Fitted on 50 texts, the test calls between 0 and 16 % of typical texts atypical at 5 %"
    )  # Beta(1.3, 24.7)
    assert "for each fifth of length 300 texts are needed" in few.words
    assert "texts of about one length" in some.words
    assert f"Of 200 texts {many.needed} must be atypical" in many.words


def test_the_number_of_atypical_texts_that_is_needed_is_what_the_verdict_rejects_from():
    features, lengths = texts(300, 0)
    masf = fit_calibrated([features], torch.full_like(lengths, 9), steps=1)
    needed = footing(masf, 100).needed
    for count in (needed - 1, needed):
        p_values = torch.full((100,), 0.9, dtype=torch.float64)
        p_values[:count] = 0.0
        test = dataset_verdict(masf, p_values, p_values, torch.full((100,), 9), 0).random
        assert (test.count_p_value <= 0.05 / 22) == (count == needed)
