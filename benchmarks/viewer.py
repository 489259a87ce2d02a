"""Measures the attention viewer on a long run: 200 steps, 8 sentences of 40 tokens, 6 x 8 heads.

Run: `PYTHONPATH=.:tests .venv/bin/python benchmarks/viewer.py [--steps 200]`. It writes event
files to a temporary folder, starts TensorBoard on loopback and Chromium, and prints one line a
number. Needs what the browser tests need.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from attention_snapshots import snapshot
from playwright.sync_api import sync_playwright
from tensorboard_process import tensorboard

from attention_viewer import summary

LENGTH, LAYERS, HEADS, SENTENCES = 40, 6, 8, 8
SLIDES = 60


def main() -> None:
    """Write, load, slide."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        seconds = write_run(Path(folder) / "run", steps)
        size = sum(file.stat().st_size for file in Path(folder).rglob("events*"))
        print(f"event files: {size / 1e6:.0f} MB, {size / steps / 1e6:.2f} MB a step")
        print(f"writing: {1000 * seconds / steps:.0f} ms a step of {SENTENCES} sentences")
        for loader in ("true", "false"):
            print(f"TensorBoard --load_fast {loader}")
            with tensorboard(folder, "--load_fast", loader) as address:
                look(address, folder, steps)


def write_run(folder: Path, steps: int) -> float:
    """Write the snapshots; return the seconds that encoding and writing took."""
    pieces = [*(f"▁w{i}" for i in range(LENGTH - 1)), "</s>"]
    sizes = {"layers": LAYERS, "heads": HEADS}
    # A few different ones are made; drawing random numbers is not what is measured.
    made = [snapshot(pieces, pieces, pieces, sharpness=s, **sizes) for s in np.linspace(0.2, 1, 10)]
    seconds = 0.0
    with tf.summary.create_file_writer(str(folder)).as_default():
        for step in range(steps):
            start = time.perf_counter()
            for sentence in range(SENTENCES):
                chosen = made[(step * len(made) // steps + sentence) % len(made)]
                summary.write_snapshot(f"probe-{sentence + 1}", chosen, step * 100)
            seconds += time.perf_counter() - start
    return seconds


def look(address: str, folder: str, steps: int) -> None:
    """Open the tab and move the slider, with snapshots loaded and not."""
    browser_file = shutil.which("chromium") or sys.exit("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_file, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        wait_until_loaded(page, address, steps)
        start = time.perf_counter()
        page.goto(f"{address}data/plugin_entry.html?name=attention")
        page.wait_for_selector("body[data-ready]")
        print(f"  first paint: {1000 * (time.perf_counter() - start):.0f} ms")
        report("slide, snapshots not loaded", slide(page, steps))
        page.wait_for_timeout(15_000)  # the others load meanwhile
        report("slide, loaded", slide(page, steps))
        heap = page.evaluate("performance.memory.usedJSHeapSize")
        server = resident_megabytes(folder)
        print(f"  memory: page {heap / 1e6:.0f} MB, TensorBoard {server:.0f} MB")
        browser.close()


def wait_until_loaded(page, address: str, steps: int) -> None:
    """Wait until TensorBoard has read the event files, which takes it a while."""
    start = time.perf_counter()
    while True:
        page.goto(f"{address}data/plugin/attention/probes")
        if f'"last_step": {(steps - 1) * 100}' in page.inner_text("body"):
            break
        page.wait_for_timeout(200)
    print(f"  TensorBoard reads the files: {time.perf_counter() - start:.1f} s")


def slide(page, steps: int) -> list[float]:
    """Go to steps far from each other; return the milliseconds until each is drawn."""
    code = """async (positions) => {
      const slider = document.querySelector("input[aria-label=Step]");
      const output = document.querySelector("output.step");
      const times = [];
      for (const position of positions) {
        const drawn = new Promise((resolve) => {
          new MutationObserver((_, observer) => {
            observer.disconnect();
            requestAnimationFrame(() => setTimeout(resolve));
          }).observe(output, { childList: true });
        });
        const start = performance.now();
        slider.value = position;
        slider.dispatchEvent(new Event("input"));
        await drawn;
        times.push(performance.now() - start);
      }
      return times;
    }"""
    positions = [(i * 73) % (steps - 1) for i in range(1, SLIDES + 1)]
    return page.evaluate(code, positions)


def report(name: str, milliseconds: list[float]) -> None:
    """Print median and worst."""
    median = statistics.median(milliseconds)
    print(f"  {name}: median {median:.0f} ms, worst {max(milliseconds):.0f} ms")


def resident_megabytes(logdir: str) -> float:
    """Return the memory of the TensorBoard of a folder, with its data server."""
    listed = subprocess.run(["ps", "-eo", "rss,args"], capture_output=True, text=True).stdout
    lines = [line.split(None, 1) for line in listed.splitlines()[1:]]
    return sum(int(rss) for rss, args in lines if logdir in args) / 1000


if __name__ == "__main__":
    main()
