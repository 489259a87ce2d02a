"""Decoding speed: the exported SavedModel against CTranslate2 with the very same weights.

    python benchmarks/decode.py RUN --source FILE

Strings in, strings out, as a server would: the SavedModel is restored and its signature called;
CTranslate2's sentences pass through the same SentencePiece model. The engines take turns in one
process, so that a change in the machine's speed meets them all.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ENGINES = ("tensorflow", "ctranslate2 float32", "ctranslate2 int8")


def main():
    """Export the run for each engine, measure, and print the tables."""
    options = parse()
    texts = read_sentences(options.source, options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        write_exports(options.run, Path(folder), options.beam_sizes)
        for beam_size in options.beam_sizes:
            engines = {name: load_engine(name, folder, beam_size) for name in ENGINES}
            report_speed(engines, texts, beam_size, options)
            report_agreement(engines, texts)
        report_memory(folder, options)


def write_exports(run, folder, beam_sizes):
    """Write `folder`/saved_model_K for each beam size K, /float32 and /int8."""
    from export.ctranslate2_folder import save as save_ctranslate2
    from export.signatures import save as save_saved_model
    from keras_transformer import DecodingConfig, Translator

    for beam_size in beam_sizes:
        # Without length penalty: the two engines' formulas differ.
        translator = Translator.from_run(
            run, DecodingConfig(beam_size=beam_size, length_penalty=0.0)
        )
        save_saved_model(translator, str(folder / f"saved_model_{beam_size}"))
    for quantization in ("float32", "int8"):
        folder.joinpath(quantization).mkdir()
        save_ctranslate2(translator, folder / quantization, quantization)


def load_engine(name, folder, beam_size):
    """Return a function from a list of strings to a list of strings."""
    if name == "tensorflow":
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  registers SentencePiece's ops

        loaded = tf.saved_model.load(str(Path(folder) / f"saved_model_{beam_size}"))
        signature = loaded.signatures["serving_default"]

        def translate(texts):
            translations = signature(text=tf.constant(texts))["translation"].numpy()
            return [text.decode() for text in translations]

        translate.loaded = loaded  # whose variables the signature does not keep alive
        return translate

    import ctranslate2
    import sentencepiece

    folder = Path(folder) / name.split()[1]
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    translator = ctranslate2.Translator(
        str(folder), device="cpu", intra_threads=os.cpu_count(), compute_type=name.split()[1]
    )

    def translate(texts):
        results = translator.translate_batch(
            tokenizer.encode(texts, out_type=str),
            beam_size=beam_size,
            length_penalty=0.0,
            max_decoding_length=306,
        )
        return tokenizer.decode([result.hypotheses[0] for result in results])

    return translate


def report_speed(engines, texts, beam_size, options):
    """Print the speed of each engine at each batch size."""
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(
        model_file=str(Path(options.run) / "tokenizer.model")
    )
    print(f"\n{'greedy' if beam_size == 1 else f'beam {beam_size}'}")
    print("| batch | engine | ms a batch | spread | sentences/s | target tokens/s | ratio |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for batch_size in options.batch_sizes:
        # Few batches at a small size, so that each row takes about the same time.
        count = max(1, min(len(texts), 16 * batch_size) // batch_size)
        batches = [texts[i * batch_size : (i + 1) * batch_size] for i in range(count)]
        seconds = {name: [] for name in engines}
        tokens = {}
        for turn in range(options.turns + 1):
            for name, translate in engines.items():
                start = time.perf_counter()
                translations = [line for batch in batches for line in translate(batch)]
                if turn:  # the first is a warm-up
                    seconds[name].append((time.perf_counter() - start) / count)
                tokens[name] = sum(len(ids) + 1 for ids in tokenizer.encode(translations)) / count
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        for name in engines:
            median = medians[name]
            low, high = min(seconds[name]), max(seconds[name])
            print(
                f"| {batch_size} | {name} | {1000 * median:.0f} "
                f"| {1000 * low:.0f}-{1000 * high:.0f} | {batch_size / median:.1f} "
                f"| {tokens[name] / median:.0f} | {median / medians['tensorflow']:.2f} |",
                flush=True,
            )


def report_agreement(engines, texts):
    """Print how many sentences the engines translate like CTranslate2 in float32."""
    translations = {
        name: [line for i in range(0, len(texts), 32) for line in translate(texts[i : i + 32])]
        for name, translate in engines.items()
    }
    reference = translations["ctranslate2 float32"]
    for name in engines:
        equal = sum(a == b for a, b in zip(translations[name], reference, strict=True))
        print(f"{name}: {100 * equal / len(texts):.1f}% as CTranslate2 float32")


def report_memory(folder, options):
    """Print the peak resident memory of a process that loads one engine and translates."""
    print()
    for name in ENGINES:
        command = [sys.executable, __file__, options.run, "--source", options.source]
        command += ["--sentences", "32", "--memory-of", name, "--exports", folder]
        command += ["--beam-sizes", str(max(options.beam_sizes))]
        print(subprocess.check_output(command, text=True).strip())


def measure_memory(options):
    """Load one engine, translate one batch, and print this process's peak resident memory."""
    translate = load_engine(options.memory_of, options.exports, max(options.beam_sizes))
    translate(read_sentences(options.source, options.sentences))
    # Not getrusage, whose maximum begins with that of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(f"{options.memory_of}: {peak:.0f} MiB resident at most")


def read_sentences(path, count):
    """Return the sources of a TSV or plain text file."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return [line.split("\t")[0] for line in lines if line][:count]


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="run directory")
    parser.add_argument("--source", required=True, help="sentences, one a line (or a TSV)")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--beam-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--memory-of", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--exports", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    arguments = parse()
    measure_memory(arguments) if arguments.memory_of else main()
