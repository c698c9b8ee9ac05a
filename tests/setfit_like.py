"""Objects of the shape of sentence-transformers' and setfit's, neither of which is installed here."""

import copy
import warnings

import numpy as np
import torch
from conftest import random_classifier, sentiment_rows
from torch import nn


class Transformer(nn.Module):
    def __init__(self, auto_model, tokenizer, max_seq_length=None, do_lower_case=False):
        super().__init__()
        self.auto_model, self.tokenizer = auto_model, tokenizer
        self.max_seq_length, self.do_lower_case = max_seq_length, do_lower_case

    def forward(self, features):
        taken = {k: v for k, v in features.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
        return {**features, "token_embeddings": self.auto_model(**taken).last_hidden_state}


class Pooling(nn.Module):
    def __init__(self, **modes):
        super().__init__()
        self.modes = {"word_embedding_dimension": 32, "include_prompt": True, **modes}

    def get_config_dict(self):
        return self.modes

    def forward(self, features):
        states, attended = features["token_embeddings"], features["attention_mask"]
        if self.modes.get("pooling_mode_cls_token") or self.modes.get("pooling_mode") == "cls":
            return {**features, "sentence_embedding": states[:, 0]}
        if self.modes.get("pooling_mode_max_tokens"):
            return {**features, "sentence_embedding": states.masked_fill(attended[..., None] == 0, -1e9).amax(dim=1)}
        total = torch.stack([row[kept.bool()].sum(dim=0) for row, kept in zip(states, attended, strict=True)])
        return {**features, "sentence_embedding": total / attended.sum(dim=1, keepdim=True)}


class Normalize(nn.Module):
    def forward(self, features):
        embedding = features["sentence_embedding"]
        return {**features, "sentence_embedding": embedding / embedding.norm(dim=1, keepdim=True)}


class Dense(nn.Module):
    def forward(self, features):
        return {**features, "sentence_embedding": features["sentence_embedding"].tanh()}


MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}


class SetFit:
    """As a SetFitModel: texts in, the probabilities of the head out."""

    def __init__(self, architecture="bert", modes=MEAN, *, more=(), labels=None, normalize=False, **of_first):
        classifier = random_classifier(architecture, spread=0.1)
        first = Transformer(classifier.model.base_model, classifier.tokenizer, **of_first)
        self.model_body = nn.Sequential(first, Pooling(**modes), *more).eval()
        self.labels, self.normalize_embeddings, self.model_head = labels, normalize, None

    def encode(self, texts):
        """Return embeddings, text by text: without padding."""
        first, found = self.model_body[0], []
        for text in texts:
            text = text.strip().lower() if first.do_lower_case else text.strip()
            longest = first.max_seq_length or 128
            features = copy.deepcopy(first.tokenizer)([text], return_tensors="pt", truncation=True, max_length=longest)
            with torch.no_grad():
                found.append(self.model_body(dict(features))["sentence_embedding"])
        every = torch.cat(found)
        return (every / every.norm(dim=1, keepdim=True) if self.normalize_embeddings else every).numpy()

    def fit(self, head, classes=("bad", "good"), labels=0):
        texts = [row["text"] for row in sentiment_rows(30)]
        draw = np.random.default_rng(1)
        gold = draw.integers(2, size=(30, labels)) if labels else draw.choice(classes, size=30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model_head = head.fit(self.encode(texts), gold)
        return self

    def predict_proba(self, texts):
        return self.model_head.predict_proba(self.encode(texts))
