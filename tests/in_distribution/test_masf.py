import math
import weakref

import pytest
import torch
from conftest import ARCHITECTURES, random_classifier
from scipy import stats

from faithmeter.errors import InputError
from faithmeter.in_distribution.masf import (
    ROWS_NEEDED,
    MaSF,
    fit_calibrated,
    fit_means,
    fit_paper,
    fit_reference,
    masked_at_random,
    step_features,
)
from faithmeter.in_distribution.p_values import (
    counts,
    fisher,
    fisher_p_value,
    inverse_roots,
    lower_add_one,
    simes,
    sorted_columns,
    two_sided,
    two_sided_add_one,
)
from faithmeter.in_distribution.verdict import DatasetTest, Verdict, dataset_test, dataset_verdict

LAYERS, CHANNELS = 3, 16


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------ combining p-values


def test_simes_is_the_smallest_sorted_p_value_times_n_over_its_rank():
    # sorted .01 .04 .05 .5: .01·4/1 = .04, .04·4/2 = .08, .05·4/3 = .0667, .5·4/4 = .5
    assert simes(t(0.5, 0.04, 0.01, 0.05)).item() == pytest.approx(0.04)
    # sorted .03 .03 .03: .09, .045, .03: equal p-values give themselves
    assert simes(t(0.03, 0.03, 0.03)).item() == pytest.approx(0.03)
    assert simes(t(1, 1)).item() == 1
    assert simes(t(0, 1)).item() == 0
    table = torch.stack([t(0.5, 0.04), t(0.2, 0.04)], dim=1)  # over the first dimension: .08·… of (.5, .04), (.2, .04)
    assert simes(table, dim=0).tolist() == pytest.approx([0.08, 0.08])


def test_fisher_is_minus_two_log_sums_and_its_tail_is_the_upper_one():
    assert fisher(t(0.1, 0.2)).item() == pytest.approx(-2 * math.log(0.02), abs=1e-5)
    # chi2 with 4 degrees has the tail e^(-x/2)(1 + x/2); at x = -2 log .02 that is .02·(1 - log .02)
    assert fisher_p_value(fisher(t(0.1, 0.2)), 2).item() == pytest.approx(0.02 * (1 - math.log(0.02)), abs=1e-6)
    assert fisher(t(1, 1)).item() == pytest.approx(0, abs=1e-7)
    assert fisher_p_value(fisher(t(1, 1)), 2).item() == pytest.approx(1)
    assert fisher(t(0, 1)).item() == pytest.approx(-2 * math.log(1e-8))  # finite: the paper's code adds 1e-8


def test_inverse_roots_are_added_up():
    assert inverse_roots(t(0.25, 0.01, 1)).item() == pytest.approx(2 + 10 + 1)


# ---------------------------------------------------------------------------------------------- empirical CDFs


def test_counts_and_p_values_with_ties_worked_by_hand():
    columns = sorted_columns(torch.tensor([[2.0], [1.0], [2.0], [4.0]]))  # one column: 1 2 2 4
    values = torch.tensor([[0.0, 1, 2, 3, 4, 5]])
    smaller, at_most = counts(columns, values)
    assert smaller.tolist() == [[0, 0, 1, 3, 3, 4]]
    assert at_most.tolist() == [[0, 1, 3, 3, 4, 4]]
    # F = 0 0 ¼ ¾ ¾ 1
    assert two_sided(columns, values).tolist() == [[0, 0, 0.25, 0.25, 0.25, 0]]
    # #≤ + 1 = 1 2 4 4 5 5; #≥ + 1 = 5 5 4 2 2 1; twice the smaller over 5, at most 1
    assert two_sided_add_one(columns, values)[0].tolist() == pytest.approx([0.4, 0.8, 1, 0.8, 0.8, 0.4])
    assert lower_add_one(columns, values)[0].tolist() == pytest.approx([0.2, 0.4, 0.8, 0.8, 1, 1])


def test_binary_search_equals_the_comparison_of_all_with_all():
    generator = torch.Generator().manual_seed(0)
    reference, tested = (torch.randn(n, 64, generator=generator).round(decimals=1) for n in (2000, 400))
    smaller, at_most = counts(sorted_columns(reference), tested.T)
    assert torch.equal(smaller, (reference[:, None] < tested).sum(dim=0).T.int())
    assert torch.equal(at_most, (reference[:, None] <= tested).sum(dim=0).T.int())


# ------------------------------------------------------------------------------------------------------- fitting


def null_rows(rows: int, seed: int, step: int = 0, shift: float = 0.5) -> torch.Tensor:
    """Rows of correlated Gaussian channels that wander off with the masking step."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(rows, 1, 1, 1, generator=generator)
    return torch.randn(rows, LAYERS, 2, CHANNELS, generator=generator) + common + shift * step


def with_means(largest: torch.Tensor, mean: float = 0.0) -> torch.Tensor:
    """Features of which all means are alike."""
    return torch.stack((largest, torch.full_like(largest, mean)), dim=2)


def lengths_of(rows: int) -> torch.Tensor:
    return torch.arange(rows) % 50 + 10


def judge(masf: MaSF, features: torch.Tensor, step: int = 0) -> torch.Tensor:
    """The p-values at the rows' own step."""
    return masf.p_values(features, lengths_of(len(features)), torch.arange(len(features)), step)[0]


def verdict_on(masf: MaSF, features: torch.Tensor, step: int = 0) -> Verdict:
    lengths = lengths_of(len(features))
    return dataset_verdict(masf, *masf.p_values(features, lengths, torch.arange(len(features)), step), lengths, step)


def test_the_papers_form_worked_by_hand():
    # one layer of one channel, 0 1 2 3. Level 1: F = 0 ¼ ½ ¾, min(F, 1 − F) = 0 ¼ ½ ¼. Level 2 of the sorted 0 ¼ ¼ ½:
    # F = 0 ¼ ¾ ¼, two-sided 0 ¼ ¼ ¼. Fisher: −2 log 1e-8 = 36.8, and 2.77 three times.
    masf = fit_paper(with_means(torch.tensor([0.0, 1, 2, 3]).view(4, 1, 1)))
    # of 2: F = 0, p = 1; of 0 and of 9 (channel p = 0): three values are smaller than 36.8, p = ¼
    found = masf.p_values(with_means(torch.tensor([2.0, 0, 9]).view(3, 1, 1)), torch.ones(3), torch.arange(3), 0)[0]
    assert found.tolist() == [1, 0.25, 0.25]


def test_calibrated_p_values_worked_by_hand():
    describe = torch.arange(9.0).view(9, 1, 1)  # 0 … 8; n + 1 = 10
    calibrate = torch.tensor([4.0, 1, 0]).view(3, 1, 1)
    # channel p of 0 and 8: 2·2/10; of 1 and 7: .6; of 2 and 6: .8; of 3, 4, 5: 1
    # the means are all alike: their p-value is 1, which adds 1 to every sum
    reference = fit_reference(
        (with_means(describe), torch.ones(9)), (with_means(calibrate), torch.ones(3)), "calibrated"
    )
    assert reference.layers[0].tolist() == pytest.approx([0.4, 0.4, 0.6, 0.6, 0.8, 0.8, 1, 1, 1])
    # layer p: of 4, 10/10; of 1, 5/10; of 0, 3/10. Σ p^(−½): 1, √2, √(10/3)
    assert reference.atypicality.tolist() == pytest.approx([2, 1 + 2**0.5, 1 + (10 / 3) ** 0.5])
    masf = MaSF("calibrated", ((reference,),), (), (), 0, 12)
    found = masf.p_values(with_means(torch.tensor([2.0, 7, 99]).view(3, 1, 1)), torch.ones(3), torch.arange(3), 0)[0]
    # 2: channel p .8, layer p 7/10, Σ p^(−½) = 1.2: #> = 2, #= = 0, p from 2/4 to 3/4. 7 ties with 1: #> = 1, #= = 1,
    # from 1/4 to 3/4. 99: channel p .2, layer p 1/10, Σ p^(−½) = 3.2: more atypical than all, from 0 to 1/4.
    assert all(low < p < high for p, low, high in zip(found, (0.5, 0.25, 0), (0.75, 0.75, 0.25), strict=True))
    assert len(set(found.tolist())) == 3


def test_p_values_do_not_depend_on_the_batch_nor_on_float_noise_and_come_from_the_seed():
    steps = [null_rows(400, 1, step) for step in range(4)]
    masf = fit_calibrated(steps, lengths_of(400), steps=4, seed=3)
    features, lengths, rows, at = null_rows(60, 9, 2), lengths_of(60), torch.arange(60), torch.arange(60) % 4

    def both(masf: MaSF, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(masf.p_values(features[part], lengths[part], rows[part], at[part]))

    together = both(masf, rows)
    for part in torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(7):
        assert torch.equal(both(masf, part), together[:, part])
    assert torch.equal(both(fit_calibrated(steps, lengths_of(400), steps=4, seed=3), rows), together)
    assert not torch.equal(both(fit_calibrated(steps, lengths_of(400), steps=4, seed=4), rows), together)
    # rows that are all alike up to noise: no noise may make one of them the most extreme ever seen
    alike = torch.full((400, LAYERS, 2, CHANNELS), 0.25)
    noisy = judge(fit_calibrated([alike], lengths_of(400), steps=1), alike + 1e-6)
    assert 0.02 < (noisy <= 0.05).double().mean() < 0.09


def test_a_row_is_outside_only_if_it_is_atypical_for_its_ratio_and_for_every_other():
    masf = fit_calibrated([null_rows(2000, step, step, shift=3) for step in range(11)], lengths_of(2000))

    def shares(seed: int, pretended: int, step: int) -> list[float]:
        found = masf.p_values(null_rows(500, seed, pretended, shift=3), lengths_of(500), torch.arange(500), step)
        assert (found[1] >= found[0]).all()
        return [float((p <= 0.05).double().mean()) for p in found]

    own, outside = shares(20, 4, 4)
    assert outside <= own < 0.09
    own, outside = shares(21, 6, 4)  # like other masked rows, but of another ratio
    assert own > 0.5 > 0.09 > outside
    own, outside = shares(22, 30, 4)  # like nothing seen
    assert min(own, outside) > 0.95
    unmasked = fit_calibrated([null_rows(400, 1)], lengths_of(400), steps=1)  # one reference stands for every ratio
    for p_values in unmasked.p_values(null_rows(9, 2), lengths_of(9), torch.arange(9), 7):
        assert torch.equal(p_values, judge(unmasked, null_rows(9, 2)))


def test_the_test_against_unmasked_rows_is_what_a_fit_on_unmasked_rows_alone_gives():
    steps = [null_rows(6000, 1, step) for step in range(3)]
    found = fit_calibrated(steps, lengths_of(6000), steps=3, seed=2).against_unmasked()
    alone = fit_calibrated(steps[:1], lengths_of(6000), steps=1, seed=2)
    given = null_rows(90, 5, 2), lengths_of(90), torch.arange(90), 2
    for mine, expected in zip(found.p_values(*given), alone.p_values(*given), strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("stored", ["saved", "fitted there", "paper"])
def test_a_stored_test_gives_the_same_p_values(stored, tmp_path):
    steps = [null_rows(6000, 1, step) for step in range(2)]
    if stored == "paper":
        masf = fit_paper(steps[0])
    else:
        masf = fit_calibrated(
            iter(steps), lengths_of(6000), steps=2, folder=tmp_path / "masf" if stored != "saved" else None
        )
        assert len(masf.tercile_edges) == 2
        assert set(masf.tercile_edges) < set(masf.length_edges)
    if stored != "fitted there":
        masf.save(tmp_path / "masf")
    loaded = MaSF.load(tmp_path / "masf")
    assert torch.equal(judge(loaded, null_rows(50, 5)), judge(masf, null_rows(50, 5)))
    assert (loaded.form, loaded.rows) == (masf.form, 6000)
    assert (loaded.length_edges, loaded.tercile_edges) == (masf.length_edges, masf.tercile_edges)
    assert loaded.calibration_rows == masf.calibration_rows
    assert {file.suffix for file in (tmp_path / "masf").iterdir()} == {".safetensors", ".json", ".sum"}


def test_one_step_is_in_memory_at_a_time_while_fitting(tmp_path):
    alive: list[int] = []

    def lazily():
        seen = []
        for step in range(4):
            alive.append(sum(reference() is not None for reference in seen))
            features = null_rows(100, step)
            seen.append(weakref.ref(features))
            yield features
            del features

    fit_calibrated(lazily(), lengths_of(100), steps=4, folder=tmp_path / "masf")
    assert alive == [0, 0, 0, 0]


def test_lengths_make_groups_of_their_own_from_five_thousand_rows_on():
    # long rows have larger features; a short row that looks like a long one is atypical only for its length
    def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.randint(10, 70, (count,), generator=torch.Generator().manual_seed(seed))
        return null_rows(count, seed) + lengths[:, None, None, None] / 5, lengths

    features, lengths = rows(6000, 0)
    masf = fit_calibrated([features], lengths, steps=1)
    assert 3000 <= sum(masf.calibration_rows) < 3100  # 1,000 rows of each group describe
    fresh, fresh_lengths = rows(3000, 1)
    found = masf.p_values(fresh, fresh_lengths, torch.arange(3000), 0)[0]
    for group in range(3):
        assert 0.03 < (found[masf.length_groups(fresh_lengths) == group] <= 0.05).double().mean() < 0.075
    short = fresh_lengths < 15
    strange = fresh[short] + 9, fresh_lengths[short], torch.arange(int(short.sum())), 0
    pretend = masf.p_values(*strange)[0]
    ungrouped = fit_calibrated([features[:4900]], lengths[:4900], steps=1)
    missed = ungrouped.p_values(*strange)[0]
    assert (pretend <= 0.05).double().mean() > 0.8 > 0.2 > (missed <= 0.05).double().mean()


def test_too_few_rows_are_said_in_words_and_next_to_none_refused():
    few = fit_calibrated([null_rows(400, 0)], lengths_of(400), steps=1)
    assert "400 validation texts" in few.caution
    assert "±3.1 points" in few.caution  # 2·sqrt(.0475/200)
    assert fit_calibrated([null_rows(ROWS_NEEDED, 0)], lengths_of(ROWS_NEEDED), steps=1).caution is None
    with pytest.raises(InputError, match="on 3 texts"):
        fit_calibrated([null_rows(3, 0)], lengths_of(3), steps=1)
    with pytest.raises(InputError, match="not finite"):
        fit_paper(torch.full((9, 1, 2, 1), torch.nan))


# ----------------------------------------------------------------------------------------------- level and power


def test_the_calibrated_form_holds_its_level_at_every_step():
    found = []
    for seed in range(5):
        steps = (null_rows(2000, 100 * seed + step, step) for step in range(3))
        masf = fit_calibrated(steps, lengths_of(2000), steps=3)
        fresh = [judge(masf, null_rows(1000, 100 * seed + 50 + step, step), step) for step in range(3)]
        found.append([float((p <= 0.05).double().mean()) for p in fresh])
    mean = torch.tensor(found).mean(dim=0)
    assert ((mean > 0.035) & (mean < 0.065)).all()


def test_rows_with_a_few_atypical_channels_of_one_layer_are_rejected():
    masf = fit_calibrated([null_rows(2000, 0)], lengths_of(2000), steps=1)
    shifted = null_rows(1000, 1)
    shifted[:, 1, 0, :5] += 8
    assert (judge(masf, shifted) <= 0.05).double().mean() > 0.95


def test_a_mean_that_breaks_how_channels_go_together_is_rejected_where_no_channel_is_atypical():
    def rows(count: int, seed: int, sign: float) -> torch.Tensor:
        features = 0.1 * null_rows(count, seed)
        common = torch.randn(count, LAYERS, generator=torch.Generator().manual_seed(seed))
        features[:, :, 1, ::2] += common[..., None]
        features[:, :, 1, 1::2] += sign * common[..., None]
        return features

    masf = fit_calibrated([rows(2000, 0, 1.0)], lengths_of(2000), steps=1)
    assert (judge(masf, rows(500, 1, 1.0)) <= 0.05).double().mean() < 0.09
    assert (judge(masf, rows(500, 1, -1.0)) <= 0.05).double().mean() > 0.9


def test_means_are_measured_in_units_of_their_spread():
    # variances 4 and 1, uncorrelated: with shrinkage .1 towards their mean 2.5, 3.85 and 1.15
    draws = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-2.0, 1.0], [-2.0, -1.0]]) * (3 / 4) ** 0.5
    centre, directions, spread = fit_means(draws[:, None] + 7)
    assert centre.flatten().tolist() == pytest.approx([7, 7])
    assert directions.abs().flatten().tolist() == pytest.approx([0, 1, 1, 0], abs=1e-6)
    assert spread[0, :2].tolist() == pytest.approx([1.15, 3.85], abs=1e-5)


def test_the_verdict_rarely_rejects_typical_splits_and_sees_five_percent_bad_rows_where_simes_is_blind():
    wrong, seen, seen_by_simes, splits, rows = 0, 0, 0, 60, 1000
    for seed in range(splits):
        draw = torch.Generator().manual_seed(seed)
        reference, tested = (with_means(torch.randn(n, 1, 2, generator=draw)) for n in (2000, rows))
        masf = fit_calibrated([reference], lengths_of(2000), steps=1, seed=seed)
        p_values = judge(masf, tested)
        wrong += dataset_verdict(masf, p_values, p_values, lengths_of(rows), 0).random.rejected
        bad = tested[:50].clone()
        bad[:, 0, 0, 0] = 2.7  # atypical, but not beyond everything seen
        p_values[:50] = judge(masf, bad)
        verdict = dataset_verdict(masf, p_values, p_values, lengths_of(rows), 0)
        seen += verdict.random.rejected
        seen_by_simes += verdict.random.simes_p_value <= 0.05
    assert wrong <= 6  # P(more | 5 %) = .03, and the test errs on the safe side
    assert seen >= 0.9 * splits
    assert seen_by_simes <= 0.1 * splits


def test_the_count_law_and_the_rank_test_equal_scipys():
    generator = torch.Generator().manual_seed(0)
    calibration, tested = torch.randn(99, generator=generator), torch.randn(40, generator=generator) + 0.3
    above = (calibration[:, None] > tested).sum(dim=0)
    p_values = (above + torch.rand(40, generator=generator)) / 100
    found = dataset_test([p_values], (99,))
    # a = floor(.05·100) = 5
    below = int((above < 5).sum())
    assert found.count_p_value == pytest.approx(stats.betabinom.sf(below - 1, 40, 5, 95))
    expected = stats.mannwhitneyu(tested, calibration, alternative="greater", method="asymptotic").pvalue
    assert found.rank_p_value == pytest.approx(expected, abs=0.01)
    assert found.dataset_p_value == 2 * min(found.count_p_value, found.rank_p_value)
    halves = dataset_test([p_values[:20], p_values[20:]], (99, 99))  # groups with calibration rows of their own
    assert halves.share_below == found.share_below
    assert halves.count_p_value < found.count_p_value + 0.05


def test_the_rank_test_of_a_few_rows_worked_by_hand():
    # the p-value of a single row is uniform whatever the number m of calibration rows: mean ½, variance 1/12
    for size in (1, 3, 40):
        found = dataset_test([torch.tensor([0.1])], (size,)).rank_p_value
        assert found == pytest.approx(stats.norm.cdf((0.1 - 0.5) * math.sqrt(12)))
    # two rows with m = 3: (m + 1)·p are sums with the variance (2·3·(2 + 3 + 1) + 2)/12 = 38/12, in units of 4² here
    two, variance = torch.tensor([0.25, 0.5]), 38 / 12 / 16
    assert dataset_test([two], (3,)).rank_p_value == pytest.approx(stats.norm.cdf(-0.25 / math.sqrt(variance)))
    # groups are independent: distances from the mean add up, and variances
    both = dataset_test([two, torch.tensor([0.3])], (3, 1)).rank_p_value
    assert both == pytest.approx(stats.norm.cdf(-0.45 / math.sqrt(variance + 1 / 12)))


def test_the_verdict_of_a_step_says_in_words_what_was_found_and_nothing_about_trust():
    masf = fit_calibrated([null_rows(2000, step, step, shift=2) for step in range(11)], lengths_of(2000))
    typical = verdict_on(masf, null_rows(500, 29, 5, shift=2), 5).words
    assert typical.startswith("In-distribution: ")
    assert "trusted" not in typical
    # masked at step 5 but as if at step 7: atypical, and yet nothing that the model has not seen
    other = verdict_on(masf, null_rows(500, 29, 7, shift=2), 5)
    assert other.words.startswith("In-distribution, but not like random masking")
    assert verdict_on(masf, null_rows(500, 29, 40, shift=2), 5).words.startswith("Out-of-distribution: 100.0 %")


def test_rows_of_one_source_calibrate_or_describe_together_and_others_as_ever():
    """Five rows a story, almost the same: cut between rows, a new story looks atypical; cut between stories, not."""
    generator = torch.Generator().manual_seed(0)

    def stories(count):
        story = torch.randn(count, 1, 1, 2, 32, generator=generator)
        rows = story + 0.05 * torch.randn(count, 5, 1, 2, 32, generator=generator)
        return rows.flatten(0, 1), torch.full((5 * count,), 10)

    means, sources = [], torch.arange(40).repeat_interleave(5)
    for seed in range(20):
        (features, lengths), (new, new_lengths) = stories(40), stories(40)
        for known in (None, sources):
            masf = fit_calibrated([features], lengths, steps=1, seed=seed, groups=known)
            means.append(float(masf.p_values(new, new_lengths, torch.arange(len(new)), 0)[0].mean()))
    between_rows, between_stories = torch.tensor(means).reshape(20, 2).mean(dim=0).tolist()
    # a mean p-value of 40 new stories against 20 calibrating ones has a spread of .29 * sqrt(1/40 + 1/20) = .08, so the
    # mean of 20 of them one of .018: three of those either way
    assert between_stories == pytest.approx(0.5, abs=0.054)
    assert between_rows < 0.5 - 0.054
    alone = fit_calibrated([features], lengths, steps=1, groups=torch.arange(200))
    plain = fit_calibrated([features], lengths, steps=1)
    assert torch.equal(alone.references[0][0].atypicality, plain.references[0][0].atypicality)


# ------------------------------------------------------------------------------------------- features of a model


TEXTS = ["The film was great.", "Was the story bad? The plot was very good, it was not awful at all!", "bad"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_and_features_come_from_one_pass_and_do_not_depend_on_the_batch(architecture):
    classifier = random_classifier(architecture)
    encoded = classifier.encode(TEXTS, TEXTS[::-1])
    together = classifier.features(encoded)
    assert together.shape == (3, 3, 2, 32)  # the embedding output and two layers
    alone = torch.cat(
        [classifier.features(classifier.encode([a], [b])) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    )
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    batch = encoded.batch([1])
    classifier.model.eval()
    with torch.no_grad():
        logits, features = classifier.logits_and_features(batch)
        states = classifier.model(**classifier._inputs(batch), output_hidden_states=True).hidden_states
    torch.testing.assert_close(logits, classifier.predict(encoded)[1:2], atol=1e-5, rtol=0)
    # nothing is padded: the plain maximum and mean
    torch.testing.assert_close(features[0, -1, 0], states[-1][0].max(dim=0).values)
    torch.testing.assert_close(features[0, -1, 1], states[-1][0].mean(dim=0))


def test_each_step_masks_exactly_so_many_tokens_and_tells_its_progress():
    classifier = random_classifier("bert")
    encoded, done = classifier.encode(TEXTS), []
    features = list(step_features(classifier, encoded, seed=0, progress=done.append))
    assert len(features) == 11
    assert sum(done) == 11 * 3
    assert torch.equal(features[0], classifier.features(encoded))
    masked = masked_at_random(encoded, 7, (0, 1))
    for row in range(3):
        span = slice(encoded.offsets[row], encoded.offsets[row + 1])
        assert masked.masked[span].sum() == encoded.maskable[span].sum() * 7 // 10
        assert not (masked.masked[span] & ~encoded.maskable[span]).any()
    everything = encoded.masked_by(lambda row, maskable: maskable)
    assert torch.equal(features[10], classifier.features(everything))


def verdict(step, p_value, rows=100):
    test = DatasetTest(rows=rows, share_below=0.1, simes_p_value=1.0, count_p_value=p_value / 2, rank_p_value=1.0)
    return Verdict(step, test, test)
