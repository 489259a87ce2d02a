"""Inspection: attention of references and of the model's own translations, without padding."""

import numpy as np
import pytest
import tensorflow as tf
from test_translator import SENTENCES, train_tokenizer, write_run

from keras_transformer import Translator, build_attention_model
from keras_transformer.config import DecodingConfig
from keras_transformer.inspection import Inspector

SOURCES = ["今天天气很好，我喜欢喝茶。", "你好。"]
REFERENCES = ["Hello", "The weather is good today, I like to drink tea."]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "run", {}, train_tokenizer(SENTENCES))
    return Translator.from_run(run, DecodingConfig(beam_size=1))


@pytest.fixture(scope="module")
def inspector(translator):
    return Inspector(translator)


def test_tokens_are_the_pieces_of_the_texts_without_padding(inspector, translator):
    for attention, source, reference in zip(
        inspector.references(SOURCES, REFERENCES), SOURCES, REFERENCES, strict=True
    ):
        assert "".join(attention.source).replace("▁", "") == source.replace("，", ",") + "</s>"
        assert attention.target[-1] == "</s>"
        assert "".join(attention.target[:-1]).replace("▁", " ").strip() == reference
        assert attention.target_input == ["<s>", *attention.target[:-1]]
        assert attention.text == reference


def test_weights_have_the_shape_of_the_tokens_and_rows_that_add_up_to_1(inspector):
    for attention in inspector.references(SOURCES, REFERENCES):
        s, t = len(attention.source), len(attention.target)
        assert attention.encoder.shape == (1, 2, s, s)
        assert attention.decoder.shape == (1, 2, t, t)
        assert attention.cross.shape == (1, 2, t, s)
        for weights in (attention.encoder, attention.decoder, attention.cross):
            assert weights.dtype == np.float32
            np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        assert np.all(np.triu(attention.decoder, k=1) == 0)


def test_a_pair_has_the_same_attention_alone_and_beside_longer_ones(inspector):
    together = inspector.references(SOURCES, REFERENCES)
    for i in range(2):
        (alone,) = inspector.references(SOURCES[i : i + 1], REFERENCES[i : i + 1])
        assert alone[:4] == together[i][:4]
        for a, b in zip(alone[4:], together[i][4:], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_the_weights_are_those_of_the_attention_model(inspector, translator):
    (attention,) = inspector.references(SOURCES[:1], REFERENCES[:1])
    labels, _ = translator.tokenizer.encode(tf.constant(REFERENCES[:1]), 100)
    scores = build_attention_model(translator.model)(
        {
            "source_ids": translator.tokenizer.encode(tf.constant(SOURCES[:1]), 100)[0],
            "target_ids": tf.concat([[[2]], labels[:, :-1]], axis=1),
        }
    )
    np.testing.assert_allclose(attention.cross, scores["cross"][0], atol=1e-6)


def test_own_translations_are_those_of_the_translator(inspector, translator):
    attentions = inspector.translations(SOURCES)
    assert [attention.text for attention in attentions] == translator(SOURCES)
    for attention in attentions:
        assert attention.target[-1] == "</s>" and "<pad>" not in attention.target


def test_an_empty_source_can_be_inspected(inspector):
    (attention,) = inspector.references([""], ["Hello"])
    assert attention.source == ["</s>"]
    assert attention.cross.shape[3] == 1
