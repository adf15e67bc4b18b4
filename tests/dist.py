"""Build what is released, and try it as someone who has nothing yet: ``make dist``.

``python -m build`` makes an sdist and a wheel with the compiled kernel; a second wheel is made
where no compiler is to be found. Each of the three is installed into an empty environment of its
own and used there, outside of the source tree, with nothing but what it requires. Uses the standard
library and ``build`` only; pip needs an index of packages.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Compiled libraries in a wheel end like this.
LIBRARY = ".so"
#: Files without which a command, a report or a type checker would miss something.
NEEDED = ("py.typed", "show/page/vendor/vega.min.js", "engine/attention/compiled/step.c")
KERNEL = "from esscher.engine.attention.compiled.kernel import kernel_name; print(kernel_name())"
#: Commands that need no model, each with words that it must print.
SMOKE = (
    ("theory --horizon 0.5 --sizes 1e3:1e6", "1,000,000"),
    ("sweep gaussian --horizon 0.5 --sizes 50:200:3 --replicates 8 --out run", "Run: run"),
    ("ls .", "sweep"),
    ("report run -o report.html", "Report: report.html"),
)


def run(*words: str | Path, fails: int = 0, **options: object) -> str:
    """Run a command and return what it printed; anything but the expected exit code is an error."""
    done = subprocess.run(
        [str(word) for word in words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,  # type: ignore[call-overload]
    )
    if done.returncode != fails:
        raise SystemExit(
            f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}"
        )
    return str(done.stdout)


def without_compiler(folder: Path) -> dict[str, str]:
    """Return this environment with a path on which there is no program at all."""
    folder.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if k not in ("CC", "PYTHONPATH")}
    return kept | {"PATH": str(folder)}


def build(out: Path, work: Path) -> tuple[Path, Path | None, Path]:
    """Build into an empty folder: the sdist, the wheel with the kernel if any, the wheel without.

    On a machine without a compiler, or for which there is no kernel, there is only one wheel.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("esscher-*.whl"), *out.glob("esscher-*.tar.gz")):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    plain = [sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT]
    run(*plain, env=without_compiler(work / "no-programs"))
    (sdist,) = out.glob("*.tar.gz")
    (pure,) = out.glob("*-none-any.whl")
    compiled = [path for path in out.glob("*.whl") if path != pure]
    return sdist, compiled[0] if compiled else None, pure


def check_files(wheel: Path, compiled: bool) -> None:
    """Check that a wheel holds what it needs, and libraries only if it says so."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if f"esscher/{name}" not in names]
    strangers = {name.split("/")[0] for name in names if ".dist-info/" not in name} - {"esscher"}
    libraries = [name for name in names if name.endswith(LIBRARY)]
    if missing or strangers or bool(libraries) != compiled:
        raise SystemExit(f"{wheel.name}: missing {missing}, beside {strangers}, with {libraries}")


def smoke(package: Path, version: str, place: Path, kernel: bool) -> None:
    """Install a package into an empty environment, and use it there."""
    venv.create(place / "venv", with_pip=True)
    programs = place / "venv" / "bin"
    inside = {"cwd": place, "env": without_compiler(place / "no-programs")}
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pins = ["--constraint", ROOT / "constraints.txt"]
    run(programs / "python", *install, *pins, package, **inside)
    esscher = programs / "esscher"
    printed = run(esscher, "--version", **inside)
    assert version in printed, printed
    for words, expected in SMOKE:
        printed = run(esscher, *words.split(), **inside)
        assert expected in printed, (words, printed)
    assert (place / "report.html").stat().st_size > 500_000
    # what is optional is asked for by name
    printed = run(esscher, "probe", "demo:minilm", fails=2, **inside)
    assert "pip install" in printed, printed
    place_of = run(programs / "python", "-c", "import esscher; print(esscher.__file__)", **inside)
    home = Path(place_of.strip()).parent
    assert home.is_relative_to(place / "venv"), home
    assert (home / "py.typed").exists()
    result = run(programs / "python", "-c", KERNEL, **inside).strip()
    assert (result == "torch") != kernel, result
    print(f"{package.name}: installed and used, attention by {result}")


def main() -> None:
    """Build, look inside, install and use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", default="dist", type=Path, help="folder (dist)")
    out = parser.parse_args().out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        sdist, compiled, pure = build(out, Path(folder))
        version = pure.name.split("-")[1]
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"pyproject.toml", "hatch_build.py", "LICENSE", "CITATION.cff"} <= names
        check_files(pure, compiled=False)
        if compiled:
            check_files(compiled, compiled=True)
        for package in filter(None, (compiled, pure, sdist)):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                smoke(package, version, Path(place), kernel=package == compiled)
    print(json.dumps(sorted(path.name for path in out.iterdir())))


if __name__ == "__main__":
    main()
