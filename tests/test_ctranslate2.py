"""The export for CTranslate2: the same translations, by its engine, of every kind of model."""

import json

import numpy as np
import pytest
from exporting import CHINESE, ENGLISH, run_main, write_run

from keras_transformer import DecodingConfig, Translator
from keras_transformer.exported import CTranslate2Translator, load_translator
from training.evaluate import main as evaluate

pytest.importorskip("ctranslate2", reason="ctranslate2 is in requirements-bench.txt")
pytest.importorskip("sentencepiece")
TEXTS = [*CHINESE, *ENGLISH, "茶" * 40, ""]


def translators(run, folder, beam_size, *options):
    """Return the run's own translator, and that of its export."""
    command = run_main(run, "--output", folder, "--format", "ctranslate2", *options)
    assert command.status == 0, command.err
    path = command.out.splitlines()[-1]
    assert path == str(folder / f"{run.name}-ctranslate2")
    decoding = DecodingConfig(beam_size=beam_size, max_target_length=60)
    return Translator.from_run(run, decoding), CTranslate2Translator(path, decoding)


def share_of_equal(ours, theirs):
    translations = ours(TEXTS)
    assert len(set(translations)) > 5
    return np.mean([a == b for a, b in zip(translations, theirs(TEXTS), strict=True)])


# Greedily: sentences of random weights seldom end, and at the limit the beam searches differ.
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pre_norm": True, "activation": "gelu", "num_encoder_layers": 2},
        {"learned_positions": True, "activation": "silu", "tie_weights": False},
    ],
    ids=["paper", "pre_norm", "learned_positions"],
)
def test_the_export_translates_as_the_run_does(tmp_path, options):
    run = write_run(tmp_path / "run", **options)
    assert share_of_equal(*translators(run, tmp_path, 1)) >= 0.97


def test_separate_vocabularies_have_two_tokenizers(tmp_path):
    run = write_run(tmp_path / "run", separate_vocabularies=True)
    assert share_of_equal(*translators(run, tmp_path, 1)) >= 0.97
    assert (tmp_path / "run-ctranslate2/source_tokenizer.model").is_file()


def test_eight_bits_are_smaller_and_translate(tmp_path):
    run = write_run(tmp_path / "run")
    _, whole = translators(run, tmp_path / "a", 1)
    _, eighth = translators(run, tmp_path / "b", 1, "--quantization", "int8")
    sizes = [(tmp_path / name / "run-ctranslate2/model.bin").stat().st_size for name in ("a", "b")]
    assert sizes[1] < 0.8 * sizes[0]  # of which the positions are not quantised
    assert len(set(eighth(TEXTS))) > 5 and whole(TEXTS)[-1] == eighth(TEXTS)[-1] == ""


def test_the_folder_is_found_by_its_files_and_scores_as_the_run(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    translators(run, tmp_path, 1)
    folder = tmp_path / "run-ctranslate2"
    assert isinstance(load_translator(folder, beam_size=2), CTranslate2Translator)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run-ctranslate2"}
    test = tmp_path / "test.tsv"
    test.write_text("".join(f"{text}\tHello, tea.\n" for text in CHINESE), encoding="utf-8")
    scores = []
    for path in (run, folder):
        capsys.readouterr()
        assert evaluate([str(path), "--test", str(test), "--beam-size", "1"]) == 0
        scores.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert abs(scores[0]["bleu"] - scores[1]["bleu"]) <= 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "ctranslate2", "--beam-size", "2"], "--beam-size is not for"),
        (["--format", "ctranslate2", "--keep", "2"], "--keep is not for"),
        (["--quantization", "int8"], "--quantization is for --format ctranslate2"),
    ],
)
def test_what_a_folder_can_not_hold_is_refused(tmp_path, options, message):
    command = run_main(write_run(tmp_path / "run"), "--output", tmp_path / "out", *options)
    assert command.status == 2
    assert message in command.err and len(command.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_an_earlier_folder_is_not_written_over(tmp_path):
    run = write_run(tmp_path / "run")
    translators(run, tmp_path, 1)
    command = run_main(run, "--output", tmp_path, "--format", "ctranslate2")
    assert command.status == 2 and "exists: remove it or choose another --name" in command.err


def test_a_folder_that_is_not_whole_is_named(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"no model")
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match=str(tmp_path)):
        CTranslate2Translator(tmp_path)
