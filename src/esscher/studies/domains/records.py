"""Numbers of corpora and of what differs between them, as they are stored and read."""

from __future__ import annotations

from typing import TypeAlias

from esscher.core.codec import Count, Estimate, Hash, Index, Name, Record

#: Ends of an interval; missing where there is none.
Ends: TypeAlias = tuple[float | None, float | None]
#: One number per head, in the order of ``Domains.units``.
PerHead: TypeAlias = tuple[float | None, ...]


class Corpus(Record, frozen=True, kw_only=True):
    """A corpus, as runs name it.

    Attributes
    ----------
    name, source
        The user's name of it, and where it comes from.
    text_hash, characters
        SHA-256 and length of its text.
    """

    name: Name
    source: Name
    text_hash: Hash
    characters: Count


class BlockCell(Record, frozen=True, kw_only=True):
    """A cell: a block of a corpus. Its table has one row per head, one column per statistic.

    Attributes
    ----------
    tokens
        How many there are, without delimiters.
    distinct, unknown
        Shares of different and of unknown tokens.
    """

    tokens: Count
    distinct: float
    unknown: float


class CorpusNumbers(Corpus, frozen=True, kw_only=True):
    """A corpus, means over its blocks, and medians of every statistic over the heads."""

    tokens: float
    distinct: float
    unknown: float
    median: dict[Name, Estimate]


class Scale(Record, frozen=True, kw_only=True):
    """A statistic in words, and whether corpora differ in it by a ratio or a difference."""

    title: Name
    scale: Name


class Omnibus(Record, frozen=True, kw_only=True):
    """The test of all corpora, by head: p-values and the share of variance between corpora."""

    p: PerHead
    adjusted: PerHead
    holm: PerHead
    share: PerHead


class Pair(Record, frozen=True, kw_only=True):
    """Two corpora compared: heads that differ, and effects of b over (or minus) a by head."""

    a: Name
    b: Name
    heads: Count
    heads_holm: Count
    effect: PerHead
    low: PerHead
    high: PerHead
    adjusted: PerHead


class StatisticTests(Record, frozen=True, kw_only=True):
    """All tests of a statistic.

    Attributes
    ----------
    omnibus, pairs
        Tests of all corpora, and of two.
    classes
        By head: ``differs``, ``the same`` (within the margin) or ``undecided``; empty in results
        of earlier versions.
    margin
        Ratio or difference below which corpora are the same.
    power
        By head, the probability with which a shift of one corpus by the margin is found.
    blocks_needed
        Blocks of every corpus with which that is 80% in the median head; None beyond 1,024.
    """

    omnibus: Omnibus
    pairs: tuple[Pair, ...]
    classes: tuple[Name, ...] = ()
    margin: float | None = None
    power: PerHead = ()
    blocks_needed: Count | None = None


class HeadCounts(Record, frozen=True, kw_only=True):
    """Heads in which corpora differ, by false discovery rate and family-wise; are the same; else.

    Results of earlier versions do not say which heads are the same and which undecided.
    """

    heads: Count
    heads_holm: Count
    same: Count | None = None
    undecided: Count | None = None


class Correction(Record, frozen=True, kw_only=True):
    """How many tests there were, how many found something, and how far they can be believed.

    Attributes
    ----------
    omnibus_tests, omnibus_found, omnibus_found_holm
        Tests of all corpora.
    permutations, smallest_p
        Permutations behind them, and the smallest p-value that these allow.
    pair_tests, pairs_found, pairs_found_holm
        Tests of two corpora.
    interval_level
        Level of the intervals of pairs.
    halves_rejected, halves_tests
        Share of rejections between halves of a corpus, where nothing differs.
    least_found
        How many tests must have the smallest p-value for any of them to be found; more than there
        are: nothing can be found.
    blocks_for_any, blocks_for_one
        Fewest blocks of every corpus with which anything can be found, and with which a test can
        be found that is alone in having a small p-value (as family-wise ones must).
    """

    omnibus_tests: Count
    omnibus_found: Count
    omnibus_found_holm: Count
    permutations: Count
    smallest_p: float
    pair_tests: Count
    pairs_found: Count
    pairs_found_holm: Count
    interval_level: float
    halves_rejected: float | None
    halves_tests: Count
    least_found: Count | None = None
    blocks_for_any: Count | None = None
    blocks_for_one: Count | None = None

    @property
    def decides(self) -> bool:
        """Whether these blocks can find any difference at all."""
        return self.least_found is None or self.least_found <= self.omnibus_tests

    def takes(self, blocks: int) -> str:
        """What it takes to find a single difference, if these blocks of every corpus cannot."""
        if self.blocks_for_one is None or self.blocks_for_one <= blocks:
            return "more blocks, or fewer heads" if self.blocks_for_one is None else "fewer heads"
        return f"at least {self.blocks_for_one} blocks"


class Difference(Record, frozen=True, kw_only=True):
    """A large difference between two corpora in a head."""

    statistic: Name
    layer: Index
    head: Index
    a: Name
    b: Name
    effect: float
    interval: tuple[float, float]
    adjusted: float
    holm: float


class Shares(Record, frozen=True, kw_only=True, rename={"both": "head x corpus"}):
    """Parts of a variance."""

    head: float
    corpus: float
    both: float
    block: float
    rest: float


class Variance(Record, frozen=True, kw_only=True):
    """Where the variance of a statistic comes from.

    Attributes
    ----------
    shares, standard_errors
        Shares of the sources, and how sure they are.
    head_over_corpus, head_over_corpus_interval
        How much more the head matters than the corpus, with 95% interval; None if infinite.
    """

    shares: Shares
    standard_errors: Shares
    head_over_corpus: float | None
    head_over_corpus_interval: Ends


class RankPair(Record, frozen=True, kw_only=True):
    """Rank correlation of the heads between two corpora."""

    a: Name
    b: Name
    spearman: float | None
    interval: Ends


class Ranks(Record, frozen=True, kw_only=True):
    """Whether heads keep their order: see :func:`~esscher.studies.domains.ranks.rank_agreement`."""

    median: float | None
    within: float | None
    between: float | None
    pairs: tuple[RankPair, ...]


class TransferPair(Record, frozen=True, kw_only=True):
    """Tokens that heads need on corpus b over those on a, and heads that need twice as many."""

    a: Name
    b: Name
    ratio: float
    interval: tuple[float, float]
    typical_factor: float
    twice_on_b: float
    twice_on_a: float


class Transfer(Record, frozen=True, kw_only=True):
    """How wrong a plan is on another corpus, and on other text of the same corpus."""

    factor: float
    factor_within: float
    pairs: tuple[TransferPair, ...]


class LayerMean(Record, frozen=True, kw_only=True):
    """Mean over the heads of a layer, with its interval over blocks."""

    layer: Index
    low: float | None
    value: float | None
    high: float | None


def shares_of(shares: Shares) -> dict[str, float]:
    """Return shares by their source."""
    return {
        "head": shares.head,
        "corpus": shares.corpus,
        "head x corpus": shares.both,
        "block": shares.block,
        "rest": shares.rest,
    }
