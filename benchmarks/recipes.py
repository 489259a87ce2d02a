"""What options of the Tatoeba recipe do: one short run each, from one seed.

    python benchmarks/recipes.py --train FILE --valid FILE --test FILE --output FOLDER

Every run differs from training/configs/tatoeba-zh-en.toml in what its name says, and has the same
time. They run one after the other and alone, so leave the machine to them. Started again, it goes
on where it was.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "training/configs/tatoeba-zh-en.toml"
# What each has other than that file, in the model and in training.
RECIPES = {
    "the recipe": ({}, {}),
    "post-norm": ({"pre_norm": False}, {}),
    "no moving average": ({}, {"average_decay": 0.0}),
    "dropout 0.3": ({"dropout": 0.3}, {}),
    "no weight decay": ({}, {"weight_decay": 0.0}),
    "Adam, batches of 1,024 tokens": (
        {},
        {
            "optimizer": "adam",
            "batch_tokens": 1024,
            "warmup_steps": 500,
            "learning_rate_scale": 0.6,
            "weight_decay": 0.0,
        },
    ),
    "subword sampling": ({}, {"subword_nbest_size": 16, "subword_alpha": 0.2}),
    "learning rate x 1.4": ({}, {"learning_rate_scale": 1.96}),
    "vocabulary of 4,000": ({}, {"vocab_size": 4000}),
    "untied": ({"tie_weights": False}, {}),
}


def main():
    """Train and score each recipe; print the table."""
    options = parse()
    print("| recipe | parameters | steps | perplexity | valid BLEU | test BLEU | ± | test chrF |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    for name in options.only or RECIPES:
        model, training = RECIPES[name]
        model, training = recipe["model"] | model, recipe["training"] | training
        run = options.output / name.replace(" ", "-").replace(",", "")
        config = Path(f"{run}.toml")
        config.parent.mkdir(parents=True, exist_ok=True)
        if options.mixed_precision:
            training["mixed_precision"] = options.mixed_precision
        config.write_text(as_toml({"model": model, "training": training}), encoding="utf-8")
        if not (run / "results.json").exists():
            execute(
                "training",
                *("--config", config, "--train", options.train, "--valid", options.valid),
                *("--max-minutes", options.minutes, "--seed", options.seed),
                *("--output", run, "--resume"),
            )
        scores = json.loads(
            execute("training.evaluate", run, "--test", options.test).splitlines()[-1]
        )
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        print(
            f"| {name} | {results['parameters']:,} | {results['steps']:,} "
            f"| {results['best_perplexity']:.2f} | {results['best_bleu']:.2f} "
            f"| {scores['bleu']:.2f} | {scores['bleu_ci']:.2f} | {scores['chrf']:.2f} |",
            flush=True,
        )


def as_toml(tables):
    """Return the text of a TOML file with these tables of plain values."""
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        # JSON's strings, numbers and booleans are TOML's.
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    text = "\n".join(lines) + "\n"
    assert tomllib.loads(text) == tables
    return text


def execute(module, *arguments):
    """Run a module of the project with `arguments`; return its standard output.

    If it fails, end as it did: it has said why.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def parse():
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", required=True, help="TSV: source TAB target")
    parser.add_argument("--output", required=True, type=Path, help="folder for the runs")
    parser.add_argument("--minutes", type=float, default=10, help="of each run (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=RECIPES, help="these instead of all")
    parser.add_argument("--mixed-precision", help="such as mixed_bfloat16; float32 without")
    return parser.parse_args()


if __name__ == "__main__":
    main()
