"""How many tokens a model has positions for."""

import transformers

# These count positions from the padding id on, so the last of `max_position_embeddings` cannot be used.
POSITIONS_AFTER_PADDING = {
    "camembert", "data2vec-text", "ibert", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
}  # fmt: skip


def usable_positions(config: transformers.PretrainedConfig) -> int | None:
    """Return how many tokens a model has positions for, where its config says so."""
    positions: int | None = getattr(config, "max_position_embeddings", None) or None
    if positions is not None and config.model_type in POSITIONS_AFTER_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    return positions
