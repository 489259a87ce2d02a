"""Scores translations: `python -m training.evaluate RUN_OR_SAVEDMODEL --test FILE`."""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics.base import Score
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff]")


@dataclass(frozen=True)
class Scores:
    """Corpus-level scores.

    Attributes:
        bleu: BLEU, 0 to 100.
        chrf: chrF2, 0 to 100.
        signature: sacreBLEU's signature of the BLEU.
        chrf_signature: And of the chrF.
        bleu_mean: Mean BLEU of the bootstrap samples (Koehn 2004); None without a bootstrap.
        bleu_ci: Half the width of their 95% confidence interval.
        chrf_mean: The same of the chrF.
        chrf_ci: The same of the chrF.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    bleu_mean: float | None = None
    bleu_ci: float | None = None
    chrf_mean: float | None = None
    chrf_ci: float | None = None


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    lowercase: bool = False,
    num_bootstrap: int = 0,
) -> Scores:
    """Score translations with sacreBLEU, on detokenised text.

    BLEU's tokenizer follows the language of the references: "zh" for Chinese, "13a" otherwise.

    Args:
        hypotheses: Translations.
        references: One for each.
        lowercase: Ignore case.
        num_bootstrap: Samples of the test set for the confidence intervals; sacreBLEU draws them
            from the seed in the environment variable SACREBLEU_SEED (12345). A score of which some
            samples have none has no interval.

    Raises:
        ValueError: There is nothing to score, or the numbers differ.
    """
    if not references or len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be as many, at least one, received "
            f"{len(hypotheses)} and {len(references)}"
        )
    bleu = BLEU(tokenize=bleu_tokenizer(references), lowercase=lowercase)
    chrf = CHRF(lowercase=lowercase)
    bleu_score, chrf_score = (
        _corpus_score(metric, list(hypotheses), list(references), num_bootstrap)
        for metric in (bleu, chrf)
    )
    signatures = str(bleu.get_signature()), str(chrf.get_signature())
    return Scores(
        bleu_score.score,
        chrf_score.score,
        *signatures,
        *_confidence(bleu_score, signatures[0]),
        *_confidence(chrf_score, signatures[1]),
    )


def _corpus_score(
    metric: BLEU | CHRF, hypotheses: list[str], references: list[str], num_bootstrap: int
) -> Score:
    if num_bootstrap:
        try:
            return metric.corpus_score(hypotheses, [references], n_bootstrap=num_bootstrap)
        except TypeError:  # sacreBLEU 2.6.0 can't average NumPy's floats with the 0.0 of no match
            metric.n_bootstrap = metric.seed = None
    return metric.corpus_score(hypotheses, [references])


def _confidence(score: Score, signature: str) -> tuple[float | None, float | None]:
    """Return mean and half-width, which sacreBLEU tells in its report alone."""
    report = json.loads(score.format(width=4, signature=signature, is_json=True))
    return report.get("confidence_mean"), report.get("confidence_var")


def bleu_tokenizer(references: Sequence[str]) -> str:
    """Return "zh" if at least a third of the references hold Han characters, else "13a"."""
    num_chinese = sum(1 for line in references if HAN.search(line))
    return "zh" if 3 * num_chinese >= len(references) else "13a"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate",
        description="Translate a test set and score it; the last line of stdout is a JSON object.",
    )
    parser.add_argument("model", help="folder of a run, SavedModel (DIR/N/V) or CTranslate2")
    parser.add_argument("--test", required=True, help="TSV, or SOURCE,TARGET files; .gz works")
    parser.add_argument("--beam-size", type=int, help="default 4; not for a SavedModel")
    parser.add_argument(
        "--length-penalty", type=float, metavar="ALPHA", help="default 0.6; not for a SavedModel"
    )
    parser.add_argument("--output", help="file to write the translations to, one a line")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences at once (default 64)")
    parser.add_argument(
        "--bootstrap",
        type=int,
        default=1000,
        metavar="N",
        help="samples for the 95%% confidence intervals, 0 for none (default 1000)",
    )
    parser.add_argument("--lowercase", action="store_true", help="ignore case in both scores")
    options = parser.parse_args(argv)
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from keras_transformer.exported import load_translator
    from training.corpus import read_test_pairs

    try:
        if options.batch_size < 1:
            raise ValueError(f"--batch-size must be at least 1, received {options.batch_size}")
        if options.bootstrap < 0:
            raise ValueError(f"--bootstrap must not be negative, received {options.bootstrap}")
        pairs = read_test_pairs(options.test)
        translator = load_translator(options.model, options.beam_size, options.length_penalty)
        if options.output:
            Path(options.output).touch()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    start = time.perf_counter()
    hypotheses = translator(
        [source for source, _ in pairs], batch_size=options.batch_size, progress=True
    )
    seconds = time.perf_counter() - start
    if options.output:
        lines = [" ".join(hypothesis.splitlines()) for hypothesis in hypotheses]
        Path(options.output).write_text("\n".join(lines) + "\n", encoding="utf-8")
    references = [target for _, target in pairs]
    scores = score(hypotheses, references, options.lowercase, options.bootstrap)
    for (source, target), hypothesis in list(zip(pairs, hypotheses, strict=True))[:5]:
        print(f"source      {source}\ntranslation {hypothesis}\nreference   {target}\n")
    print(f"BLEU {scores.bleu:.2f}{_interval(scores.bleu_ci)}  {scores.signature}")
    print(f"chrF {scores.chrf:.2f}{_interval(scores.chrf_ci)}  {scores.chrf_signature}")
    result = {
        "bleu": round(scores.bleu, 2),
        "chrf": round(scores.chrf, 2),
        "bleu_ci": None if scores.bleu_ci is None else round(scores.bleu_ci, 2),
        "chrf_ci": None if scores.chrf_ci is None else round(scores.chrf_ci, 2),
        "signature": scores.signature,
        "sentences": len(pairs),
        "seconds": round(seconds, 2),
    }
    print(json.dumps(result))
    return 0


def _interval(half_width: float | None) -> str:
    return "" if half_width is None else f" ± {half_width:.2f}"


if __name__ == "__main__":
    sys.exit(main())
