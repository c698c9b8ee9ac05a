"""Adapters: a small patch of a frozen model, which loads with peft, and merged gives the same numbers."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from conftest import ARCHITECTURES, TOKENIZERS, WITHOUT_MASK
from safetensors.torch import load_file, save_file

from faithmeter.errors import InputError
from faithmeter.models.classifier import Classifier, load_classifier
from faithmeter.models.lora import Lora, target_modules

peft = pytest.importorskip("peft")
LABELS = ("bad", "fair", "good")
LORA = Lora(rank=4, alpha=8.0)
TEXTS = ["the film was great", "it was not a very good story at all", "bad"]
ADAPTED = ("bert", "roberta", "distilbert", "electra", "deberta", "modernbert", "albert", "t5", "gpt2", "llama")


def pretrained(architecture: str, folder: Path) -> str:
    """A tiny body with random weights and no classification head, as it would come from the hub."""
    config_class, shape, family = ARCHITECTURES[architecture]
    config_class = transformers.T5Config if architecture == "t5" else config_class
    tokenizer = (TOKENIZERS | WITHOUT_MASK)[family]()
    torch.manual_seed(0)
    config = config_class(**shape, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def learn(classifier: Classifier, steps: int = 3) -> None:
    """Train on masked texts, with a rate at which every trained number moves."""
    batch = classifier.encode(TEXTS, labels=[0, 1, 2]).batch([0, 1, 2])
    batch = batch.with_masked(batch.maskable & (torch.arange(batch.maskable.shape[1]) % 2 == 0))
    trained = [parameter for parameter in classifier.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.05)
    for _ in range(steps):
        torch.nn.functional.cross_entropy(classifier.logits(batch), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def answers(classifier: Classifier) -> torch.Tensor:
    encoded = classifier.encode(TEXTS)
    masked = encoded.masked_by(lambda row, maskable: maskable & (torch.arange(len(maskable)) % 2 == 0).numpy())
    return torch.cat([classifier.predict(encoded), classifier.predict(masked)])


def new(base: str, lora: Lora | None = LORA) -> Classifier:
    return load_classifier(base, LABELS, new_head=True, lora=lora)


@pytest.fixture
def base(tmp_path) -> str:
    return pretrained("bert", tmp_path / "base")


@pytest.fixture
def adapter(base, tmp_path) -> Path:
    """A trained adapter on a BERT shape."""
    classifier = new(base)
    learn(classifier)
    classifier.save(tmp_path / "adapter")
    return tmp_path / "adapter"


# -------------------------------------------------------------------------------------------------------- exactness


@pytest.mark.parametrize("architecture", ADAPTED)
def test_an_adapter_predicts_the_same_in_training_merged_and_in_peft(architecture, tmp_path):
    base = pretrained(architecture, tmp_path / "base")
    classifier = new(base)
    before = answers(classifier)
    torch.testing.assert_close(before, answers(new(base, None)), rtol=0, atol=1e-5)  # an adapter begins as nothing
    learn(classifier)
    trained = answers(classifier)
    assert float((trained - before).abs().max()) > 0.1
    classifier.save(tmp_path / "adapter")
    merged = load_classifier(str(tmp_path / "adapter"), LABELS)
    torch.testing.assert_close(answers(merged), trained, rtol=0, atol=1e-5)
    assert type(merged.model) is type(classifier.model)
    assert not [name for name, _ in merged.model.named_parameters() if "lora" in name or "modules_to_save" in name]
    assert all(parameter.requires_grad for parameter in merged.model.parameters())
    if architecture == "t5":  # its classifier is ours, which peft does not make of the name of a whole T5
        return
    loaded = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=len(LABELS))
    loaded.base_model.model.config.pad_token_id = classifier.model.config.pad_token_id
    elsewhere = Classifier(loaded.base_model.model, classifier.tokenizer)
    torch.testing.assert_close(answers(elsewhere), trained, rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "llama"])
def test_of_the_base_only_what_is_adapted_changes_and_of_the_embeddings_only_the_mask(architecture, tmp_path):
    base = pretrained(architecture, tmp_path / "base")
    classifier, fresh = new(base), new(base, None)
    adapted = {f"{name}.weight" for name in target_modules(fresh.model, (), ["classifier", "score", "bert.pooler"])}
    learn(classifier)
    classifier.save(tmp_path / "adapter")
    merged = dict(load_classifier(str(tmp_path / "adapter"), LABELS).model.named_parameters())
    for name, before in fresh.model.named_parameters():
        if merged[name].shape[0] == len(fresh.tokenizer) and "embed" in name:
            changed = (merged[name] != before).any(dim=1).nonzero().flatten().tolist()
            assert changed == [fresh.mask_token_id]
        elif name.split(".")[0] in ("classifier", "score") or "pooler" in name or name in adapted:
            assert not torch.equal(merged[name], before), name
        else:
            assert torch.equal(merged[name], before), name


def test_an_adapter_is_as_small_as_its_rank_says(base, tmp_path):
    sizes = {}
    for rank in (2, 4):
        classifier = new(base, Lora(rank, 8.0, ("query", "value")))
        classifier.save(tmp_path / f"rank-{rank}")
        tensors = load_file(tmp_path / f"rank-{rank}" / "adapter_model.safetensors")
        assert sum("lora_A" in name for name in tensors) == 4  # two layers of two targets
        sizes[rank] = sum(tensor.numel() for name, tensor in tensors.items() if "lora_" in name)
        # the pooler, the head and one row of embeddings, whatever the rank
        assert (
            sum(one.numel() for name, one in tensors.items() if "lora_" not in name) == 32 * 32 + 32 + 3 * 32 + 3 + 32
        )
    assert sizes == {2: 4 * 2 * (32 + 32), 4: 4 * 4 * (32 + 32)}


def test_a_base_in_bfloat16_trains_in_32_bits_and_loads_as_it_was_rounded(base, tmp_path):
    classifier = new(base, Lora(4, 8.0, dtype="bfloat16"))
    kinds = {parameter.requires_grad: parameter.dtype for parameter in classifier.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    learn(classifier)
    trained = answers(classifier)
    classifier.save(tmp_path / "adapter")
    merged = load_classifier(str(tmp_path / "adapter"), LABELS)
    assert {parameter.dtype for parameter in merged.model.parameters()} == {torch.float32}
    # 8 bits of mantissa in the passes of training: 2 in a thousand each, over a few layers
    torch.testing.assert_close(answers(merged), trained, rtol=0, atol=0.05 * float(trained.abs().max()))
    stored = load_file(Path(base) / "model.safetensors")["embeddings.word_embeddings.weight"]
    same = torch.arange(len(stored)) != merged.mask_token_id
    assert not torch.equal(stored, stored.bfloat16().float())
    assert torch.equal(merged.vocabulary()[same], stored.bfloat16().float()[same])


# ------------------------------------------------------------------------------------- adapters from elsewhere


def test_an_adapter_that_peft_stored_loads_without_config_and_tokenizer(adapter, base):
    expected = answers(load_classifier(str(adapter), LABELS))
    for file in adapter.iterdir():
        if file.name not in ("adapter_config.json", "adapter_model.safetensors"):
            file.unlink()
    found = load_classifier(str(adapter), ("LABEL_0", "LABEL_1", "LABEL_2"))
    torch.testing.assert_close(answers(found), expected, rtol=0, atol=1e-6)
    with pytest.raises(InputError, match=r"classes of .* are"):
        load_classifier(str(adapter), ("LABEL_0", "LABEL_1"))


def test_a_base_may_be_named_relative_to_its_adapter(adapter, base):
    expected = answers(load_classifier(str(adapter), LABELS))
    change(adapter, base_model_name_or_path="../base")
    assert torch.equal(answers(load_classifier(str(adapter), LABELS)), expected)


def test_an_adapter_finds_its_base_from_any_folder(base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    classifier = new("base")
    classifier.save(tmp_path / "adapter")
    monkeypatch.chdir("/")
    found = load_classifier(str(tmp_path / "adapter"), LABELS)
    assert torch.equal(answers(found), answers(new(base, None)))


def test_training_can_go_on_from_an_adapter_merged(adapter):
    whole = load_classifier(str(adapter), LABELS, new_head=True)
    before = answers(whole)
    learn(whole)
    assert not torch.equal(answers(whole), before)


# -------------------------------------------------------------------------------------------------------- bad input


def change(adapter: Path, **settings) -> None:
    stored = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**stored, **settings}))


def test_a_base_that_is_not_here_is_refused_in_one_sentence(adapter, base):
    shutil.rmtree(base)
    with pytest.raises(InputError, match=r"is an adapter, and its base is not here: .*base\. Put the base model"):
        load_classifier(str(adapter), LABELS)
    change(adapter, base_model_name_or_path="nobody/nothing")
    with pytest.raises(InputError, match=r"its base cannot be loaded\. There is no model 'nobody/nothing'"):
        load_classifier(str(adapter), LABELS)


def test_another_base_of_the_same_shape_is_refused(adapter, base):
    tensors = load_file(Path(base) / "model.safetensors")
    tensors["encoder.layer.0.attention.self.query.bias"] += 1
    save_file(tensors, Path(base) / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="does not have the weights on which the adapter was trained"):
        load_classifier(str(adapter), LABELS)


def test_an_adapter_for_something_else_is_refused_by_name(adapter):
    change(adapter, task_type="CAUSAL_LM")
    with pytest.raises(InputError, match="is an adapter for CAUSAL_LM, which does not classify texts"):
        load_classifier(str(adapter), LABELS)


def test_an_adapter_without_safetensors_is_refused(adapter):
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        load_classifier(str(adapter), LABELS)


@pytest.mark.parametrize("lost", ["lora_A", "classifier", "trainable_tokens"])
def test_an_adapter_that_lacks_a_weight_is_refused(adapter, lost):
    tensors = load_file(adapter / "adapter_model.safetensors")
    wrong = next(name for name in tensors if lost in name)
    del tensors[wrong]
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"does not fit its base: .* is missing"):
        load_classifier(str(adapter), LABELS)


def test_an_adapter_on_an_adapter_and_unknown_layers_are_refused(adapter, base):
    with pytest.raises(InputError, match="is an adapter itself"):
        new(str(adapter))
    with pytest.raises(
        InputError, match=r"no linear layer q_proj for --lora-targets.* end in dense, key, query, value"
    ):
        new(base, Lora(4, 8.0, ("query", "q_proj")))


def test_without_peft_one_sentence_says_what_to_install(adapter, base, monkeypatch):
    monkeypatch.setattr("faithmeter.models.lora.util.find_spec", lambda name: None)
    for load in (lambda: new(base), lambda: load_classifier(str(adapter), LABELS)):
        with pytest.raises(InputError, match=r"need the package peft: `pip install 'faithmeter\[peft\]'`"):
            load()
