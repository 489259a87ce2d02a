"""Scores translations: `python -m training.evaluate RUN_OR_SAVEDMODEL --test FILE`."""

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str


def score(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Scores:
    """Score translations with sacreBLEU, on detokenised text.

    BLEU's tokenizer follows the language of the references: "zh" for Chinese, "13a" otherwise.

    Args:
        hypotheses: Translations.
        references: One for each.
        lowercase: Ignore case.

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
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return Scores(
        bleu_score.score, chrf_score.score, str(bleu.get_signature()), str(chrf.get_signature())
    )


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
    parser.add_argument("--output", help="file to write the translations to, one a line")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences at once (default 64)")
    parser.add_argument("--lowercase", action="store_true", help="ignore case in both scores")
    options = parser.parse_args(argv)
    # Loaded here, so that --help and a mistake in the arguments answer at once.
    from keras_transformer.exported import load_translator
    from training.corpus import read_test_pairs

    try:
        if options.batch_size < 1:
            raise ValueError(f"--batch-size must be at least 1, received {options.batch_size}")
        pairs = read_test_pairs(options.test)
        translator = load_translator(options.model, options.beam_size)
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
    scores = score(hypotheses, [target for _, target in pairs], options.lowercase)
    for (source, target), hypothesis in list(zip(pairs, hypotheses, strict=True))[:5]:
        print(f"source      {source}\ntranslation {hypothesis}\nreference   {target}\n")
    print(f"BLEU {scores.bleu:.2f}  {scores.signature}")
    print(f"chrF {scores.chrf:.2f}  {scores.chrf_signature}")
    result = {
        "bleu": round(scores.bleu, 2),
        "chrf": round(scores.chrf, 2),
        "signature": scores.signature,
        "sentences": len(pairs),
        "seconds": round(seconds, 2),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
