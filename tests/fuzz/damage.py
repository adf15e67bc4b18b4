"""How files are damaged: single values of a JSON tree, single bytes of anything else."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

#: What a value may be replaced by: other types, huge, negative, not finite, hostile to terminals.
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    10**18,
    10**40,
    -(10**18),
    0.5,
    -0.5,
    1e300,
    1e-300,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../../etc/passwd",
    "/dev/zero",
    "\x1b]0;x\x07[red]",
    "\u202e\ud7ff\U0001f600",
    "x" * 5000,
    [],
    {},
    [None],
    [[]],
    [[1, "a"]],
    {"a": 1},
    [1e18] * 50,
)
#: Values that fit their field's type, so that they get past the schema.
NUMBERS = (0, -1, 1, 7, 10**6, 0.0, -3.5, 1e-300, 1e300, 123456789)


def effort(few: int, many: int) -> pytest.MarkDecorator:
    """Few examples in the quick tests, many in the slow ones; ESSCHER_FUZZ sets how many."""
    asked = int(os.environ.get("ESSCHER_FUZZ", many))
    return pytest.mark.parametrize("examples", [few, pytest.param(asked, marks=pytest.mark.slow)])


def fuzz(examples: int, *strategies: st.SearchStrategy):
    """Run a property on this many examples, the same ones each time."""

    def run(function):
        chosen = settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        # given() wants a function with the arguments themselves, which a closure hides
        chosen(given(*strategies)(functools.partial(function).func))()

    return run


def changed_tree(tree, random):
    """A JSON tree with one to three changes at random places."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        tree = _changed(tree, random)
    return tree


def _changed(tree, random):
    place = []
    node = tree
    # go down some levels, so that changes are as often deep as shallow
    while isinstance(node, (dict, list)) and node and random.random() < 0.85:
        key = random.choice(sorted(node)) if isinstance(node, dict) else random.randrange(len(node))
        place.append(key)
        node = node[key]
    if not place:
        return copy.deepcopy(random.choice(VALUES))
    parent = tree
    for key in place[:-1]:
        parent = parent[key]
    key, what = place[-1], random.randrange(6)
    if what == 0:
        del parent[key]
    elif what == 1 and isinstance(parent, list):
        parent += parent[key : key + 1] * random.choice((1, 2, 100))
    elif what == 2 and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif what == 3 and isinstance(node, (int, float)) and not isinstance(node, bool):
        parent[key] = random.choice(NUMBERS)
    else:
        parent[key] = copy.deepcopy(random.choice(VALUES))
    return tree


def changed_bytes(data: bytes, random) -> bytes:
    """Bytes flipped, cut, doubled or put in."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place, what = random.randrange(len(data) + 1), random.randrange(5)
        if what == 0:
            del data[place:]
        elif what == 1:
            data[place:place] = random.randbytes(random.choice((1, 4, 8)))
        elif what == 2:
            data[place : place + 8] = random.choice((b"\xff" * 8, b"\x00" * 8, b"\x7f" * 8))
        elif place < len(data):
            data[place] = random.randrange(256)
    return bytes(data)


def as_text(tree) -> bytes:
    """JSON with the constants that Python would write, such as NaN."""
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def resealed(sound: bytes, random) -> bytes:
    """A file of a dataset with changes, and the checksum that they have."""
    end = 8 + int.from_bytes(sound[:8], "little")
    header, buffer = json.loads(sound[8:end]), sound[end:]
    metadata = header.pop("__metadata__")
    labels = json.loads(metadata["labels"])
    where = random.randrange(4)
    if where == 0:
        header = changed_tree(header, random)
    elif where == 1:
        buffer = changed_bytes(buffer, random)
    else:
        labels = changed_tree(labels, random)
    text = as_text(labels).decode("utf-8", "surrogatepass")
    if not isinstance(header, dict):
        return len(as_text(header)).to_bytes(8, "little") + as_text(header) + buffer
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update(buffer)
    header["__metadata__"] = metadata | {"labels": text, "sha256": digest.hexdigest()}
    if random.random() < 0.05:
        header["__metadata__"] = random.choice(VALUES)
    whole = as_text(header)
    return len(whole).to_bytes(8, "little") + whole + buffer


#: Sources of randomness that hypothesis can repeat.
randoms = functools.partial(st.randoms, use_true_random=False)
