"""Make ``samples.zip``: a tiny stored run of every kind, for the fuzz tests to damage.

Run ``python -m tests.fuzz.make_samples`` when the files of a run change.
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import numpy as np

import esscher
from esscher.engine.models.loaded import wrap_model
from esscher.studies.paper import claims
from esscher.studies.paper.ledger import Measurement
from tests.engine.models.folders import WORDS, decoder_tokenizer, encoder_tokenizer
from tests.engine.models.tiny import tiny_model

PLACE = Path(__file__).with_name("samples.zip")
SIZES = (16, 32, 64)


def model(name, **options):
    tiny = tiny_model(name, **options)
    tokenizer = decoder_tokenizer() if tiny.family.decoder else encoder_tokenizer()
    return wrap_model(tiny.model, tokenizer, name="tiny")


def text(seed=0):
    return [" ".join(np.random.default_rng([seed, 11]).choice(WORDS, size=2500))]


def make(folder: Path) -> None:
    bert, llama = model("bert"), model("llama")
    esscher.probe(
        bert,
        text(),
        tokens=300,
        context=62,
        layers=[0],
        heads=[0, 1],
        sizes=SIZES,
        replicates=4,
        out=folder / "probe",
    )
    head = esscher.gaussian_head(1.0, 2)
    esscher.sweep(head, SIZES, 4, alpha=(0.5, 1.0), predict=True, out=folder / "sweep")
    esscher.sparse_law(
        "gaussian",
        horizon=0.5,
        dim=2,
        tokens=256,
        replicates=8,
        query_count=16,
        budgets=[16, 32, 64],
        patterns="window,topk",
        out=folder / "sparse-law",
    )
    esscher.sparse(
        llama,
        text(),
        context=48,
        passages=2,
        query_count=8,
        budgets=[8, 16, 32],
        layers=[0],
        heads=[0, 1],
        patterns="window,topk",
        out=folder / "sparse",
    )
    esscher.deep_stack(
        depth=2, dim=2, horizon=0.4, sizes=[32, 64, 128], replicates=4, out=folder / "deep-stack"
    )
    esscher.deep(
        llama,
        text(),
        context=48,
        passages=2,
        draws=2,
        sizes=[4, 10, 28],
        keys="shared",
        out=folder / "deep",
    )
    esscher.tails(
        bert, text(), tokens=600, context=48, layers=[0], heads=[0, 3], out=folder / "tails"
    )
    esscher.domains(
        bert,
        {"one": text(1), "two": text(2)},
        blocks=6,
        block_tokens=120,
        context=62,
        layers=[0],
        heads=[0, 3],
        out=folder / "domains",
    )
    esscher.plan(
        llama,
        text(1),
        check=text(2),
        budget=0.5,
        prefix=40,
        query_count=8,
        passages=2,
        check_passages=3,
        against="streaming",
        out=folder / "plan",
    )
    long = model("llama", max_position_embeddings=512)
    esscher.context(long, text(), context=128, passages=2, out=folder / "context")
    # a claim of the paper, in units of few replicates
    whole = claims.MEASUREMENTS["limit"]
    units = [unit | {"sizes": [50, 200], "replicates": 8} for unit in whole.units("quick")]
    claims.MEASUREMENTS["limit"] = Measurement(lambda scale: units, whole.measure)
    esscher.paper(("limit",), out=folder / "paper")
    claims.MEASUREMENTS["limit"] = whole


def main() -> None:
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(PLACE, "w", 8) as archive:
        make(Path(place))
        for path in sorted(Path(place).rglob("*")):
            if path.is_file() and path.name not in ("lock", "run.log"):
                # the same bytes for the same runs
                info = zipfile.ZipInfo(path.relative_to(place).as_posix())
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())


if __name__ == "__main__":
    main()
