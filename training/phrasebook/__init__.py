"""The phrasebook: the Chinese-English corpus that comes with the project.

Everyday sentences, written for this project and copied from nowhere. A small synchronous grammar
(`grammar.py`) derives both sides of a pair together from the files in `data/`: word classes in
`data/lexicon/`, sentence templates by topic in `data/topics/`. Nothing is random: the same pairs,
in the same order, come out on every machine.

* A Chinese sentence occurs once, so it has one translation.
* No template gives more than `PAIRS_PER_TEMPLATE` pairs.
* A hash of a template and its two largest slots' words decides the split: two words that meet in a
  template in the test split never meet in that template in training, though each of them, alone,
  occurs there. Templates with fewer than two slots are for training only.
"""

import re
from collections import defaultdict
from functools import cache

from training.phrasebook.grammar import Derivation, Grammar, GrammarError, digest

SPLITS = ("train", "valid", "test")
PAIRS_PER_TEMPLATE = 115
HELD_OUT_PER_MILLE = 18
# How often a fixed phrase stands in the training split: "Hello." is said more often than each of
# the thousand sentences about somebody's breakfast, and must not be learned last.
FIXED_PHRASE_COPIES = 8


def load(split: str) -> list[tuple[str, str]]:
    """Returns the pairs of one split.

    Args:
        split: "train", "valid" or "test".

    Returns:
        (Chinese, English) pairs in a fixed order that mixes the topics. They are distinct, but for
        the fixed phrases in "train", each of which stands there `FIXED_PHRASE_COPIES` times.

    Raises:
        ValueError: there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, received {split!r}")
    copies = [
        (digest(derivation.zh, derivation.en, str(copy)), derivation)
        for derivation in derivations()[split]
        for copy in range(1 if derivation.template.slots else FIXED_PHRASE_COPIES)
    ]
    return [(pair.zh, pair.en) for _, pair in sorted(copies, key=lambda item: item[0])]


@cache
def derivations() -> dict[str, tuple[Derivation, ...]]:
    """Generates the corpus: for each split, its pairs with what they were derived from.

    Raises:
        GrammarError: two templates translate the same Chinese sentence differently.
    """
    splits: dict[str, list[Derivation]] = {split: [] for split in SPLITS}
    for derivation in _generate():
        splits[_split_of(derivation)].append(derivation)

    # Two combinations can read alike (你/您, a pause more or less). What one split says, the next
    # ones do not repeat; nor do they use a word that training lacks.
    texts: set[str] = set()
    words: set[str] = set()
    result = {}
    for split in SPLITS:
        kept = []
        for derivation in splits[split]:
            said = {plain_text(derivation.zh), plain_text(derivation.en)}
            new_words = split != "train" and not words.issuperset(word_forms(derivation))
            if texts.isdisjoint(said) and not new_words:
                kept.append(derivation)
        for derivation in kept:
            texts |= {plain_text(derivation.zh), plain_text(derivation.en)}
            if split == "train":
                words |= word_forms(derivation)
        result[split] = tuple(sorted(kept, key=lambda pair: digest(pair.zh, pair.en)))
    return result


def plain_text(sentence: str) -> str:
    """Returns a sentence case-folded and without punctuation and spaces, to compare two of them."""
    return re.sub(r"[\W_]+", "", sentence.casefold())


def word_forms(derivation: Derivation) -> set[str]:
    """Returns a pair's English words, case-folded, and its Chinese characters."""
    return set(re.findall(r"[\w'’-]+", derivation.en.casefold())) | set(derivation.zh)


def by_topic() -> dict[str, list[Derivation]]:
    """Returns the derivations of all splits, grouped by topic in alphabetical order."""
    topics = defaultdict(list)
    for split in SPLITS:
        for derivation in derivations()[split]:
            topics[derivation.template.topic].append(derivation)
    return dict(sorted(topics.items()))


def _generate() -> list[Derivation]:
    grammar = Grammar()
    by_chinese: dict[str, Derivation] = {}
    for template in grammar.templates:
        for derivation in grammar.derive(template, PAIRS_PER_TEMPLATE):
            first = by_chinese.setdefault(derivation.zh, derivation)
            if first.en != derivation.en:
                raise GrammarError(
                    f"{derivation.zh} has two translations: {first.en!r} in "
                    f"{first.template.topic}.toml, {derivation.en!r} in {template.topic}.toml"
                )
    return list(by_chinese.values())


def _split_of(derivation: Derivation) -> str:
    if len(derivation.template.slots) < 2:
        return "train"
    position = digest("split", *derivation.combination) % 1000
    if position < HELD_OUT_PER_MILLE:
        return "test"
    return "valid" if position < 2 * HELD_OUT_PER_MILLE else "train"
