"""Scores are sacreBLEU's own, and what the evaluation command prints, writes and refuses."""

import json

import pytest
import sacrebleu

from training import evaluate
from training.evaluate import bleu_tokenizer, score

ENGLISH = ["The weather is good today.", "I like to drink tea.", "Where is the train station?"]
ENGLISH_GUESSES = ["The weather is good.", "i like to drink tea.", "Where is the station, please?"]
CHINESE = ["今天天气很好。", "我喜欢喝茶。", "火车站在哪里？"]
CHINESE_GUESSES = ["今天天气好。", "我喜欢茶。", "请问火车站在哪里？"]


# Scores


@pytest.mark.parametrize(
    "hypotheses, references, tokenizer",
    [(ENGLISH_GUESSES, ENGLISH, "13a"), (CHINESE_GUESSES, CHINESE, "zh")],
)
def test_scores_are_those_of_sacrebleu_called_directly(hypotheses, references, tokenizer):
    scores = score(hypotheses, references)
    bleu = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenizer)
    chrf = sacrebleu.corpus_chrf(hypotheses, [references])
    assert (scores.bleu, scores.chrf) == (bleu.score, chrf.score)
    assert 0 < scores.bleu < 100
    assert f"tok:{tokenizer}|" in scores.signature and "case:mixed" in scores.signature
    assert scores.chrf_signature.startswith("nrefs:1|case:mixed")


def test_a_perfect_translation_has_100_in_both_scores():
    scores = score(CHINESE, CHINESE)
    assert scores.bleu == pytest.approx(100) and scores.chrf == pytest.approx(100)


def test_lowercase_ignores_case_and_the_signature_says_so():
    shouted = [line.upper() for line in ENGLISH]
    assert score(shouted, ENGLISH).bleu < 20
    scores = score(shouted, ENGLISH, lowercase=True)
    assert scores.bleu == pytest.approx(100) and "case:lc" in scores.signature


@pytest.mark.parametrize(
    "references, tokenizer",
    [
        (CHINESE, "zh"),
        (ENGLISH, "13a"),
        ([*CHINESE, "OK!", "1984", "..."], "zh"),  # some lines of a Chinese text have no character
        ([*ENGLISH, *ENGLISH, "He is called 王."], "13a"),
        (["Das Wetter ist schön.", "Привет", ""], "13a"),
    ],
)
def test_the_tokenizer_follows_the_language_of_the_references(references, tokenizer):
    assert bleu_tokenizer(references) == tokenizer


def test_confidence_intervals_are_sacrebleus_own_and_repeat():
    hypotheses, references = 20 * ENGLISH_GUESSES, 20 * ENGLISH
    scores, again = (score(hypotheses, references, num_bootstrap=200) for _ in range(2))
    assert scores == again
    bleu = sacrebleu.BLEU(tokenize="13a").corpus_score(hypotheses, [references], n_bootstrap=200)
    assert f"(μ = {scores.bleu_mean:.2f} ± {scores.bleu_ci:.2f})" in bleu.format()
    chrf = sacrebleu.CHRF().corpus_score(hypotheses, [references], n_bootstrap=200)
    assert f"(μ = {scores.chrf_mean:.2f} ± {scores.chrf_ci:.2f})" in chrf.format()
    assert scores.bleu == score(hypotheses, references).bleu
    assert "bs:200|seed:12345" in scores.signature and 0 < scores.bleu_ci < 20


def test_a_score_with_samples_that_have_no_match_has_no_interval():
    hypotheses = ["x", "I like to drink tea.", "x"]
    scores = score(hypotheses, ENGLISH, num_bootstrap=100)
    assert scores.chrf_ci is None and "bs:" not in scores.chrf_signature
    assert scores.chrf == score(hypotheses, ENGLISH).chrf


def test_without_a_bootstrap_there_is_no_interval():
    scores = score(ENGLISH_GUESSES, ENGLISH)
    assert scores.bleu_ci is scores.bleu_mean is scores.chrf_ci is scores.chrf_mean is None


@pytest.mark.parametrize("hypotheses, references", [(["a"], ["a", "b"]), ([], [])])
def test_unequal_numbers_or_nothing_to_score_are_an_error_with_the_numbers(hypotheses, references):
    with pytest.raises(ValueError, match=f"received {len(hypotheses)} and {len(references)}$"):
        score(hypotheses, references)


# The command


@pytest.fixture
def test_file(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text(
        "".join(f"{zh}\t{en}\n" for zh, en in zip(CHINESE, ENGLISH, strict=True)), encoding="utf-8"
    )
    return path


@pytest.fixture
def answers():
    """What the translator of `translator` answers; a test may put something else in it."""
    return dict(zip(CHINESE, ENGLISH_GUESSES, strict=True))


@pytest.fixture
def translator(monkeypatch, answers):
    """Put a translator with known answers in the place of a model; returns what it was asked."""
    asked = {}

    def load(path, beam_size=None, length_penalty=None):
        asked.update(path=path, beam_size=beam_size, length_penalty=length_penalty)

        def translate(texts, batch_size=64, progress=False):
            asked.update(batch_size=batch_size)
            return [answers[text] for text in texts]

        return translate

    monkeypatch.setattr("keras_transformer.exported.load_translator", load)
    return asked


def error_line(capsys, *arguments):
    """Return the line on stderr of a command whose arguments are wrong."""
    assert evaluate.main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_the_last_line_of_stdout_is_a_json_object_with_the_promised_keys(
    translator, test_file, capsys
):
    assert evaluate.main(["run", "--test", str(test_file)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    promised = {"bleu", "chrf", "signature", "sentences", "seconds"}
    assert set(result) == promised | {"bleu_ci", "chrf_ci"}
    scores = score(ENGLISH_GUESSES, ENGLISH, num_bootstrap=1000)
    assert result["bleu_ci"] == pytest.approx(scores.bleu_ci, abs=0.005)
    assert result["bleu"] == pytest.approx(scores.bleu, abs=0.005)
    assert result["chrf"] == pytest.approx(scores.chrf, abs=0.005)
    assert result["signature"] == scores.signature
    assert result["sentences"] == 3 and result["seconds"] >= 0


def test_options_reach_the_translator(translator, test_file):
    arguments = ["some/run", "--test", str(test_file), "--beam-size", "7", "--batch-size", "2"]
    assert evaluate.main([*arguments, "--length-penalty", "1.5"]) == 0
    assert translator == {
        "path": "some/run",
        "beam_size": 7,
        "length_penalty": 1.5,
        "batch_size": 2,
    }


def test_output_has_a_line_for_each_translation_in_order(translator, answers, test_file, tmp_path):
    answers.update(zip(CHINESE, ["First.", "two\nlines\u2028or three", ""], strict=True))
    output = tmp_path / "hypotheses.txt"
    assert evaluate.main(["run", "--test", str(test_file), "--output", str(output)]) == 0
    assert output.read_text(encoding="utf-8") == "First.\ntwo lines or three\n\n"


def test_the_bootstrap_can_be_left_out(translator, test_file, capsys):
    assert evaluate.main(["run", "--test", str(test_file), "--bootstrap", "0"]) == 0
    *_, bleu, _, result = capsys.readouterr().out.splitlines()
    assert json.loads(result)["bleu_ci"] is None and "±" not in bleu
    line = error_line(capsys, "run", "--test", test_file, "--bootstrap", -1)
    assert line == "error: --bootstrap must not be negative, received -1"


def test_lowercase_reaches_the_scores(translator, test_file, capsys):
    assert evaluate.main(["run", "--test", str(test_file), "--lowercase"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["bleu"] == pytest.approx(
        score(ENGLISH_GUESSES, ENGLISH, lowercase=True).bleu, abs=0.005
    )


def test_a_missing_test_file_is_an_error_that_names_it(translator, tmp_path, capsys):
    missing = tmp_path / "missing.tsv"
    assert str(missing) in error_line(capsys, "run", "--test", missing)


def test_a_line_without_a_tab_is_an_error_that_names_file_and_line(translator, test_file, capsys):
    test_file.write_text("a\tb\nno tab\n")
    assert f"{test_file}:2" in error_line(capsys, "run", "--test", test_file)


def test_a_batch_size_below_1_is_an_error_that_names_it(translator, test_file, capsys):
    line = error_line(capsys, "run", "--test", test_file, "--batch-size", 0)
    assert line == "error: --batch-size must be at least 1, received 0"


def test_an_output_that_can_not_be_written_is_an_error_before_anything_is_translated(
    translator, test_file, tmp_path, capsys
):
    output = tmp_path / "missing" / "hypotheses.txt"
    assert str(output) in error_line(capsys, "run", "--test", test_file, "--output", output)
    assert "batch_size" not in translator


def test_a_folder_that_is_missing_or_no_model_is_an_error_that_names_it(
    test_file, tmp_path, capsys
):
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for folder in (missing, empty, test_file):
        assert str(folder) in error_line(capsys, folder, "--test", test_file)


def test_a_run_directory_that_is_not_whole_is_an_error_that_names_the_file(
    test_file, tmp_path, capsys
):
    (tmp_path / "config.json").write_text("{}")
    assert "tokenizer.model" in error_line(capsys, tmp_path, "--test", test_file)


@pytest.mark.parametrize("option", ["--beam-size", "--length-penalty"])
def test_a_search_option_for_a_savedmodel_is_an_error_that_says_why(
    test_file, tmp_path, capsys, option
):
    folder = tmp_path / "demo" / "1"
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").touch()
    line = error_line(capsys, folder, "--test", test_file, option, 4)
    name = option.strip("-").replace("-", " ")
    assert line == f"error: {name} can't be set for {folder}: fixed at export"


@pytest.mark.parametrize(
    "arguments", [[], ["run"], ["run", "--test"], ["run", "--test", "x", "--beam-size", "four"]]
)
def test_arguments_that_do_not_parse_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        evaluate.main(arguments)
    assert exit.value.code == 2
    assert "error: " in capsys.readouterr().err
