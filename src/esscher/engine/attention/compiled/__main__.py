"""Compile the kernel, and say what came of it."""

from esscher.engine.attention.compiled.build import build

try:
    for path in build():
        print(path)
except RuntimeError as error:
    raise SystemExit(str(error)) from None
