"""English morphology: articles, plurals, verb forms, degrees of adjectives and numerals.

Each function follows the regular spelling rules; what English does not form by rule stands in
`data/irregular.toml`, which `grammar.py` reads and passes to `Morphology`.

A phrase inflects at one word: a noun phrase at its last ("train ticket" -> "train tickets"), a verb
phrase at its first ("go home" -> "went home"), an adjective phrase at its only one.
"""

import re
from dataclasses import dataclass, field

# Spelled with a vowel but spoken with a consonant ("a university"), and the reverse ("an hour").
CONSONANT_SOUND = ("uni", "use", "euro", "one")
VOWEL_SOUND = ("hour", "honest")

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()


def with_article(phrase: str) -> str:
    """Puts "a" or "an" before a singular noun phrase.

    Example:
        >>> with_article("umbrella"), with_article("university")
        ('an umbrella', 'a university')
    """
    word = phrase.lower()
    vowel = word[0] in "aeiou" and not word.startswith(CONSONANT_SOUND)
    return f"an {phrase}" if vowel or word.startswith(VOWEL_SOUND) else f"a {phrase}"


def possessive(phrase: str) -> str:
    """Adds 's, or the bare apostrophe after a plural: "my son's", "my parents'"."""
    return phrase + ("'" if phrase.endswith("s") else "'s")


def cardinal(number: int) -> str:
    """Writes a number below ten thousand in words: 125 -> "one hundred and twenty-five"."""
    if not 0 <= number < 10_000:
        raise ValueError(f"number must be in 0..9999, received {number}")
    if number < 20:
        return ONES[number]
    if number < 100:
        return TENS[number // 10] + (f"-{ONES[number % 10]}" if number % 10 else "")
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    head, rest = f"{ONES[number // size]} {name}", number % size
    if not rest:
        return head
    return f"{head} and {cardinal(rest)}" if rest < 100 else f"{head} {cardinal(rest)}"


def ordinal_digits(number: int) -> str:
    """Writes an ordinal as a date has it: 3 -> "3rd"."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def _add_s(word: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", word):
        return word + "es"
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + "s"


def _syllables(word: str) -> int:
    return len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word)))


def _add_vowel_suffix(word: str, suffix: str) -> str:
    """Joins -ed, -er, -est or -ing: "big" doubles its consonant, "nice" loses its e."""
    if word.endswith("e") and not (suffix == "ing" and word.endswith("ee")):
        return word[:-1] + suffix
    if re.search(r"[^aeiou]y$", word) and suffix != "ing":
        return word[:-1] + "i" + suffix
    if _syllables(word) == 1 and re.search(r"[^aeiou][aeiou][^aeiouwxy]$", word):
        return word + word[-1] + suffix
    return word + suffix


@dataclass(frozen=True)
class Morphology:
    """Inflects English words: the irregular ones from its tables, all others by rule.

    Args:
        nouns: plural by singular, such as child -> children.
        verbs: (past, past participle) by base form, such as go -> (went, gone).
        adjectives: (comparative, superlative) by adjective, such as good -> (better, best).
    """

    nouns: dict[str, str] = field(default_factory=dict)
    verbs: dict[str, list[str]] = field(default_factory=dict)
    adjectives: dict[str, list[str]] = field(default_factory=dict)

    def plural(self, noun: str) -> str:
        """Returns the plural of a noun phrase: "train ticket" -> "train tickets"."""
        head, space, last = noun.rpartition(" ")
        return head + space + self.nouns.get(last, _add_s(last))

    def present(self, verb: str, be: str) -> str:
        """Returns a verb phrase's present, for a subject that takes `be` ("am", "is" or "are")."""
        first, space, rest = verb.partition(" ")
        if first == "be":
            return be + space + rest
        if be != "is":
            return verb
        third = {"have": "has", "do": "does", "go": "goes"}.get(first, _add_s(first))
        return third + space + rest

    def past(self, verb: str, be: str = "is") -> str:
        """Returns a verb phrase's past: "go home" -> "went home"; "be" agrees with its subject."""
        first, space, rest = verb.partition(" ")
        if first == "be":
            return ("were" if be == "are" else "was") + space + rest
        return (self._irregular(first, 0) or _add_vowel_suffix(first, "ed")) + space + rest

    def participle(self, verb: str) -> str:
        """Returns a verb phrase's past participle: "go home" -> "gone home"."""
        first, space, rest = verb.partition(" ")
        return (self._irregular(first, 1) or _add_vowel_suffix(first, "ed")) + space + rest

    def progressive(self, verb: str) -> str:
        """Returns a verb phrase's -ing form: "swim" -> "swimming"."""
        first, space, rest = verb.partition(" ")
        return _add_vowel_suffix(first, "ing") + space + rest

    def comparative(self, adjective: str) -> str:
        """Returns the comparative: "taller", "busier", "more expensive"."""
        return self._degree(adjective, 0, "er", "more")

    def superlative(self, adjective: str) -> str:
        """Returns the superlative without its article: "tallest", "most expensive"."""
        return self._degree(adjective, 1, "est", "most")

    def _irregular(self, verb: str, index: int) -> str | None:
        return self.verbs[verb][index] if verb in self.verbs else None

    def _degree(self, adjective: str, index: int, suffix: str, word: str) -> str:
        if adjective in self.adjectives:
            return self.adjectives[adjective][index]
        syllables = _syllables(adjective)
        if syllables == 1 or (syllables == 2 and adjective.endswith("y")):
            return _add_vowel_suffix(adjective, suffix)
        return f"{word} {adjective}"
