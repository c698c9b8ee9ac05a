"""BiLSTM-attention: the formulas of the paper, and a classifier of the same kind as any other."""

import gzip

import pytest
import torch
import transformers
from conftest import WORDS
from importance.reference import CONTEXTS, TEXTS, alone, example_batch

from faithmeter import DataSpec, InputError, TrainingOptions, load_classifier, train
from faithmeter.models.from_scratch import bilstm_classifier, word_level_tokenizer
from faithmeter.models.word_vectors import word_vectors
from faithmeter.runs.results import find

LABELS = ("a", "b", "c")
CORPUS = 2 * [" ".join(WORDS), *TEXTS, *CONTEXTS]


def one_direction(lstm, vectors):
    """An LSTM written from its equations: one word after the other."""
    hidden = cell = torch.zeros(lstm.hidden_size)
    states = []
    for vector in vectors:
        gates = lstm.weight_ih_l0 @ vector + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        into, forget, new, out = gates.chunk(4)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states)


def both_directions(encoder, vectors):
    there, back = one_direction(encoder.forwards, vectors), one_direction(encoder.backwards, vectors.flip(0))
    return torch.cat((there, back.flip(0)), dim=-1), torch.cat((there[-1], back[-1]))


def naive_logits(model, tokenizer, ids, types):
    """ROAR App. C.1, Eqs. (4) and (5), for one text."""
    text, context = ids[types == 0], ids[types == 1]
    states, _ = both_directions(model.encoder, model.embedding.weight[text])
    words = [i for i, token in enumerate(text) if int(token) not in model.config.special_token_ids]
    question = None
    if len(context):
        _, question = both_directions(model.context_encoder, model.context_embedding.weight[context])
    energies = []
    for i in words:
        inner = model.attention.weight @ states[i] + model.attention.bias
        if question is not None:
            inner = inner + model.context_attention.weight @ question
        energies.append(model.attention_vector.weight[0] @ inner.tanh())
    weights = torch.stack(energies).softmax(dim=0)
    summary = sum(weight * states[i] for weight, i in zip(weights, words, strict=True))
    if question is not None:
        summary = (model.from_text(summary) + model.from_context(question)).tanh()
    return model.decoder(summary), dict(zip(words, weights, strict=True))


@pytest.mark.parametrize("pairs", [False, True])
def test_logits_and_attention_are_those_of_the_papers_formulas(pairs):
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=pairs, seed=1)
    batch = example_batch(classifier, pairs=pairs)
    with torch.no_grad():
        logits, (layer,) = classifier.logits_and_attentions(batch)
        attention = layer[:, 0, 0]
        for row in range(len(batch)):
            one = alone(batch, row)
            types = one.token_type_ids[0] if pairs else torch.zeros_like(one.input_ids[0])
            expected, weights = naive_logits(classifier.model, classifier.tokenizer, one.input_ids[0], types)
            torch.testing.assert_close(logits[row], expected, atol=1e-5, rtol=1e-5)
            for token in range(batch.input_ids.shape[1]):
                assert attention[row, token] == pytest.approx(float(weights.get(token, 0.0)), abs=1e-6)


def test_rows_are_written_with_the_papers_special_tokens():
    tokenizer = bilstm_classifier(CORPUS, LABELS, pairs=True).tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("a film").input_ids) == ["[CLS]", "a", "film", "[EOS]"]
    pair = tokenizer("a film", "it was")
    assert tokenizer.convert_ids_to_tokens(pair.input_ids) == ["[CLS]", "a", "film", "[SEP]", "it", "was", "[EOS]"]
    assert pair.token_type_ids == [0, 0, 0, 0, 1, 1, 1]


def test_a_text_without_a_word_has_logits_and_no_attention():
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=True)
    batch = classifier.encode(["", "a film"], ["it was", ""]).batch([0, 1])
    with torch.no_grad():
        assert classifier.logits(batch).isfinite().all()
        assert classifier.logits_and_attentions(batch)[1][0][0].sum() == 0


def test_it_is_saved_and_loaded_as_any_model_of_transformers(tmp_path):
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=True, seed=3)
    classifier.save(tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]
    loaded = load_classifier(str(tmp_path), LABELS)
    with torch.no_grad():
        assert torch.equal(*(c.logits(example_batch(c, pairs=True)) for c in (classifier, loaded)))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, use_safetensors=True)
    assert [model.config.id2label[i] for i in range(3)] == list(LABELS)


def test_a_head_that_a_checkpoint_lacks_is_drawn_from_the_seed(tmp_path):
    bilstm_classifier(CORPUS, LABELS, pairs=True).save(tmp_path)
    heads = [
        load_classifier(str(tmp_path), ("x", "y"), new_head=True, seed=seed).model.decoder.weight for seed in (0, 0, 1)
    ]
    assert heads[0].shape[0] == 2
    assert heads[0].abs().max() < 1
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_longer_text_can_be_allowed_than_transformers_take():
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=False, max_length=2000)
    assert classifier.encode(["film " * 3000]).lengths.tolist() == [2000]


def test_single_texts_of_a_pair_model_do_not_depend_on_their_neighbours():
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=True)
    batch = example_batch(classifier)
    with torch.no_grad():
        together = classifier.logits(batch)
        for row in range(len(batch)):
            torch.testing.assert_close(classifier.logits(alone(batch, row))[0], together[row], atol=1e-5, rtol=1e-5)


def test_its_features_are_those_of_text_and_context_and_not_of_padding():
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=True)
    batch = example_batch(classifier, pairs=True)
    _, together = classifier.predict_with_features(batch)
    assert together.shape == (4, 1, 2, 2 * classifier.model.config.hidden_size)
    for row in range(len(batch)):
        _, single = classifier.predict_with_features(alone(batch, row))
        torch.testing.assert_close(single[0], together[row], atol=1e-5, rtol=1e-5)


def test_a_word_that_occurs_once_is_unknown():
    assert "plot" in word_level_tokenizer(["good plot", "plot"], at_least=2).get_vocab()
    assert "good" not in word_level_tokenizer(["good plot", "plot"], at_least=2).get_vocab()


# ------------------------------------------------------------------------- word vectors

GLOVE = "film 1 2 3\n. . . 7 7 7\nplot 4 5 6\nfilm 9 9 9\n"


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.txt.gz", "vectors.vec"])
def test_vectors_are_read_from_glove_and_fasttext_files(tmp_path, name):
    text = ("4 3\n" if name.endswith(".vec") else "") + GLOVE
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    found = word_vectors(tmp_path / name, frozenset({"film", "plot", "story", ". . ."}))
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "film": [1, 2, 3], ". . .": [7, 7, 7], "plot": [4, 5, 6]
    }  # fmt: skip


def test_known_words_begin_with_their_vectors_in_text_and_context(tmp_path):
    (tmp_path / "v.txt").write_text("film 1 2 3\n")
    classifier = bilstm_classifier(CORPUS, LABELS, pairs=True, vectors=tmp_path / "v.txt")
    number = classifier.tokenizer.convert_tokens_to_ids("film")
    for table in (classifier.model.embedding, classifier.model.context_embedding):
        assert table.weight[number].tolist() == [1, 2, 3]
        assert table.weight.shape[1] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("film 1 2 3\nplot 1 2\n", "line 2"),
        ("film 1 2 x\n", "line 1"),
        ("film 1 nan 3\n", "not finite"),
        ("film1 1 2 3\n", "none of the words"),
        ("", "none of the words"),
    ],
)
def test_a_file_that_holds_no_vectors_is_refused_in_words(tmp_path, text, message):
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        word_vectors(tmp_path / "v.txt", frozenset({"film", "plot"}))


def test_vectors_for_another_model_and_a_missing_file_are_refused(tmp_path, write, faithmeter):
    rows = [{"text": f"{word} film", "label": word} for word in ("good", "bad")] * 20
    data = write("data.csv", rows)
    command = ("train", tmp_path / "run", "--data", data, "--vectors", tmp_path / "none.txt")
    code, printed = faithmeter(*command)
    assert (code, "for the model 'bilstm'" in printed) == (2, True)
    code, printed = faithmeter(*command, "--model", "bilstm")
    assert (code, "There is no file" in printed) == (2, True)


# ------------------------------------------------------------------------- what it learns


def test_it_is_trained_tested_and_opened_again_as_any_run(tmp_path, write):
    rows = [{"text": f"{word} film", "label": word} for word in ("good", "bad")] * 40
    (tmp_path / "v.txt").write_text("film 1 2\ngood 1 0\n")
    options = TrainingOptions(epochs=15, learning_rate=0.02)
    run = train(
        tmp_path / "run",
        DataSpec(data=str(write("data.csv", rows))),
        "bilstm",
        options,
        vectors=str(tmp_path / "v.txt"),
    )
    assert run.config.training.optimizer == "amsgrad"
    assert find(run.results, "performance", ratio=0.0)["value"] == 1.0
    assert run.classifier().model.config.embedding_size == 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_generated_babi_1(tmp_path, seed):
    run = train(
        tmp_path / "run",
        DataSpec(task="babi-1"),
        "bilstm",
        TrainingOptions(strategy="plain", validation="unmasked", seed=seed),
    )
    assert find(run.results, "performance", ratio=0.0)["value"] >= 0.95


@pytest.mark.slow
@pytest.mark.shared
def test_on_sst_it_comes_within_4_points_of_the_papers_macro_f1_from_random_embeddings(tmp_path, shared):
    options = TrainingOptions(strategy="plain", validation="unmasked")
    run = train(tmp_path / "run", DataSpec(task="sst", data_dir=str(shared)), "bilstm", options)
    assert find(run.results, "performance", ratio=0.0)["value"] >= 0.78
