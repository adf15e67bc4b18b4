"""Parsers of files are called in ``esscher/untrusted``, and elsewhere only as listed here."""

from __future__ import annotations

import re
from pathlib import Path

import esscher

SOURCES = Path(esscher.__file__).parent
#: Calls that read what may come from elsewhere.
PARSERS = re.compile(
    r"json\.loads?\(|np\.load\(|np\.memmap\(|np\.fromfile|np\.genfromtxt|np\.loadtxt|pickle\.|"
    r"torch\.load|yaml\.|read_table\(|read_parquet|read_csv|read_json\(|read_pickle|ParquetFile\(|"
    r"zipfile|tarfile|shutil\.unpack|gzip\.|bz2\.|lzma\.|CompressedInputStream|safe_open|"
    r"from_pretrained|\.read_bytes\(|\.read_text\(|\.open\(|\bopen\(|os\.open\(|(?<![.\w])eval\(|(?<![.\w])exec\(|"
    r"subprocess|xml\.|fromstring\("
)
#: What calls them, and why that is safe; everything else must go through ``core.untrusted``.
ALLOWED = {
    "core/atomic.py": {"os.open("},  # writes new files, never through a link; syncs folders
    "engine/attention/compiled/build.py": {"subprocess"},  # the C compiler, on our own file
    "cli/endings.py": {"os.open("},  # os.devnull, for what nobody reads
    # arrays within the file by their header, each checked; damaged in tests/engine/cache
    "engine/cache/saved.py": {"safe_open"},
    "engine/models/load.py": {"from_pretrained", "safe_open"},  # behind models/checks.py
    "runs/pool.py": {"pickle.", ".open("},  # between this process and its own workers
    "show/render.py": {".read_text("},  # parts of the package itself
    "runs/folder.py": {"json.loads("},  # of a configuration that was just made into JSON
    "runs/provenance.py": {"subprocess"},  # git, about Esscher's own checkout
    # the standard library as text; compressed files chunk by chunk
    "engine/text/documents.py": {".read_text(", "gzip.", "bz2.", "lzma."},
}
#: Not calls of parsers: our own readers, methods of other things, words in comments.
OURS = re.compile(
    r"(?:(?<![.\w])(?:read_json|read_table)\()|run\.read\(|def \w*open\w*\(|(?<!safe)_open\("
)


def found_in(path: Path) -> set[str]:
    calls = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        code = line.partition("  #")[0]
        if code.lstrip().startswith(("#", '"""', "from ", "import ")):
            continue
        calls |= set(PARSERS.findall(OURS.sub("", code)))
    return calls


def test_parsers_are_called_in_one_place():
    unknown = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if name.startswith("core/untrusted/"):
            continue
        other = found_in(path) - ALLOWED.get(name, set())
        if other:
            unknown[name] = sorted(other)
    assert not unknown, (
        "read files with the functions of esscher.core.untrusted, and fuzz the new parser here: "
        f"{unknown}"
    )


def test_the_list_has_no_leftovers():
    for name, calls in ALLOWED.items():
        assert calls <= found_in(SOURCES / name), name
