"""The translator: run directories, order and batches, n-best lists, and any text at all."""

import io
import json
import shutil

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer import DecodingConfig, ModelConfig, build_transformer
from keras_transformer.batching import translate_in_batches
from keras_transformer.config import END_ID, EXTRA_TARGET_LENGTH, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.segmentation import join_sentences
from keras_transformer.tokenizer import Tokenizer
from keras_transformer.translator import Translator, read_model_config

SENTENCES = """
你好。 | 我很好，谢谢你。 | 你叫什么名字？ | 今天天气很好。 | 我喜欢喝茶。 | 他在学校学习中文。
Hello. | I am fine, thank you. | What is your name? | The weather is good today.
I like to drink tea. | He studies Chinese at school.
"""
TEXTS = [
    "你好。",
    "今天天气很好，我喜欢喝茶。",
    "",
    "Hello",
    "你叫什么名字？",
    "茶",
    "你好。",
    " \n ",
]
MAX_LENGTH = 16


def train_tokenizer(text):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(part.strip() for part in text.replace("\n", "|").split("|")),
        model_writer=model,
        vocab_size=320,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=PAD_ID,
        unk_id=UNKNOWN_ID,
        bos_id=START_ID,
        eos_id=END_ID,
        normalization_rule_name="nmt_nfkc",
        character_coverage=0.9995,
        minloglevel=2,
    )
    return model.getvalue()


def write_run(run, model_options, tokenizer, source_tokenizer=None):
    """Write a run directory with random weights, none of them at its initial value."""
    run.mkdir()
    options = {
        "vocab_size": Tokenizer(tokenizer).vocab_size,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "d_model": 8,
        "num_heads": 2,
        "d_ff": 16,
        "max_length": MAX_LENGTH,
        **model_options,
    }
    (run / "tokenizer.model").write_bytes(tokenizer)
    if source_tokenizer:
        (run / "source_tokenizer.model").write_bytes(source_tokenizer)
        options["source_vocab_size"] = Tokenizer(source_tokenizer).vocab_size
    (run / "config.json").write_text(json.dumps({"model": options, "training": {}}))
    model = build_transformer(ModelConfig(**options))
    rng = np.random.default_rng(5)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.5 * rng.standard_normal(weight.shape))
    model.save_weights(run / "model.weights.h5")
    return run


@pytest.fixture(scope="module")
def tokenizer_bytes():
    return train_tokenizer(SENTENCES)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tokenizer_bytes):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", {}, tokenizer_bytes)


@pytest.fixture(scope="module")
def translators(run):
    """Return translators of one run by beam size: don't train them."""
    return {
        beam_size: Translator.from_run(run, DecodingConfig(beam_size=beam_size))
        for beam_size in (1, 4)
    }


def as_graph(function):
    return tf.function(function, input_signature=[tf.TensorSpec([None], tf.string)])


@pytest.fixture(scope="module")
def n_best(translators):
    """Return the n_best of each translator as a graph: eagerly it takes seconds."""
    return {beam_size: as_graph(t.n_best) for beam_size, t in translators.items()}


@pytest.fixture
def broken_run(run, tmp_path):
    """Return a copy of the run, to break."""
    return shutil.copytree(run, tmp_path / "broken")


def test_a_run_translates(translators):
    for translator in translators.values():
        translations = translator(TEXTS)
        assert len(translations) == len(TEXTS)
        assert all(isinstance(translation, str) for translation in translations)
        assert len(set(translations)) > 3


def test_the_defaults_are_those_of_the_paper(run):
    translator = Translator.from_run(str(run))
    assert (translator.decoding.beam_size, translator.decoding.length_penalty) == (4, 0.6)
    assert translator.max_source_length == MAX_LENGTH


@pytest.mark.parametrize("beam_size", [1, 4])
def test_order_and_batches_change_nothing(translators, beam_size):
    translator = translators[beam_size]
    translations = translator(TEXTS)
    assert translator(TEXTS, batch_size=1) == translations
    assert translator(TEXTS, batch_size=3) == translations
    assert translator(TEXTS[::-1], batch_size=2) == translations[::-1]
    assert translator(TEXTS[:1] + TEXTS[4:5]) == [translations[0], translations[4]]
    assert translations[0] == translations[6]  # equal texts


@pytest.mark.parametrize("beam_size", [1, 4])
def test_empty_and_blank_texts_give_empty_translations(translators, n_best, beam_size):
    blank = ["", " ", "\n\t", "\u3000", "\ufffd"]
    assert translators[beam_size](blank) == [""] * len(blank)
    *empty, real = translators[beam_size]([*blank, "你好。"])
    assert empty == [""] * len(blank) and real
    empty, real = n_best[beam_size](tf.constant(["", "你好。"]))["translations"].numpy().tolist()
    assert empty == [b""] * beam_size and b"" not in real


def test_no_texts_give_no_translations(translators, n_best):
    for beam_size, translator in translators.items():
        assert translator([]) == []
        found = n_best[beam_size](tf.constant([], tf.string))
        assert found["translations"].shape == found["scores"].shape == (0, beam_size)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_n_best_has_all_hypotheses_best_first(n_best, beam_size):
    found = n_best[beam_size](tf.constant(TEXTS))
    ids = found.pop("ids")
    assert (ids.dtype, ids.shape[:2]) == (tf.int32, (len(TEXTS), beam_size))
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        "translations": (tf.string, (len(TEXTS), beam_size)),
        "scores": (tf.float32, (len(TEXTS), beam_size)),
        "num_tokens": (tf.int32, (len(TEXTS), beam_size)),
        "truncated": (tf.bool, (len(TEXTS),)),
    }
    scores = found["scores"].numpy()
    is_blank = np.array([not text.strip() for text in TEXTS])
    assert np.isfinite(scores[~is_blank]).all()
    assert np.isfinite(scores[:, 0]).all()
    assert (scores[is_blank, 1:] == -np.inf).all()  # there is only one: nothing
    assert (scores[:, 1:] <= scores[:, :-1]).all()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_translation_is_the_first_of_the_n_best(translators, n_best, beam_size):
    translator = translators[beam_size]
    best = as_graph(translator.translate)(tf.constant(TEXTS))
    found = n_best[beam_size](tf.constant(TEXTS))
    assert {name: (value.dtype, value.shape) for name, value in best.items()} == {
        "translation": (tf.string, (len(TEXTS),)),
        "score": (tf.float32, (len(TEXTS),)),
        "num_tokens": (tf.int32, (len(TEXTS),)),
        "truncated": (tf.bool, (len(TEXTS),)),
    }
    for one, many in (
        ("translation", "translations"),
        ("score", "scores"),
        ("num_tokens", "num_tokens"),
    ):
        np.testing.assert_array_equal(best[one], found[many][:, 0])
    texts = [translation.decode() for translation in best["translation"].numpy()]
    assert translator(TEXTS) == texts
    ids = translator.best_ids(TEXTS)
    assert translator.tokenizer.decode(ids).numpy().tolist() == [text.encode() for text in texts]


def test_translations_are_the_decoded_hypotheses(translators, n_best):
    # Run eagerly, too: both ways give the same.
    translator = translators[4]
    source_ids, _ = translator.tokenizer.encode(tf.constant(TEXTS[:2]), MAX_LENGTH)
    hypotheses = translator._search(source_ids, num_best=4)
    expected = [translator.tokenizer.decode(ids).numpy().tolist() for ids in hypotheses.ids]
    found = n_best[4](tf.constant(TEXTS[:2]))
    assert found["translations"].numpy().tolist() == expected
    np.testing.assert_array_equal(found["num_tokens"], hypotheses.lengths)


def test_the_length_penalty_reaches_the_scores(translators):
    text = tf.constant(["你好。"])
    plain, divided = (
        as_graph(
            Translator(
                translators[1].model,
                translators[1].tokenizer,
                max_length=16,
                decoding=DecodingConfig(beam_size=1, length_penalty=alpha),
            ).translate
        )(text)
        for alpha in (0.0, 1.0)
    )
    penalty = (5 + plain["num_tokens"].numpy()) / 6
    np.testing.assert_allclose(plain["score"].numpy() / penalty, divided["score"], rtol=1e-5)


def test_no_translation_is_more_than_50_tokens_longer_than_its_source(translators, n_best):
    tokenizer = translators[1].tokenizer
    source_ids, _ = tokenizer.encode(tf.constant(TEXTS), MAX_LENGTH)
    limits = np.sum(source_ids != PAD_ID, axis=1) + EXTRA_TARGET_LENGTH
    for search in n_best.values():
        num_tokens = search(tf.constant(TEXTS))["num_tokens"].numpy()
        assert (num_tokens <= limits[:, np.newaxis]).all()
        assert (num_tokens.max(axis=1) == limits).any()


def test_only_what_is_cut_is_called_truncated(translators, n_best):
    translator = translators[1]
    texts = ["你好。", "茶" * 100, "", "茶" * 13, "茶" * 14, "茶" * 15, "茶" * 16]
    lengths = translator.tokenizer.tokenize(tf.constant(texts)).row_lengths().numpy() + 1
    assert set(lengths) >= {MAX_LENGTH, MAX_LENGTH + 1}
    truncated = n_best[1](tf.constant(texts))["truncated"].numpy()
    np.testing.assert_array_equal(truncated, lengths > MAX_LENGTH)


def test_very_long_and_strange_texts_are_translated(translators):
    texts = ["茶" * 100_000, "a" * 100_000, "\0", "😀龘", "a\ud800b", "</s>", "茶" * 100]
    translations = translators[4](texts)
    assert len(translations) == len(texts) and all(translations)
    assert translations[0] == translations[-1]  # what is cut off does not matter
    assert translations[4] == translators[4](["a\ufffd\ufffd\ufffdb"])[0]


def test_learned_positions_suffice_for_the_longest_translation(tmp_path, tokenizer_bytes):
    run = write_run(tmp_path / "learned", {"learned_positions": True}, tokenizer_bytes)
    translator = Translator.from_run(run, DecodingConfig(beam_size=1))
    found = as_graph(translator.translate)(tf.constant(["茶" * 100]))
    assert found["num_tokens"].numpy().tolist() == [MAX_LENGTH + EXTRA_TARGET_LENGTH]


def test_separate_vocabularies_use_both_tokenizers(tmp_path, tokenizer_bytes):
    source_bytes = train_tokenizer("茶 | 你好 | 你好茶 | xyz")
    run = write_run(tmp_path / "separate", {}, tokenizer_bytes, source_bytes)
    translator = Translator.from_run(run, DecodingConfig(beam_size=1))
    assert translator.source_tokenizer.vocab_size == Tokenizer(source_bytes).vocab_size
    assert translator.tokenizer.vocab_size == Tokenizer(tokenizer_bytes).vocab_size
    assert translator.source_tokenizer.vocab_size != translator.tokenizer.vocab_size
    translations = translator(["你好", "", "茶"])
    assert translations[1] == "" and translations[0] and translations[0] != translations[2]
    # The source ids are those of the source's vocabulary.
    ids, _ = Tokenizer(source_bytes).encode(tf.constant(["你好"]), MAX_LENGTH)
    found = []
    translator._decoder.start = lambda ids: found.append(ids.numpy()) or _stop()
    with pytest.raises(StopIteration):
        translator.translate(tf.constant(["你好"]))
    np.testing.assert_array_equal(found[0], ids)

    (run / "source_tokenizer.model").unlink()
    assert_one_line(run, "source_tokenizer.model", "No such file")
    (run / "source_tokenizer.model").write_bytes(tokenizer_bytes)
    assert_one_line(run, "source_tokenizer.model", "pieces, the model of config.json")


def _stop():
    raise StopIteration


def test_training_on_changes_the_translation(tmp_path, tokenizer_bytes):
    run = write_run(tmp_path / "run", {"d_model": 16, "dropout": 0.0}, tokenizer_bytes)
    translator = Translator.from_run(run, DecodingConfig(beam_size=1))
    before = translator(["你好。"])
    source_ids, _ = translator.tokenizer.encode(tf.constant(["你好。"]), MAX_LENGTH)
    labels, _ = translator.tokenizer.encode(tf.constant(["tea."]), 30)
    target_ids = np.concatenate([[[START_ID]], labels[:, :-1]], axis=1)
    translator.model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    inputs = {"source_ids": source_ids, "target_ids": tf.constant(target_ids, tf.int32)}
    data = tf.data.Dataset.from_tensors((inputs, labels)).repeat(150)
    translator.model.fit(data, shuffle=False, verbose=0)
    assert translator(["你好。"]) == ["tea."] != before


def test_the_progress_bar_goes_to_stderr_only_if_asked_for(capsys):
    def shout(batch):
        return [text.decode().upper() for text in batch]

    assert translate_in_batches(shout, ["bb", "a", "ccc"], batch_size=2) == ["BB", "A", "CCC"]
    assert capsys.readouterr() == ("", "")
    translate_in_batches(shout, ["bb", "a", "ccc"], batch_size=2, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "sentence" in err


def test_batches_hold_texts_of_similar_length_and_no_more_than_asked_for():
    batches = []

    def record(batch):
        batches.append([len(text) for text in batch])
        return [text.decode() for text in batch]

    texts = ["x" * length for length in (9, 1, 5, 2, 8)]
    assert translate_in_batches(record, texts, batch_size=2) == texts
    assert batches == [[1, 2], [5, 8], [9]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size must be a positive integer, received 0"),
        ({"length_penalty": -0.5}, "length_penalty must be a number, 0 or more, received -0.5"),
        ({"length_penalty": float("nan")}, "length_penalty must be a number, 0 or more"),
        ({"coverage_penalty": "a"}, "coverage_penalty must be a number, 0 or more, received 'a'"),
        ({"num_best": 5}, "num_best must not exceed beam_size, 4, received 5"),
        ({"num_best": 0}, "num_best must be a positive integer, received 0"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram must be an integer, 0 or more, received -1"),
        ({"max_source_length": 0}, "max_source_length must be a positive integer, received 0"),
        ({"max_target_length": 1.5}, "max_target_length must be a positive integer"),
        ({"beam_size": 1, "coverage_penalty": 0.1}, "coverage_penalty needs a beam_size above 1"),
    ],
)
def test_options_outside_their_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DecodingConfig(**options)


def test_a_score_is_that_of_the_translation_it_is_given(translators):
    translator = translators[4]
    found = as_graph(translator.translate)(tf.constant(TEXTS))
    scored = tf.function(translator.score)(tf.constant(TEXTS), found["translation"])
    source_ids, _ = translator.tokenizer.encode(tf.constant(TEXTS), MAX_LENGTH)
    searched = translator._search(source_ids).ids[:, 0].numpy()
    encoded, _ = translator.tokenizer.encode(found["translation"], 100)
    # Random weights choose bytes that make no character, which the tokenizer can't give back.
    same = [
        i
        for i, ids in enumerate(searched)
        if np.trim_zeros(ids).tolist() == np.trim_zeros(encoded[i].numpy()).tolist()
    ]
    assert len(same) > 1
    penalty = ((5 + scored["num_tokens"].numpy()) / 6) ** 0.6
    for i in same:
        assert scored["num_tokens"][i] == found["num_tokens"][i]
        score = scored["log_prob"][i] / penalty[i]
        np.testing.assert_allclose(score, found["score"][i], rtol=1e-4)


def test_any_translation_can_be_scored(translators):
    translator = translators[1]
    sources, targets = tf.constant(["你好。", "茶"]), tf.constant(["tea.", ""])
    scored = tf.function(translator.score)(sources, targets)
    for i in range(2):
        source_ids, _ = translator.tokenizer.encode(sources[i : i + 1], MAX_LENGTH)
        labels = translator.tokenizer.encode(targets[i : i + 1], 99)[0].numpy()
        target_ids = np.concatenate([[[START_ID]], labels[:, :-1]], axis=1)
        target_ids = tf.constant(target_ids, tf.int32)
        logits = translator.model({"source_ids": source_ids, "target_ids": target_ids})
        log_probs = tf.nn.log_softmax(logits).numpy()[0]
        expected = log_probs[np.arange(labels.shape[1]), labels[0]].sum()
        assert scored["num_tokens"][i] == labels.shape[1]
        np.testing.assert_allclose(scored["log_prob"][i], expected, rtol=1e-5)


def test_attention_has_a_row_of_weights_for_each_token(translators):
    translator = translators[4]
    texts = tf.constant(["你好。", "", "你好。" * 2])
    found = {name: value.numpy() for name, value in as_graph(translator.attention)(texts).items()}
    assert [text.decode() for text in found["translation"]] == translator(
        ["你好。", "", "你好。" * 2]
    )
    source, target = found["source_tokens"] != b"", found["target_tokens"] != b""
    weights = found["cross_attention"]
    assert weights.shape[0] == 3 and weights.shape[3:] == (target.shape[1], source.shape[1])
    for i in range(3):
        assert found["source_tokens"][i][source[i]][-1] == b"</s>"
        assert found["target_tokens"][i][target[i]][-1] == b"</s>"
        np.testing.assert_allclose(weights[i][..., target[i], :].sum(-1), 1.0, rtol=1e-5)
        assert (weights[i][..., ~target[i], :] == 0).all()
        assert (weights[i][..., ~source[i]] == 0).all()


def test_a_sample_of_a_text_depends_on_its_seed_alone(translators):
    def sample(texts, seeds, temperature=1.0):
        count = len(texts)
        return sampled(
            tf.constant(texts),
            tf.fill([count], temperature),
            tf.zeros([count], tf.int32),
            tf.ones([count]),
            tf.constant(seeds, tf.int32),
        )["translation"].numpy()

    sampled = tf.function(translators[1].sample)
    first = sample(["你好。"] * 8, range(8))
    assert len(set(first)) > 4
    np.testing.assert_array_equal(sample(["你好。"] * 2 + ["茶"], [5, 3, 0])[:2], first[[5, 3]])
    greedy = translators[1](["你好。"])[0]
    assert sample(["你好。"] * 2, [1, 2], temperature=0.0).tolist() == [greedy.encode()] * 2


def test_a_longest_translation_and_a_longest_source_may_be_set(translators):
    model, tokenizer = translators[1].model, translators[1].tokenizer
    decoding = DecodingConfig(beam_size=1, max_source_length=3, max_target_length=5)
    translator = Translator(model, tokenizer, max_length=MAX_LENGTH, decoding=decoding)
    found = as_graph(translator.translate)(tf.constant(TEXTS))
    assert found["num_tokens"].numpy().max() == 5
    lengths = tokenizer.tokenize(tf.constant(TEXTS)).row_lengths().numpy()
    np.testing.assert_array_equal(found["truncated"], lengths > 2)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_segments_are_translated_one_by_one_and_joined(translators, beam_size):
    model, tokenizer = translators[1].model, translators[1].tokenizer
    whole, segmented = (
        Translator(model, tokenizer, None, MAX_LENGTH, DecodingConfig(beam_size, segment=segment))
        for segment in (False, True)
    )
    texts = ["你好。", "茶？你好！", "", "Tea. You and 3.14 tea.", "茶" * 100 + "。你好。"]
    parts = [["你好。"], ["茶？", "你好！"], [""], ["Tea.", "You and 3.14 tea."]]
    parts.append(["茶" * 100 + "。", "你好。"])
    found = as_graph(segmented.n_best)(tf.constant(texts))
    for i, sentences in enumerate(parts):
        alone = as_graph(whole.n_best)(tf.constant(sentences))
        for n in range(beam_size):
            best = tf.constant([alone["translations"][:, n].numpy().tolist()])
            joined = join_sentences(tf.RaggedTensor.from_tensor(best))[0]
            assert found["translations"][i, n] == joined
        lengths = alone["num_tokens"].numpy()
        log_probs = alone["scores"].numpy() * ((5 + lengths) / 6) ** 0.6
        total = lengths.sum(axis=0)
        assert found["truncated"][i] == any(alone["truncated"])
        np.testing.assert_array_equal(found["num_tokens"][i], total)
        np.testing.assert_allclose(
            found["scores"][i], log_probs.sum(axis=0) / ((5 + total) / 6) ** 0.6, rtol=1e-4
        )


def assert_one_line(run, *parts):
    with pytest.raises(ValueError) as error:
        Translator.from_run(run)
    message = str(error.value)
    for part in (str(run), *parts):
        assert part in message
    assert len(message.splitlines()) == 1


def test_a_missing_run_is_named(tmp_path):
    assert_one_line(tmp_path / "nowhere", "no such run directory")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.model", "model.weights.h5"])
def test_a_missing_file_is_named(broken_run, name):
    (broken_run / name).unlink()
    assert_one_line(broken_run, name, "no such file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        ("null", "NoneType"),
        ("{}", "has no key 'model'"),
        ('{"model": 3}', "int"),
        ('{"model": {}}', "vocab_size is missing"),
        ('{"model": {"vocab_size": 9, "colour": 1}}', "unknown model option 'colour'"),
        ('{"model": {"vocab_size": "9"}}', "vocab_size must be an integer"),
    ],
)
def test_a_broken_configuration_is_named(broken_run, text, message):
    (broken_run / "config.json").write_text(text)
    assert_one_line(broken_run, "config.json", message)


def test_a_configuration_that_is_no_text_is_named(broken_run):
    (broken_run / "config.json").write_bytes(b"\xff\xfe{}")
    assert_one_line(broken_run, "config.json", "decode")
    (broken_run / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json: No such file"):
        read_model_config(broken_run)


@pytest.mark.parametrize(
    "options",
    [{"d_model": 16}, {"num_decoder_layers": 2}, {"tie_weights": False}, {"pre_norm": True}],
)
def test_weights_of_another_model_are_named(broken_run, options):
    config = json.loads((broken_run / "config.json").read_text())
    config["model"].update(options)
    (broken_run / "config.json").write_text(json.dumps(config))
    assert_one_line(broken_run, "model.weights.h5", "does not load into the model")


def test_weights_that_are_not_whole_are_named(broken_run):
    path = broken_run / "model.weights.h5"
    content = path.read_bytes()
    for part in (b"", b"garbage", content[: len(content) // 2]):
        path.write_bytes(part)
        assert_one_line(broken_run, "model.weights.h5", "open file")


def test_a_tokenizer_that_does_not_fit_is_named(broken_run):
    (broken_run / "tokenizer.model").write_bytes(b"garbage")
    assert_one_line(broken_run, "tokenizer.model", "no SentencePiece model")
    (broken_run / "tokenizer.model").write_bytes(train_tokenizer("a | b | ab"))
    assert_one_line(broken_run, "tokenizer.model", "pieces, the model of config.json")
