"""Facts about the embedded Chinese-English corpus (training/phrasebook)."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from training import phrasebook
from training.phrasebook.__main__ import main
from training.phrasebook.chinese import counting_numeral, numeral, spelled
from training.phrasebook.english import Morphology, cardinal, ordinal_digits, with_article
from training.phrasebook.grammar import DATA, Grammar, GrammarError

ROOT = Path(__file__).resolve().parents[1]
PRINT_DIGEST = (
    "import hashlib; from training import phrasebook as p;"
    "print(hashlib.sha256(repr([p.load(s) for s in p.SPLITS]).encode()).hexdigest())"
)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return list(dict.fromkeys(p for split in phrasebook.SPLITS for p in phrasebook.load(split)))


@pytest.fixture(scope="module")
def grammar() -> Grammar:
    return Grammar()


@pytest.fixture(scope="module")
def english_of(pairs) -> dict[str, str]:
    return dict(pairs)


def english_words(sentences) -> set[str]:
    return {word for text in sentences for word in re.findall(r"[\w'-]+", text.casefold())}


def write_grammar(folder: Path, lexicon: str, templates: str) -> Grammar:
    for name, text in (("lexicon", lexicon), ("topics", f"templates = [{templates}]")):
        (folder / name).mkdir()
        (folder / name / "a.toml").write_text(text, encoding="utf-8")
    (folder / "irregular.toml").write_bytes((DATA / "irregular.toml").read_bytes())
    return Grammar(folder)


def derive_one(folder: Path, lexicon: str, zh: str, en: str) -> tuple[str, str]:
    grammar = write_grammar(folder, lexicon, f'{{ zh = "{zh}", en = "{en}" }}')
    (derivation,) = grammar.derive(grammar.templates[0], limit=10)
    return derivation.zh, derivation.en


# Size and balance


def test_corpus_has_the_size_it_promises(pairs):
    assert 24_000 <= len(pairs) <= 30_000
    assert 400 <= len(phrasebook.load("valid")) <= 600
    assert 400 <= len(phrasebook.load("test")) <= 600


def test_corpus_is_varied(pairs, grammar):
    assert len(phrasebook.by_topic()) >= 12
    assert sum(bool(template.slots) for template in grammar.templates) >= 80
    assert len(english_words(english for _, english in pairs)) >= 400
    assert 5 <= sum(len(english.split()) for _, english in pairs) / len(pairs) <= 10


def test_no_template_dominates():
    counts = Counter(
        derivation.template.zh
        for derivations in phrasebook.by_topic().values()
        for derivation in derivations
    )
    assert max(counts.values()) <= phrasebook.PAIRS_PER_TEMPLATE


def test_every_template_gives_a_pair(grammar):
    made = {
        derivation.template.zh
        for derivations in phrasebook.by_topic().values()
        for derivation in derivations
    }
    assert {template.zh for template in grammar.templates} == made


def test_only_fixed_phrases_stand_several_times_in_training():
    counts = Counter(phrasebook.load("train"))
    assert set(counts.values()) == {1, phrasebook.FIXED_PHRASE_COPIES}
    assert counts["你好。", "Hello."] == phrasebook.FIXED_PHRASE_COPIES
    for split in ("valid", "test"):
        assert set(Counter(phrasebook.load(split)).values()) == {1}


def test_every_chinese_sentence_has_one_translation(pairs):
    assert len({chinese for chinese, _ in pairs}) == len(pairs)


def test_generation_does_not_depend_on_the_hash_seed():
    def run(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", PRINT_DIGEST],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    here = repr([phrasebook.load(split) for split in phrasebook.SPLITS]).encode()
    assert {run("1"), run("2")} == {hashlib.sha256(here).hexdigest()}


# Splits


def test_no_sentence_stands_in_two_splits():
    for side in (0, 1):
        texts = {
            split: {phrasebook.plain_text(pair[side]) for pair in phrasebook.load(split)}
            for split in phrasebook.SPLITS
        }
        assert texts["train"].isdisjoint(texts["valid"] | texts["test"])
        assert texts["valid"].isdisjoint(texts["test"])


def test_held_out_combinations_are_not_in_training():
    combinations = {
        split: {derivation.combination for derivation in derivations}
        for split, derivations in phrasebook.derivations().items()
    }
    assert combinations["train"].isdisjoint(combinations["valid"] | combinations["test"])
    assert combinations["valid"].isdisjoint(combinations["test"])


def test_held_out_pairs_have_two_slots_or_more():
    for split in ("valid", "test"):
        for derivation in phrasebook.derivations()[split]:
            assert len(derivation.combination) == 3  # the template and two words


@pytest.mark.parametrize("split", ["valid", "test"])
def test_every_held_out_word_occurs_in_training(split):
    train, held_out = phrasebook.load("train"), phrasebook.load(split)
    assert english_words(e for _, e in held_out) <= english_words(e for _, e in train)
    assert set("".join(c for c, _ in held_out)) <= set("".join(c for c, _ in train))


def test_every_topic_is_in_the_test_split():
    topics = {derivation.template.topic for derivation in phrasebook.derivations()["test"]}
    assert topics == set(phrasebook.by_topic())


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be one of train, valid, test.*'dev'"):
        phrasebook.load("dev")


# Text


def test_chinese_is_characters_and_full_width_punctuation(pairs):
    for chinese, _ in pairs:
        assert re.fullmatch(r"[\u4e00-\u9fff〇，]+[。？！]", chinese), chinese


def test_english_starts_with_a_capital_and_ends_with_a_mark(pairs):
    for _, english in pairs:
        assert re.fullmatch(r"[A-Z][A-Za-zé0-9' ,.-]*[.?!]", english), english
        assert "  " not in english and " ." not in english


def test_both_sides_ask_or_both_tell(pairs):
    for chinese, english in pairs:
        assert (chinese[-1] == "？") == (english[-1] == "?"), (chinese, english)


def test_article_fits_the_sound_that_follows(pairs):
    exceptions = ("university", "hour")
    for _, english in pairs:
        for article, word in re.findall(r"(?<!')\b(a|an) (\w+)", english):
            if word not in exceptions:
                assert (article == "an") == (word[0] in "aeiou"), english


def test_two_is_liang_before_a_measure_word(pairs, grammar):
    measures = {entry.measure for name in grammar.class_names for entry in grammar.entries(name)}
    wrong = re.compile(f"(?<![十百千〇一二三四五六七八九])二[{''.join(sorted(measures))}]")
    assert not [chinese for chinese, _ in pairs if wrong.search(chinese)]


def test_a_word_has_one_measure_word_and_one_translation_in_its_class(grammar):
    measures = defaultdict(set)
    for name in grammar.class_names:
        entries = grammar.entries(name)
        assert len({entry.zh for entry in entries}) == len(entries), name
        for entry in entries:
            if entry.measure:
                measures[entry.zh, entry.en].add((entry.measure, entry.unit))
    assert [word for word, found in measures.items() if len(found) > 1] == []


@pytest.mark.parametrize(
    ("chinese", "english"),
    [
        ("你好。", "Hello."),
        ("谢谢。", "Thank you."),
        ("再见。", "Goodbye."),
        ("不客气。", "You're welcome."),
        ("早上好。", "Good morning."),
        ("现在三点半。", "It is half past three."),
        ("现在两点一刻。", "It is a quarter past two."),
    ],
)
def test_fixed_phrases_are_there(english_of, chinese, english):
    assert english_of[chinese] == english


# The grammar: both sides of one derivation

NOUNS = """
noun = [{ zh = "茶", en = "tea", measure = "杯", unit = "cup" }]
count = [{ from = 2, to = 2, zh_style = "counting", en_style = "words" }]
fruit = [{ zh = "苹果", en = "apple", measure = "个" }]
jeans = [{ zh = "牛仔裤", en = "jeans", measure = "条", unit = "pair", be = "are" }]
he = [{ zh = "他", en = "he", object = "him", possessive = "his" }]
me = [{ zh = "我", en = "I", be = "am", object = "me", possessive = "my" }]
dad = [{ zh = "我爸爸", en = "my father" }]
verb = [{ zh = "去看书", en = "go and read" }]
tall = [{ zh = "高", en = "tall" }]
color = [{ zh = "橙色", en = "orange" }]
colored = [{ zh = "{color}的{jeans}", en = "{color} {jeans}" }]
"""


@pytest.mark.parametrize(
    ("zh", "en", "expected"),
    [
        ("{count+noun}", "{count+noun}", ("两杯茶", "Two cups of tea")),
        ("{count+fruit}", "{count+fruit}", ("两个苹果", "Two apples")),
        ("{one+fruit}", "{one+fruit}", ("一个苹果", "An apple")),
        ("{this+noun}", "{this+noun}", ("这杯茶", "This cup of tea")),
        ("{fruit}", "{fruit.many} {fruit.many|be} good", ("苹果", "Apples are good")),
        ("{noun}", "{noun.many} {noun.many|be} good", ("茶", "Tea is good")),
        ("{jeans}", "{jeans.the} {jeans|be} new", ("牛仔裤", "The jeans are new")),
        ("{one+colored}", "{one+colored}", ("一条橙色的牛仔裤", "A pair of orange jeans")),
        ("{he}{verb}", "{he} {he|verb}", ("他去看书", "He goes and read")),
        ("{me}{verb}", "{me} {me|was} {verb.ing}", ("我去看书", "I was going and read")),
        ("{he}{verb}", "{he} {verb.past}", ("他去看书", "He went and read")),
        (
            "{he}比{me}{tall}",
            "{he|be} {tall.more} than {me.object}",
            ("他比我高", "Is taller than me"),
        ),
        ("{dad}", "{dad.possessive} {dad|have}", ("我爸爸", "My father's has")),
    ],
)
def test_one_derivation_inflects_both_sides(tmp_path, zh, en, expected):
    assert derive_one(tmp_path, NOUNS, zh, en) == expected


def test_two_slots_never_take_the_same_entry(tmp_path):
    lexicon = 'city = [{ zh = "甲", en = "A" }, { zh = "乙", en = "B" }]'
    grammar = write_grammar(tmp_path, lexicon, '{ zh = "{city}比{city2}", en = "{city} {city2}" }')
    made = {derivation.en for derivation in grammar.derive(grammar.templates[0], limit=10)}
    assert made == {"A B", "B A"}


@pytest.mark.parametrize(
    ("lexicon", "template", "message"),
    [
        ("", '{ zh = "{x}", en = "{x}" }', "no word class is named 'x'"),
        ('x = [{ zh = "一" }]', '{ zh = "{x}", en = "{x}" }', "no lexicon entry"),
        ('x = [{ zh = "一", en = "a" }]', '{ zh = "{x}", en = "a" }', "different slots"),
        ('x = [{ zh = "一", en = "a" }]', '{ zh = "{x", en = "{x}" }', "malformed"),
        ('x = [{ from = 1, to = 2, zh_style = "?" }]', '{ zh = "{x}", en = "{x}" }', "zh_style"),
    ],
)
def test_a_mistake_in_the_data_is_named(tmp_path, lexicon, template, message):
    with pytest.raises(GrammarError, match=message):
        write_grammar(tmp_path, lexicon, template)


def test_a_form_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(GrammarError, match="'plurl'"):
        derive_one(tmp_path, NOUNS, "{fruit}", "{fruit.plurl}")


def test_a_noun_without_measure_word_cannot_be_counted(tmp_path):
    with pytest.raises(GrammarError, match="no measure word"):
        derive_one(tmp_path, NOUNS, "{count+color}", "{count+color}")


# Morphology and numerals


def test_english_inflects_by_rule_and_by_exception():
    english = Morphology(nouns={"child": "children"}, verbs={"go": ["went", "gone"]})
    assert [english.plural(noun) for noun in ("watch", "strawberry", "bus stop", "child")] == [
        "watches", "strawberries", "bus stops", "children",
    ]  # fmt: skip
    assert [english.present(verb, "is") for verb in ("have", "wash clothes", "study", "play")] == [
        "has", "washes clothes", "studies", "plays",
    ]  # fmt: skip
    assert english.present("go home", "are") == "go home"
    assert [english.past(verb) for verb in ("go home", "study", "dance", "plan")] == [
        "went home", "studied", "danced", "planned",
    ]  # fmt: skip
    assert [english.progressive(verb) for verb in ("swim", "dance", "listen", "see", "study")] == [
        "swimming", "dancing", "listening", "seeing", "studying",
    ]  # fmt: skip
    assert [english.comparative(word) for word in ("big", "busy", "nice", "expensive", "new")] == [
        "bigger", "busier", "nicer", "more expensive", "newer",
    ]  # fmt: skip
    assert english.superlative("quiet") == "quietest"
    assert [with_article(noun) for noun in ("apple", "hour", "university", "pear")] == [
        "an apple", "an hour", "a university", "a pear",
    ]  # fmt: skip


def test_english_numerals():
    assert cardinal(25) == "twenty-five"
    assert cardinal(110) == "one hundred and ten"
    assert cardinal(2500) == "two thousand five hundred"
    assert [ordinal_digits(n) for n in (1, 2, 3, 4, 11, 12, 13, 22)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "22nd",
    ]  # fmt: skip


def test_chinese_numerals():
    assert [numeral(n) for n in (0, 2, 10, 12, 20, 105, 110, 200, 222, 2002, 2500)] == [
        "零", "二", "十", "十二", "二十", "一百零五", "一百一十", "两百", "两百二十二", "两千零二",
        "两千五百",
    ]  # fmt: skip
    assert [counting_numeral(n) for n in (2, 12, 22)] == ["两", "十二", "二十二"]
    assert spelled(305) == "三〇五"


@pytest.mark.parametrize("write", [cardinal, numeral])
def test_numerals_outside_their_range_are_refused(write):
    with pytest.raises(ValueError, match="number must be in 0..9999, received 10000"):
        write(10_000)


# Command line


def test_command_writes_the_three_splits(tmp_path, capsys):
    assert main(["--output", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    for split in phrasebook.SPLITS:
        content = (tmp_path / "new" / f"{split}.tsv").read_bytes()
        assert b"\r" not in content and content.endswith(b"\n")
        lines = content.decode("utf-8").removesuffix("\n").split("\n")
        assert [tuple(line.split("\t")) for line in lines] == phrasebook.load(split)
        assert f"{split}.tsv: {len(lines)} pairs" in printed


def test_command_shows_counts_and_examples_of_each_topic(capsys):
    assert main([]) == 0
    output = capsys.readouterr().out
    for topic, derivations in phrasebook.by_topic().items():
        assert f"{topic}: {len(derivations)} pairs" in output
    assert output.count("\t") == 5 * len(phrasebook.by_topic())


def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--output", str(tmp_path / "file")]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "file" in captured.err


def test_contradicting_data_is_reported_in_one_line(monkeypatch, capsys):
    def contradict():
        raise GrammarError("茶 has two translations")

    monkeypatch.setattr(phrasebook, "derivations", contradict)
    assert main([]) == 1
    assert capsys.readouterr().err == "phrasebook: 茶 has two translations\n"


def test_an_unknown_option_exits_with_2():
    with pytest.raises(SystemExit) as stop:
        main(["--outptu", "x"])
    assert stop.value.code == 2
