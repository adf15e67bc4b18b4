"""Token clouds of a pooled probe: as many layers at a time as the disk has room for.

A small cloud lies where temporary files go. A large one lies in the run's directory until its
layers are measured: a run that is stopped goes on with what is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from esscher.core.errors import InputError
from esscher.engine.models import LayerCapture, LoadedModel
from esscher.engine.text import (
    CloudFile,
    Passage,
    PassageSet,
    cloud_bytes,
    collect_cloud,
    stored_layers,
)
from esscher.runs.folder import CellRun
from esscher.studies.probe.study import ProbeStudy

#: Name of the cloud in a run's directory.
CLOUD = "cloud"
#: Clouds of fewer bytes are kept among temporary files.
SMALL_CLOUD = 1_000_000_000
#: Share of the free disk that a cloud may take.
SHARE = 0.9


def collected_clouds(
    loaded: LoadedModel,
    passages: PassageSet,
    study: ProbeStudy,
    layers: Sequence[int],
    run: CellRun,
    *,
    remote: bool,
    watch: Callable[[Sequence[Passage], LayerCapture], object],
) -> Iterator[CloudFile]:
    """Yield clouds which together hold the layers; each is gone once the next is asked for.

    Parameters
    ----------
    loaded, passages, study
        What to collect.
    layers
        Layers that are wanted.
    run
        The run, which is told how far the reading has got.
    remote
        Whether other machines read the cloud: then it lies in the run's directory in any case,
        which all of them should see.
    watch
        See :func:`esscher.engine.text.collect_cloud`.
    """
    bytes_of_layer = _layer_bytes(loaded, study)
    place = run.folder / CLOUD
    waiting = list(layers)

    def collect(chosen: Sequence[int], where: Path | None) -> CloudFile:
        def progress(done: int, total: int) -> None:
            run.doing(
                f"reading the text for layers {chosen[0]} to {chosen[-1]}: passage {done:,} of "
                f"{total:,}"
            )

        cloud = collect_cloud(
            loaded, passages, tokens=study.tokens, context=study.context, layers=chosen,
            heads=study.heads, seed=study.seed, folder=where, progress=progress, watch=watch,
        )  # fmt: skip
        run.doing("")
        return cloud

    while waiting:
        chosen = stored_layers(place)
        begun = not set(chosen).isdisjoint(waiting)
        if not begun:
            shutil.rmtree(place, ignore_errors=True)
            chosen = _that_fit(waiting, bytes_of_layer, run.folder)
        large = begun or remote or len(chosen) * bytes_of_layer >= SMALL_CLOUD
        yield collect(chosen, place if large else None)
        waiting = [layer for layer in waiting if layer not in chosen]
        shutil.rmtree(place, ignore_errors=True)


def _layer_bytes(loaded: LoadedModel, study: ProbeStudy) -> int:
    shape = loaded.shape
    return cloud_bytes(
        rows=study.tokens, layers=1, heads=len(study.heads),
        key_heads=shape.key_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _that_fit(layers: Sequence[int], size: int, folder: Path) -> list[int]:
    """The first layers whose cloud the disk has room for."""
    free = shutil.disk_usage(folder).free
    count = int(SHARE * free / size)
    if count < 1:
        raise InputError(
            f"the tokens of one layer take {size / 1e9:.1f} GB, but {folder} has only "
            f"{free / 1e9:.1f} GB left; choose fewer tokens or heads, or another disk for the run"
        )
    return list(layers[:count])
