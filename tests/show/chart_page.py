"""A page with nothing but charts in it, for tests of how charts are embedded."""

from __future__ import annotations

from html import escape

from esscher.show.render import (
    CHART_SCRIPTS,
    chart_data,
    chart_style,
    library,
    place,
    policy,
    script,
)


def chart_page(charts):
    """HTML of charts by name."""
    body = "".join(
        f"<figure>{place(name, chart, f'Chart {name}.')}</figure>" for name, chart in charts.items()
    )
    draws = script(*CHART_SCRIPTS)
    allowed = escape(policy(library(), draws))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Charts</title>'
        f'<link rel="icon" href="data:,"><style>{chart_style()}'
        "body { background: var(--chart-panel); color: var(--chart-ink); }</style></head>"
        f'<body>{body}<script type="application/json" id="charts">{chart_data(charts)}</script>'
        f"<script>{library()}</script><script>{draws}</script></body></html>"
    )
