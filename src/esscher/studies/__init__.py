"""The studies there are. A new one is a file below this folder, and a line here."""

from __future__ import annotations

#: Name of the command, of the function and of the kind of run: where the study is defined, and its
#: first sentence. Those without a sentence are functions alone.
STUDIES = {
    "paper": (
        "esscher.studies.paper.study:PaperStudy",
        "Check the claims of the paper one by one.",
    ),
    "probe": (
        "esscher.studies.probe.study:ProbeStudy",
        "Measure how many tokens each head of a model needs.",
    ),
    "sweep": (
        "esscher.studies.sweep.study:SweepStudy",
        "Measure how fast attention over synthetic tokens converges.",
    ),
    "deep": (
        "esscher.studies.deep.study:DeepStudy",
        "Measure how errors of sampled attention grow through layers.",
    ),
    "deep-stack": ("esscher.studies.deep.study:DeepStackStudy", ""),
    "sparse": (
        "esscher.studies.sparse.study:SparseStudy",
        "Compare sparse attention with dense attention in a model.",
    ),
    "sparse-law": ("esscher.studies.sparse.study:SparseLawStudy", ""),
    "plan": (
        "esscher.studies.plan.study:PlanStudy",
        "Plan how many tokens each head keeps, in how many bits, and check the plan.",
    ),
    "context": (
        "esscher.studies.context.study:ContextStudy",
        "Measure how long a context each head of a decoder uses.",
    ),
    "tails": (
        "esscher.studies.tails.study:TailsStudy",
        "Test whether the keys of a model have light tails.",
    ),
    "domains": (
        "esscher.studies.domains.study:DomainsStudy",
        "Test whether heads behave differently on different text.",
    ),
}
