"""Retrieval tasks that are generated: sentences hidden in a text, and questions about them.

They follow RULER (Hsieh et al. 2024, arXiv:2404.06654) in spirit. Everything is drawn from a seed,
and nothing is downloaded. ``TASKS`` has them by name (``kinds.py``).
"""

from __future__ import annotations

from esscher.engine.text.tasks.kinds import TASKS

__all__ = ["TASKS"]
