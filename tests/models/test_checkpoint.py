"""What of a checkpoint is refused: weights that do not fit, other classes, heads that are no softmax, no tokenizer."""

import copy
import json

import pytest
import torch
import transformers
from conftest import ARCHITECTURES, byte_level_bpe, decoder_bpe, random_classifier, sentiment_rows, word_pieces
from safetensors.torch import load_file, save_file

from faithmeter import DataSpec, TrainingOptions, adopt, train
from faithmeter.errors import InputError
from faithmeter.models.checkpoint import is_of_head
from faithmeter.models.classifier import Classifier, load_classifier, outputs_of
from faithmeter.models.from_scratch import bilstm_classifier, small_classifier
from faithmeter.progress import Silent

LABELS = ("negative", "positive")
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 60}


class Heard(Silent):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)

    warn = note


@pytest.fixture
def folder(tmp_path):
    """A BERT that chooses between negative and positive."""
    classifier = random_classifier("bert", classes=2)
    classifier.model.config.id2label = dict(enumerate(LABELS))
    classifier.model.config.label2id = {label: number for number, label in enumerate(LABELS)}
    classifier.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def data(write):
    return DataSpec(data=str(write("rows.jsonl", sentiment_rows(40))))


def change(folder, weights):
    """Let `weights` make others of the weights of a folder."""
    changed = weights(load_file(folder / "model.safetensors"))
    changed = {name: value.contiguous() for name, value in changed.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


LAYER, WORDS = "bert.encoder.layer.1.attention.output.LayerNorm.bias", "bert.embeddings.word_embeddings.weight"
DAMAGES = {
    "wrapped": (lambda found: {f"module.{name}": value for name, value in found.items()}, r"module\.bert\..*left over"),
    "without a layer": (
        lambda found: {name: value for name, value in found.items() if ".layer.1." not in name},
        rf"{LAYER}.*and 13 more are missing",
    ),
    "a layer too many": (
        lambda found: found | {name.replace(".1.", ".2."): value.clone() for name, value in found.items()},
        r"bert\.encoder\.layer\.2\..*left over",
    ),
    "fewer words": (lambda found: found | {WORDS: found[WORDS][:50]}, rf"{WORDS}.* of another shape"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_do_not_fit_are_refused_by_name_by_check_and_by_training(damage, folder, data, tmp_path):
    weights, said = DAMAGES[damage]
    change(folder, weights)
    with pytest.raises(InputError, match=said):
        load_classifier(str(folder), LABELS)
    with pytest.raises(InputError, match=said):
        adopt(tmp_path / "run", str(folder), data)
    for labels in (LABELS, ("a", "b", "c")):  # a new head does not make up for a body
        with pytest.raises(InputError, match=said):
            load_classifier(str(folder), labels, new_head=True)
    assert not (tmp_path / "run").exists()


def test_a_lost_head_is_refused_and_never_answers_at_random(folder, data, tmp_path, faithmeter):
    change(folder, lambda found: {name: value for name, value in found.items() if name.startswith("bert.")})
    code, printed = faithmeter("check", folder, "--data", data.data, "--run", tmp_path / "run")
    assert code == 2
    assert "classifier.bias, classifier.weight are missing" in " ".join(printed.split())
    with pytest.raises(InputError, match="are missing"):  # not by training either, which is told that it has a head
        load_classifier(str(folder), LABELS, new_head=True)


def test_constants_and_poolers_that_nothing_reads_are_no_fault(tmp_path):
    classifier = random_classifier("roberta")
    classifier.save(tmp_path)
    expected = classifier.predict(classifier.encode(["good film"]))
    more = {
        "roberta.embeddings.position_ids": torch.arange(130)[None],
        "roberta.pooler.dense.weight": torch.zeros(32, 32),
    }
    change(tmp_path, lambda found: found | more)
    loaded = load_classifier(str(tmp_path), ("a", "b", "c"))
    assert torch.equal(loaded.predict(loaded.encode(["good film"])), expected)


# ------------------------------------------------------------------------------------------------ classes


@pytest.mark.parametrize("labels", [("positive", "negative"), ("negative", "neutral", "positive"), ("no", "yes")])
def test_labels_in_another_order_or_number_are_refused_with_both_lists(labels, folder):
    said = rf"\(negative, positive\) and not \({', '.join(labels)}\).*new_head=True"
    with pytest.raises(InputError, match=said):
        load_classifier(str(folder), labels)
    assert load_classifier(str(folder), LABELS).labels == LABELS


def test_classes_without_names_may_be_named_but_not_counted_otherwise(tmp_path):
    random_classifier("bert").save(tmp_path)
    assert load_classifier(str(tmp_path), ("a", "b", "c")).labels == ("a", "b", "c")
    with pytest.raises(InputError, match=r"\(LABEL_0, LABEL_1, LABEL_2\) and not \(a, b\)"):
        load_classifier(str(tmp_path), ("a", "b"))


@pytest.mark.parametrize("labels", [("ham", "spam"), ("positive", "negative"), ("a", "b", "c")])
def test_other_classes_get_a_whole_new_head_on_the_same_body_and_it_is_said(labels, folder):
    before, loaded = (
        load_file(folder / "model.safetensors"),
        load_classifier(str(folder), labels, new_head=True, seed=1),
    )
    after = loaded.model.state_dict()
    assert loaded.notes == ("A new head is learnt: classifier.bias, classifier.weight were drawn at random.",)
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("bert."))
    drawn = after["classifier.weight"]
    assert drawn.shape[0] == len(labels)
    assert 0.01 < drawn.std() < 0.04  # as BERT draws: 0.02
    assert not torch.isin(drawn, before["classifier.weight"]).any()
    again, other = (load_classifier(str(folder), labels, new_head=True, seed=seed) for seed in (1, 2))
    assert torch.equal(again.model.classifier.weight, drawn)
    assert not torch.equal(other.model.classifier.weight, drawn)


def test_a_head_of_the_same_classes_is_kept_by_training(folder):
    kept = load_classifier(str(folder), LABELS, new_head=True, seed=1)
    assert torch.equal(kept.model.classifier.weight, load_file(folder / "model.safetensors")["classifier.weight"])
    assert not kept.notes


@pytest.mark.parametrize("build", [small_classifier, lambda *given: bilstm_classifier(*given, pairs=True)])
def test_a_model_from_scratch_keeps_its_body_under_a_new_head(build, tmp_path):
    classifier = build(["good film bad film good bad"] * 2, LABELS)
    classifier.save(tmp_path)
    loaded = load_classifier(str(tmp_path), ("a", "b"), new_head=True)
    before = dict(classifier.model.named_parameters())
    same = {name for name, value in loaded.model.named_parameters() if torch.equal(value, before[name])}
    assert {name for name in before if not is_of_head(classifier.model, name)} <= same
    assert not same & {name for name in before if is_of_head(classifier.model, name) and name.endswith("weight")}


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "t5"])
def test_every_pretrained_form_is_a_start_for_training_whose_body_is_whole(architecture, tmp_path):
    classifier = random_classifier(architecture)
    mappings = (
        transformers.MODEL_MAPPING,
        transformers.MODEL_FOR_PRETRAINING_MAPPING,
        transformers.MODEL_FOR_MASKED_LM_MAPPING,
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
        transformers.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    )
    config = type(classifier.model.config)
    for kind in {mapping[config] for mapping in mappings if config in mapping}:
        pretrained = kind(copy.deepcopy(classifier.model.config))
        pretrained.save_pretrained(tmp_path / kind.__name__)
        classifier.tokenizer.save_pretrained(tmp_path / kind.__name__)
        with pytest.raises(InputError, match=r"no (classification head yet|head that answers).*new_head=True"):
            load_classifier(str(tmp_path / kind.__name__), ("a", "b", "c"))
        loaded = load_classifier(str(tmp_path / kind.__name__), ("a", "b", "c"), new_head=True)
        assert any("A new head is learnt" in note for note in loaded.notes)
        before = pretrained.base_model.state_dict()
        for name, value in loaded.model.base_model.state_dict().items():
            assert torch.equal(value, before[name]) if name in before else "pooler" in name


def test_a_head_on_tokens_is_not_taken_for_one_on_texts(tmp_path):
    tokens = transformers.BertForTokenClassification(transformers.BertConfig(**BERT, num_labels=2))
    tokens.save_pretrained(tmp_path)
    word_pieces().save_pretrained(tmp_path)
    loaded = load_classifier(str(tmp_path), LABELS, new_head=True)
    assert not torch.equal(loaded.model.classifier.weight, tokens.classifier.weight)
    assert "and 1 more were drawn" in loaded.notes[0]  # a pooler, which it had none of, and the head


# ----------------------------------------------------------------------------------- heads that are no softmax


OTHER_HEADS = {
    "multi-label": {"problem_type": "multi_label_classification"},
    "regression": {"problem_type": "regression"},
}


@pytest.mark.parametrize("head", OTHER_HEADS)
def test_a_head_of_another_problem_than_the_data_is_refused_in_a_sentence(head, folder, data, tmp_path):
    configure(folder, **OTHER_HEADS[head])
    assert outputs_of(str(folder), "classes") is None
    with pytest.raises(InputError, match=rf"has a {head} head.* and not a head that chooses one of several classes"):
        load_classifier(str(folder), LABELS, problem="classes")
    option = {"multi-label": "--labels COLUMN,COLUMN", "regression": "--number COLUMN"}[head]
    with pytest.raises(InputError, match=rf"has a {head} head.*data has classes.*misread.*{option}.*faithmeter train"):
        adopt(tmp_path / "run", str(folder), data)


def test_a_softmax_is_not_read_as_labels_nor_as_a_number(folder, data, tmp_path):
    configure(folder, problem_type="single_label_classification")
    for problem in ("labels", "number"):
        assert outputs_of(str(folder), problem) is None
        with pytest.raises(InputError, match=r"has a head that chooses one of several classes \(softmax\), and not"):
            load_classifier(str(folder), LABELS, problem=problem)


def test_where_a_config_does_not_say_what_its_outputs_are_the_data_decides_and_that_is_told(folder):
    configure(folder, problem_type=None)
    assert load_classifier(str(folder), LABELS).problem.name == "classes"
    assert outputs_of(str(folder), "number") is None  # which has one output
    classifier = load_classifier(str(folder), LABELS, problem="labels")
    assert classifier.problem.name == "labels"
    assert any("does not say whether its outputs exclude each other" in note for note in classifier.notes)


def test_a_head_with_one_output_is_a_number_and_never_a_class(tmp_path, data):
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**BERT, num_labels=1))
    assert Classifier(model, word_pieces()).problem.name == "number"
    model.save_pretrained(tmp_path / "model")
    word_pieces().save_pretrained(tmp_path / "model")
    with pytest.raises(InputError, match=r"has a regression head.*data has classes.*--number COLUMN"):
        adopt(tmp_path / "run", str(tmp_path / "model"), data)
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(InputError, match=r"multi-label head.*a single output.*problem_type=\"regression\""):
        Classifier(model, word_pieces())
    three = transformers.BertConfig(**BERT, num_labels=3, problem_type="regression")
    with pytest.raises(InputError, match="regression head with 3 outputs"):
        Classifier(transformers.BertForSequenceClassification(three), word_pieces())


@pytest.mark.parametrize(
    ("kind", "does"),
    [
        (transformers.BertForTokenClassification, "labels each token"),
        (transformers.BertForMaskedLM, "predicts masked words"),
        (transformers.BertForQuestionAnswering, "marks an answer in a text"),
        (transformers.BertLMHeadModel, "writes the next word"),
    ],
)
def test_a_folder_with_a_head_that_does_not_answer_for_a_text_is_refused_by_what_it_does(kind, does, tmp_path, data):
    kind(transformers.BertConfig(**BERT, is_decoder=kind is transformers.BertLMHeadModel)).save_pretrained(tmp_path)
    word_pieces().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"{kind.__name__}, which {does}.*Train it first: `faithmeter train"):
        adopt(tmp_path / "run", str(tmp_path), data)


@pytest.mark.parametrize("head", OTHER_HEADS)
def test_training_gives_a_model_whose_head_is_no_softmax_a_new_one_and_says_so(head, folder, data, tmp_path):
    configure(folder, **OTHER_HEADS[head])
    heard = Heard()
    run = train(tmp_path / "run", data, str(folder), TrainingOptions(epochs=1), reporter=heard)
    assert any(f"a {head} head" in line and "A new head is learnt: classifier.bias" in line for line in heard.said)
    assert run.classifier().labels == LABELS


@pytest.mark.parametrize(
    "kind",
    [
        transformers.BertForTokenClassification,
        transformers.BertForMaskedLM,
        transformers.BertModel,
        transformers.BertForQuestionAnswering,
        transformers.BertForMultipleChoice,
    ],
)
def test_an_encoder_that_does_not_classify_texts_is_refused_by_name(kind):
    with pytest.raises(InputError, match=rf"{kind.__name__} does not classify whole texts.*faithmeter train"):
        Classifier(kind(transformers.BertConfig(**BERT)), word_pieces())


def test_a_language_model_in_memory_is_refused_by_name():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=320))
    with pytest.raises(InputError, match="GPT2LMHeadModel does not classify whole texts"):
        Classifier(model, decoder_bpe())


def test_a_model_of_ones_own_that_answers_for_each_token_is_refused():
    class Tagger(transformers.BertForTokenClassification):
        pass

    with pytest.raises(InputError, match=r"Tagger gives logits of the shape \(1, \d+, 2\)"):
        Classifier(Tagger(transformers.BertConfig(**BERT)), word_pieces())


# ------------------------------------------------------------------------------------------ no tokenizer files


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "t5"])
def test_a_folder_without_tokenizer_files_is_refused(architecture, tmp_path):
    random_classifier(architecture).model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"tokenizer"):
        load_classifier(str(tmp_path), ("a", "b", "c"))


def test_a_t5_without_tokenizer_files_is_refused(tmp_path):
    shape = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "vocab_size": 104}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**shape)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="knows no words"):
        load_classifier(str(tmp_path), ("a", "b", "c"), new_head=True)


def test_check_and_train_refuse_a_model_without_tokenizer_files_in_a_sentence(folder, data, tmp_path, faithmeter):
    for file in folder.glob("*token*"):
        file.unlink()
    for command in (("check", folder, "--run", tmp_path / "run"), ("train", tmp_path / "run", "--model", folder)):
        code, printed = faithmeter(*command, "--data", data.data)
        said = " ".join(printed.split())
        assert (code, "knows no words" in said, "tokenizer.save_pretrained" in said) == (2, True, True), printed
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_in_memory_without_words_is_refused():
    empty = transformers.BertTokenizer()
    with pytest.raises(InputError, match="knows no words"):
        Classifier(random_classifier("bert").model, empty)
    assert byte_level_bpe().get_vocab()  # and one of bytes and pieces is none such
    assert random_classifier("roberta").encode(["good"]).maskable.any()


# ------------------------------------------------------------------------------------------------- spoilt folders


def cut_to(length):
    return lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:length]
    )


def more_words(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["surplus"] = max(tokenizer["model"]["vocab"].values()) + 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def written_as(name, content):
    return lambda folder: (folder / name).write_text(content)


SPOILT = {
    "weights cut": (cut_to(5000), r"could not be loaded: its files are damaged.*Fetch or save it again"),
    "weights of four bytes": (cut_to(4), "its files are damaged"),
    "weights empty": (cut_to(0), "its files are damaged"),
    "a negative size": (lambda f: configure(f, hidden_size=-8), "its files are damaged"),
    "no heads": (lambda f: configure(f, num_attention_heads=0), "its files are damaged"),
    "layers in words": (lambda f: configure(f, num_hidden_layers="two"), "its files are damaged"),
    "an unknown activation": (lambda f: configure(f, hidden_act="zz"), "its files are damaged"),
    "classes with gaps": (lambda f: configure(f, id2label={"0": "a", "5": "b"}), r"classes \[0, 5\].*id2label"),
    "a list of classes": (lambda f: configure(f, id2label=["a", "b"]), "its files are damaged"),
    "quantised": (
        lambda f: configure(f, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"is quantised \(gptq\).*give \(model, tokenizer, data\)",
    ),
    "more words than embeddings": (more_words, r"knows 61 tokens.*embeddings for 60: it cannot read 'surplus'"),
    "a tokenizer config that is a list": (written_as("tokenizer_config.json", "[]"), "its files are damaged"),
    "a longest text in words": (
        written_as("tokenizer_config.json", '{"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": "x"}'),
        "model_max_length of its tokenizer is 'x'",
    ),
    "an index that is a list": (written_as("model.safetensors.index.json", "[]"), "its files are damaged"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_folder_that_is_spoilt_is_refused_in_a_sentence(folder, spoilt):
    spoil, why = SPOILT[spoilt]
    spoil(folder)
    with pytest.raises(InputError, match=why):
        load_classifier(str(folder), LABELS)


@pytest.mark.parametrize("other", ["pytorch_model.bin", "../model/pytorch_model.bin", "../elsewhere.safetensors"])
def test_an_index_that_names_a_pickle_or_a_file_elsewhere_is_refused(folder, other, monkeypatch):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "another.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    save_file(weights, folder.parent / "elsewhere.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, other)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(InputError, match=r"index.json of .* names .*a pickle file can run any code"):
        load_classifier(str(folder), LABELS)


def test_a_model_in_several_safetensors_is_read(folder):
    whole = load_classifier(str(folder), LABELS)
    (folder / "model.safetensors").unlink()
    whole.model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    again = load_classifier(str(folder), LABELS)
    assert torch.equal(again.vocabulary(), whole.vocabulary())
