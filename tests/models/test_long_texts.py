"""A model that reads 8,192 tokens reads texts of 2,000 whole, where it is asked to, and is said to be able to."""

import pytest
import torch
import transformers
from conftest import byte_level_bpe, sentiment_rows

from faithmeter import DataSpec, ExplainOptions, MeasureOptions, adopt, explain_texts, measure
from faithmeter.models.classifier import Classifier
from faithmeter.progress import Silent

LONG = "The film was great, it was not awful at all. " * 170


@pytest.fixture(scope="module")
def model():
    """ModernBERT's shape: every second layer sees 64 tokens to either side, and positions go up to 8,192."""
    tokenizer = byte_level_bpe()
    config = transformers.ModernBertConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64, vocab_size=len(tokenizer),
        global_attn_every_n_layers=2, local_attention=128, max_position_embeddings=8192, num_labels=2,
        pad_token_id=tokenizer.pad_token_id, cls_token_id=tokenizer.cls_token_id, sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.ModernBertForSequenceClassification._from_config(config, attn_implementation="sdpa").eval()


def test_a_text_of_two_thousand_tokens_is_read_whole_as_the_model_itself_reads_it(model):
    classifier = Classifier(model, byte_level_bpe(), max_length=8192)
    test = classifier.encode([LONG, "The film was bad."])
    assert test.truncated == 0
    assert test.lengths[0] > 2000
    with torch.no_grad():
        alone = torch.cat([model(torch.from_numpy(test.batch([row]).input_ids.numpy())).logits for row in (0, 1)])
    assert torch.allclose(classifier.predict(test), alone, atol=1e-5)  # padded together, and each alone
    short = Classifier(model, byte_level_bpe()).encode([LONG])
    assert short.truncated == 1
    assert short.lengths[0] == 512


def test_such_a_text_is_explained_by_its_sentences(model):
    classifier = Classifier(model, byte_level_bpe(), max_length=8192)
    options = ExplainOptions(by="sentence", orders=0, random_runs=1)
    (explanation,) = explain_texts(classifier, LONG, options=options, measure="grad-l2")
    assert len(explanation.units) == 170
    assert explanation.unread == 0
    (cut,) = explain_texts(Classifier(model, byte_level_bpe()), LONG, options=options, measure="grad-l2")
    assert "This model can read 8192" in cut.cut
    assert cut.unread > 1400


def test_a_run_says_what_the_model_could_read_and_reads_it_where_asked(model, tmp_path, write, monkeypatch):
    model.save_pretrained(tmp_path / "model")
    byte_level_bpe().save_pretrained(tmp_path / "model")
    rows = [{**row, "text": f"{LONG if number % 4 == 0 else ''}{row['text']}"} for number, row in
            enumerate(sentiment_rows(20))]  # fmt: skip
    data = DataSpec(data=str(write("rows.jsonl", rows)))
    said: list[str] = []
    reporter = Silent()
    monkeypatch.setattr(reporter, "note", said.append)
    adopt(tmp_path / "short", str(tmp_path / "model"), data, reporter=reporter)
    (line,) = (one for one in said if "truncated to 512 tokens" in one)
    assert "This model can read 8192: make its run with --max-length 8192" in line
    assert "512 is the default" in line
    said.clear()
    run = adopt(tmp_path / "long", str(tmp_path / "model"), data, max_length=8192, reporter=reporter)
    assert not any("truncated" in one for one in said)
    asked = MeasureOptions(measures=("grad-l2",), rows=2, random_runs=1, by="chunk", chunk=64, without_check=True)
    assert any(row["kind"] == "acu" for row in measure(run, asked).results)
