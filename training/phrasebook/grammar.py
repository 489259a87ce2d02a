"""The synchronous grammar: one derivation makes a Chinese sentence and its English together.

`data/lexicon/*.toml` holds word classes, `data/topics/*.toml` holds templates. A template is a pair
of sentences with slots, and a slot is named after the class that fills it::

    { zh = "{person}昨天买了{count+fruit}。", en = "{person} bought {count+fruit} yesterday." }

Both sides get the same entries: 我昨天买了两个苹果。 / I bought two apples yesterday. A second slot
of the same class has a digit after its name (`{person2}`) and never takes the first one's entry.

What may stand between braces; only `{slot}` and `{count+noun}` have a meaning in Chinese:

    {noun}            the entry's own words
    {noun.a}          an apple, a cup of tea, a pair of jeans
    {noun.the}        the apple, the tea, the jeans
    {noun.many}       in general: apples, tea, jeans
    {noun.plural}     apples (of entries that can be counted)
    {count+noun}      两个苹果 / two apples, 两杯茶 / two cups of tea; `count` is a class of
                      numbers, or one of DETERMINERS: {this+noun} is 这个苹果 / this apple
    {person.object}   me, him, my father
    {person.possessive}  my, his, my father's
    {person|like}     the verb in the present, agreeing with its subject: I like, he likes;
                      `be` gives am, is or are. The verb may be a slot too: {person|activity}
    {person|was}      was or were
    {noun.many|be}    agrees with the general form: apples are, tea is
    {activity.past}  {activity.ing}  {activity.done}      went, going, gone
    {adjective.more}  {adjective.most}                    taller, tallest

A lexicon class is a list of entries. An entry is one of

* a word: `{ zh = "茶", en = "tea", measure = "杯", unit = "cup" }` (the fields of `Entry`);
* the name of another class, whose entries join this one: `food = ["fruit", "dish"]`;
* a phrase with slots: `{ zh = "{color}的{clothes}", en = "{color} {clothes}" }`. It stands for all
  its derivations, and takes measure word and agreement from its last slot;
* a range of numbers: `{ from = 2, to = 9, zh_style = "counting", en_style = "words" }`.
"""

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from math import prod
from pathlib import Path

from training.phrasebook.chinese import counting_numeral, numeral, spelled
from training.phrasebook.english import (
    Morphology,
    cardinal,
    ordinal_digits,
    possessive,
    with_article,
)

DATA = Path(__file__).parent / "data"
PLACEHOLDER = re.compile(r"\{([a-z_]+[0-9]*)(?:\.([a-z]+))?(?:([|+])([a-z_]+[0-9]*))?\}")
DETERMINERS = {
    "one": ("一", "a"),
    "this": ("这", "this"),
    "that": ("那", "that"),
    "which": ("哪", "which"),
    "every": ("每", "every"),
}
ZH_STYLES: dict[str, Callable[[int], str]] = {
    "numeral": numeral,
    "counting": counting_numeral,
    "spelled": spelled,
}
EN_STYLES: dict[str, Callable[[int], str]] = {
    "words": cardinal,
    "digits": str,
    "ordinal": ordinal_digits,
}


class GrammarError(ValueError):
    """The data files contradict themselves; the message says what and where."""


@dataclass(frozen=True)
class Entry:
    """One member of a word class: the two sides' words and what they need to inflect.

    Args:
        zh: the Chinese words.
        en: the English words: a noun's singular, a verb's base form.
        measure: a noun's measure word (一本书).
        unit: English needs a measure too, as in a "cup" of tea or a "pair" of jeans.
        mass: the noun has no plural ("homework").
        be: the form of "be" its English takes as a subject: "am", "is" or "are".
        object: a pronoun's object form.
        possessive: a pronoun's possessive form.
        number: the value of a number.
    """

    zh: str
    en: str
    measure: str = ""
    unit: str = ""
    mass: bool = False
    be: str = "is"
    object: str = ""
    possessive: str = ""
    number: int | None = None


@dataclass(frozen=True)
class Template:
    """A pair of sentences with slots.

    Args:
        topic: the name of the file it stands in.
        zh: the Chinese side, which also identifies the template.
        en: the English side.
        slots: the names between the braces, in the order of the Chinese side.
        choices: for each slot, the entries that fill it.
    """

    topic: str
    zh: str
    en: str
    slots: tuple[str, ...]
    choices: tuple[tuple[Entry, ...], ...]

    @property
    def key_slots(self) -> tuple[int, ...]:
        """Positions of the (at most two) slots with the most entries: they decide the split."""
        by_size = sorted(range(len(self.slots)), key=lambda i: -len(self.choices[i]))
        return tuple(sorted(by_size[:2]))


@dataclass(frozen=True)
class Derivation:
    """One sentence pair with the template and the entries it was made from."""

    template: Template
    entries: tuple[Entry, ...]
    zh: str
    en: str

    @property
    def combination(self) -> tuple[str, ...]:
        """The template and the Chinese of its key entries: what one split has to itself."""
        return (self.template.zh, *(self.entries[i].zh for i in self.template.key_slots))


Fillers = dict[str, Entry]
# A placeholder's text: (fillers, name, form, operator, argument) -> words.
FormOf = Callable[..., str]


class Grammar:
    """Lexicon and templates, read from a folder.

    Args:
        folder: holds `irregular.toml`, `lexicon/*.toml` and `topics/*.toml`.

    Raises:
        GrammarError: a file names a class or form that does not exist, or defines one twice.
    """

    def __init__(self, folder: Path = DATA):
        """Reads the files."""
        self._english = Morphology(**_read(folder / "irregular.toml"))
        self._source: dict[str, list] = {}
        for path in sorted((folder / "lexicon").glob("*.toml")):
            for name, rows in _read(path).items():
                if name in self._source:
                    raise GrammarError(f"{path.name}: the class {name!r} is defined twice")
                self._source[name] = rows
        self._classes: dict[str, tuple[Entry, ...]] = {}
        self._inflected = cache(self._inflect)
        self.templates = tuple(
            self._template(path.stem, row["zh"], row["en"])
            for path in sorted((folder / "topics").glob("*.toml"))
            for row in _read(path)["templates"]
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The word classes that the lexicon files define."""
        return tuple(self._source)

    def entries(self, name: str) -> tuple[Entry, ...]:
        """Returns a class's entries, phrases and ranges expanded.

        Raises:
            GrammarError: no lexicon file defines the class.
        """
        if name not in self._source:
            raise GrammarError(f"no word class is named {name!r}")
        if name not in self._classes:
            members = [entry for row in self._source[name] for entry in self._expand(row)]
            self._classes[name] = tuple(dict.fromkeys(members))
        return self._classes[name]

    def derive(self, template: Template, limit: int) -> Iterator[Derivation]:
        """Makes at most `limit` sentence pairs of a template.

        A template with fewer derivations than that gives them all; of a larger one, the hash of the
        template and a counter draws a sample, the same one everywhere.
        """
        for entries in islice(_distinct(template, limit), limit):
            fillers = dict(zip(template.slots, entries, strict=True))
            zh = self._render(template.zh, fillers, self._chinese_form)
            en = self._render(template.en, fillers, self._english_form)
            yield Derivation(template, entries, zh, en[0].upper() + en[1:])

    def _template(self, topic: str, zh: str, en: str) -> Template:
        try:
            slots = self._slots(zh)
            if set(slots) != set(self._slots(en)):
                raise GrammarError("the sides have different slots")
            choices = tuple(self.entries(_class_of(slot)) for slot in slots)
        except GrammarError as error:
            raise GrammarError(f"{topic}: {zh} / {en}: {error}") from error
        return Template(topic, zh, en, slots, choices)

    def _slots(self, text: str) -> tuple[str, ...]:
        """Returns the slots of one side, each once; determiners and literal verbs are none."""
        names = []
        for name, _, operator, argument in PLACEHOLDER.findall(text):
            if name not in DETERMINERS or operator != "+":
                names.append(name)
            if operator == "+" or (operator == "|" and _class_of(argument) in self._source):
                names.append(argument)
        if text.count("{") != len(PLACEHOLDER.findall(text)):
            raise GrammarError("a placeholder is malformed")
        return tuple(dict.fromkeys(names))

    def _expand(self, row: str | dict) -> Iterator[Entry]:
        if isinstance(row, str):
            yield from self.entries(row)
        elif "from" in row:
            zh, en = ZH_STYLES.get(row.get("zh_style", "")), EN_STYLES.get(row.get("en_style", ""))
            if zh is None or en is None:
                raise GrammarError(
                    f"zh_style must be one of {', '.join(ZH_STYLES)} and en_style one of "
                    f"{', '.join(EN_STYLES)}, received {row}"
                )
            for number in range(row["from"], row["to"] + 1, row.get("step", 1)):
                yield Entry(zh(number), en(number), number=number)
        elif "{" in row.get("zh", ""):
            phrase = self._template("lexicon", row["zh"], row["en"])
            for entries in product(*phrase.choices):
                fillers = dict(zip(phrase.slots, entries, strict=True))
                yield replace(
                    entries[-1],
                    zh=self._render(phrase.zh, fillers, self._chinese_form),
                    en=self._render(phrase.en, fillers, self._english_form),
                )
        else:
            try:
                yield Entry(**row)
            except TypeError as error:
                raise GrammarError(f"{row} is no lexicon entry: {error}") from error

    def _render(self, text: str, fillers: Fillers, form_of: FormOf) -> str:
        return PLACEHOLDER.sub(lambda match: form_of(fillers, *match.groups()), text)

    def _chinese_form(
        self, fillers: Fillers, name: str, form: str, operator: str, argument: str
    ) -> str:
        if form or operator == "|":
            raise GrammarError(f"Chinese has no forms: {{{name}.{form or argument}}}")
        if operator == "+":
            noun = fillers[argument]
            if not noun.measure:
                raise GrammarError(f"{noun.zh} ({noun.en}) has no measure word")
            count = DETERMINERS[name][0] if name in DETERMINERS else _counting(fillers[name])
            return count + noun.measure + noun.zh
        return fillers[name].zh

    def _english_form(
        self, fillers: Fillers, name: str, form: str, operator: str, argument: str
    ) -> str:
        if operator == "+":
            noun = fillers[argument]
            if name in DETERMINERS:
                word = DETERMINERS[name][1]
                return self._inflected(noun, "a" if word == "a" else f"{word} +")
            return f"{fillers[name].en} {self._inflected(noun, 'counted')}"
        entry = fillers[name]
        if operator == "|":
            verb = fillers[argument].en if argument in fillers else argument
            plural = form == "many" and not (entry.unit or entry.mass)
            be = "are" if plural else entry.be
            if verb == "was":
                return self._english.past("be", be)
            return self._english.present(verb, be)
        return self._inflected(entry, form) if form else entry.en

    def _inflect(self, entry: Entry, form: str) -> str:
        english = self._english
        one = f"{entry.unit} of {entry.en}" if entry.unit else entry.en
        match form:
            case "a":
                return with_article(one)
            case "the":
                return f"the {entry.en}"
            case "many":
                return entry.en if entry.unit or entry.mass else english.plural(entry.en)
            case "plural":
                return english.plural(entry.en)
            case "counted" if entry.unit:
                return f"{english.plural(entry.unit)} of {entry.en}"
            case "counted":
                return english.plural(entry.en)
            case "object":
                return entry.object or entry.en
            case "possessive":
                return entry.possessive or possessive(entry.en)
            case "past":
                return english.past(entry.en)
            case "done":
                return english.participle(entry.en)
            case "ing":
                return english.progressive(entry.en)
            case "more":
                return english.comparative(entry.en)
            case "most":
                return english.superlative(entry.en)
        if form.endswith(" +"):
            return f"{form.removesuffix(' +')} {one}"
        raise GrammarError(f"no English form is named {form!r}")


def digest(*parts: str) -> int:
    """Hashes text to an integer, the same on every platform and Python version."""
    data = "\t".join(parts).encode("utf-8")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def _distinct(template: Template, limit: int) -> Iterator[tuple[Entry, ...]]:
    """Yields entries for the slots: nobody is taller than himself, no two slots say the same."""
    sizes = [len(choice) for choice in template.choices]
    if prod(sizes) <= 2 * limit:
        drawn: Iterator[tuple[Entry, ...]] = iter(
            sorted(
                product(*template.choices),
                key=lambda entries: digest(template.zh, *(entry.zh for entry in entries)),
            )
        )
    else:
        drawn = _draw(template, sizes)
    for entries in drawn:
        if len({entry.zh for entry in entries}) == len(entries):
            yield entries


def _draw(template: Template, sizes: list[int]) -> Iterator[tuple[Entry, ...]]:
    seen: set[int] = set()
    counter = 0
    total = prod(sizes)
    while len(seen) < total:
        index = digest(template.zh, str(counter)) % total
        counter += 1
        if index in seen:
            continue
        seen.add(index)
        entries = []
        for choice in template.choices:
            index, position = divmod(index, len(choice))
            entries.append(choice[position])
        yield tuple(entries)


def _class_of(slot: str) -> str:
    return slot.rstrip("0123456789")


def _counting(entry: Entry) -> str:
    return entry.zh if entry.number is None else counting_numeral(entry.number)


def _read(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise GrammarError(f"{path.name}: {error}") from error
