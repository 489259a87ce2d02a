"""The viewer in a real browser: in the tab of a real TensorBoard, and as a page of its own.

Needs Chromium (`apt-get install chromium fonts-noto-cjk`); nothing but loopback is spoken to.
"""

import re
import shutil
from pathlib import Path

import pytest
import tensorflow as tf
from attention_snapshots import REFERENCE, SOURCE, snapshot
from tensorboard_process import tensorboard

from attention_viewer import summary
from attention_viewer.alignment import parse_links
from attention_viewer.page import write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
HOSTILE = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="parent.hacked=1">',
    "\u202eright to left",
    "a\u200bb",
    "x" * 500,
    "</s>",
)
LAST_STEP = 400


def write(writer, run_sharpness, steps):
    """Write a plain and a hostile probe, and one with gold links."""
    links = parse_links("0-0 1-1 2-3 3-4 5-5 6-5")
    with writer.as_default():
        for step in steps:
            sharpness = step / (step + run_sharpness)
            words = ("▁train",) * (1 + step // 200)
            plain = snapshot(translation=("▁I", *words, "</s>"), sharpness=sharpness)
            gold = summary.Snapshot(plain.texts, plain.sequences, plain.maps, links)
            summary.write_snapshot("probe-1", gold, step)
            summary.write_snapshot("probe-2", snapshot(source=HOSTILE, reference=HOSTILE), step)
    writer.flush()


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    for run, sharpness in (("a/attention", 50), ("b & <i>b</i>", 400)):
        write(tf.summary.create_file_writer(str(folder / run)), sharpness, range(0, 401, 50))
    metadata = tf.compat.v1.SummaryMetadata(data_class=3)
    metadata.plugin_data.plugin_name = "attention"
    metadata.plugin_data.content = summary.to_content("damaged", [])
    with tf.summary.create_file_writer(str(folder / "damaged")).as_default():
        for step in (1, 2, 3):
            good = snapshot()
            summary.write_snapshot("probe-1", good, step)
            metadata.plugin_data.content = summary.to_content("x", summary.describe_maps(good))
            payload = summary.encode(good)
            tf.summary.write("probe-9", [payload if step == 3 else payload[:99]], step, metadata)
    return folder


@pytest.fixture(scope="module")
def server(logdir):
    with tensorboard(logdir) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield chromium
        chromium.close()


class Viewer:
    """The viewer's document in a browser's page.

    Attributes:
        page: The whole page.
        frame: The viewer in it: TensorBoard's frame, or the page itself.
        errors: What the console and failed scripts said.
        requests: Addresses asked for.
    """

    def __init__(self, page):
        self.page = page
        self.errors, self.requests = [], []
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        # A bare frame has no icon; browsers ask for one all the same.
        page.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address):
        """Open the page, or TensorBoard, and wait for the first drawing."""
        self.page.goto(address)
        if "#attention" in address:
            element = self.page.wait_for_selector("iframe[src*='name=attention']")
            self.frame = element.content_frame()
        else:
            self.frame = self.page
        self.frame.wait_for_selector("body[data-ready]")
        return self

    def text(self, selector):
        return self.frame.inner_text(selector)

    def count(self, selector):
        return self.frame.locator(selector).count()

    def labels(self, selector):
        """Return the texts of SVG labels, without the marks that isolate their direction."""
        texts = self.frame.locator(selector).all_text_contents()
        return [re.sub("[\u2068\u2069]", "", text) for text in texts]

    def step(self):
        return self.text("output.step")

    def wait_for_step(self, step):
        self.frame.wait_for_function(
            "step => document.querySelector('output.step').textContent === `step ${step}`", arg=step
        )


@pytest.fixture
def viewer(browser):
    page = browser.new_page(viewport={"width": 1500, "height": 950})
    yield Viewer(page)
    page.close()


def fragment(**view):
    """Return what stands in the address for a view."""
    return "".join(f"&p.attention.{k}={v}".replace("/", "%2F") for k, v in view.items())


@pytest.fixture
def alone(viewer, server):
    """Open the plugin's frame without TensorBoard around it, at a view; end without errors."""

    def open_frame(run="a/attention", **view):
        address = f"{server}data/plugin_entry.html?name=attention#{fragment(run=run, **view)}"
        return viewer.open(address)

    yield open_frame
    check(viewer, server)


@pytest.fixture
def tab(viewer, server):
    """Open TensorBoard's tab, likewise."""

    def open_tab(**view):
        return viewer.open(f"{server}#attention{fragment(run='a/attention', **view)}")

    yield open_tab
    check(viewer, server)


def check(viewer, server):
    """Fail if there was an error, or if anything was asked of another machine."""
    assert viewer.errors == []
    strangers = [url for url in viewer.requests if not url.startswith((server, "blob:", "data:"))]
    assert strangers == []


# ---------------------------------------------------------------- the tab


def test_the_tab_appears_and_all_views_draw(tab):
    shown = tab()
    assert "ATTENTION" in shown.page.inner_text("app-header")
    assert shown.step() == f"step {LAST_STEP}"
    assert shown.text("[data-text=Source]") == "我想买两张火车票。"
    assert shown.count(".overview canvas") == 4 * 2 * (4 + 1)
    assert shown.count(".heatmap svg path") > 0
    assert shown.labels("[data-panel=heat-map] text") == [p.lstrip("▁") for p in REFERENCE] + [
        p.lstrip("▁") for p in SOURCE
    ]
    assert shown.count(".bipartite path") > 0
    for name, panel in (("time", "curves"), ("compare", "difference"), ("read", "links")):
        shown.frame.click(f"[data-tab={name}]")
        shown.frame.wait_for_selector(f"[data-panel={panel}] svg")


def test_each_head_is_called_by_what_it_does(alone):
    shown = alone()
    captions = {
        head: shown.text(f"[data-head='{head}'] .caption")
        for head in ("encoder 0,0", "encoder 0,1", "encoder 0,2", "decoder 0,2", "cross 0,0")
    }
    assert list(captions.values()) == ["prev", "self", "end", "start", "diag"]


def test_the_pointer_on_a_cell_marks_row_and_column_and_tells_the_weight(alone):
    shown = alone(heads="0.0")
    box = shown.frame.locator(".heatmap svg").bounding_box()
    frame = shown.frame.locator(".heatmap .frame").bounding_box()
    cell = frame["width"] / len(SOURCE)
    shown.page.mouse.move(frame["x"] + 1.5 * cell, frame["y"] + 1.5 * cell)
    assert box["x"] < frame["x"]  # labels stand on the left
    assert shown.text(".tooltip b") == "want → 想"
    weight = snapshot(sharpness=400 / 450).maps[2].weights[0, 0, 1, 1]
    assert shown.text(".tooltip div") == f"weight {weight:.2f}"
    assert shown.labels(".heatmap text.on") == ["want", "想"]


def test_the_pointer_on_a_token_isolates_it(alone):
    shown = alone(heads="0.2,0.3", threshold="0.02")

    def num_lines():
        paths = shown.frame.locator(".bipartite path").all()
        return sum(path.get_attribute("d").count("M") for path in paths)

    everything = num_lines()
    shown.frame.locator(".bipartite .token-box").nth(len(SOURCE) + 3).hover()
    assert 0 < num_lines() <= 2 * len(SOURCE) < everything
    assert shown.count(".bipartite .token.chosen") == 1


def test_heads_are_switched_on_and_off(alone):
    shown = alone(heads="0.0")
    assert shown.count(".toggle.on") == 1
    shown.frame.click(".toggle:text-is('3')")
    shown.frame.wait_for_function("document.querySelectorAll('.toggle.on').length === 2")
    assert "mean of heads 1, 3" in shown.text("[data-panel=heat-map] h2")
    colors = {p.get_attribute("stroke") for p in shown.frame.locator(".bipartite path").all()}
    assert len(colors) == 2


def test_the_overview_is_sorted_by_a_measure(alone):
    shown = alone(measure="special", order="high")
    captions = shown.frame.locator(".overview section").nth(0).locator(".caption")
    values = [float(text.split()[1]) for text in captions.all_inner_texts()]
    assert values == sorted(values, reverse=True)
    assert captions.first.inner_text().startswith("1.3 ")  # the head that looks at the end


def test_the_slider_and_the_keys_move_through_the_steps(alone):
    shown = alone()
    before = shown.frame.inner_html(".heatmap")
    shown.frame.locator("input[aria-label=Step]").fill("2")
    shown.wait_for_step("100")
    assert shown.frame.inner_html(".heatmap") != before
    shown.frame.locator("h2").first.click()
    for key, step in (("ArrowRight", "150"), ("ArrowLeft", "100"), ("Home", "0"), ("End", "400")):
        shown.page.keyboard.press(key)
        shown.wait_for_step(step)


def test_play_shows_every_step_to_the_end(alone):
    shown = alone(step="0")
    shown.frame.evaluate(
        """() => {
          window.steps = [];
          const output = document.querySelector("output.step");
          const note = () => steps.push(output.textContent);
          new MutationObserver(note).observe(output, { childList: true });
        }"""
    )
    shown.frame.click(".play")
    shown.wait_for_step(f"{LAST_STEP}")
    seen = list(dict.fromkeys(shown.frame.evaluate("steps")))
    assert seen == [f"step {step}" for step in range(50, 401, 50)]


def test_words_are_joined_and_ends_hidden(alone):
    shown = alone()
    shown.frame.check("label:has-text('words') input")
    shown.frame.check("label:has-text('hide ends') input")
    shown.frame.wait_for_function(
        "!document.querySelector('.heatmap').textContent.includes('</s>')"
    )
    words = ["I", "want", "to", "buy", "two", "train", "tickets"]
    assert shown.labels("[data-panel=heat-map] text") == words + [
        "我",
        "想",
        "买",
        "两",
        "张",
        "火车",
        "票",
    ]


def test_a_link_restores_the_view(tab, viewer):
    shown = tab(step="150", tab="time", map="encoder", heads="1.1", words="true")
    assert shown.step() == "step 150"
    assert shown.frame.get_attribute("[data-tab=time]", "aria-selected") == "true"
    assert shown.text("[data-panel=filmstrip] h2") == "Encoder self-attention: layer 2, head 2"
    shown.frame.click("[data-tab=explore]")
    shown.frame.click("[data-head='decoder 0,2']")
    shown.frame.wait_for_selector("[data-head='decoder 0,2'].on")
    shown.page.wait_for_url(re.compile("map=decoder&p.attention.heads=0.2"))
    address = shown.page.url
    shown.page.goto("about:blank")
    again = viewer.open(address)
    assert again.text("[data-panel=heat-map] h2") == "Decoder self-attention: layer 1, head 3"
    assert again.step() == "step 150"


def test_curves_and_translations_follow_training(alone):
    shown = alone(tab="time")
    titles = shown.frame.locator(".chart figcaption b").all_inner_texts()
    assert titles[:3] == ["Entropy", "Confidence", "Diagonal"]
    assert "Alignment error" in titles
    shown.frame.wait_for_function("document.querySelectorAll('.translations .row').length === 3")
    rows = shown.frame.locator(".translations .row").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["0", "–", "150", "I", "train"],
        ["200", "–", "350", "I", "train", "train"],
        ["400", "I", "train", "train", "train"],
    ]
    shown.frame.locator(".translations .row").nth(1).click()
    shown.wait_for_step("200")
    shown.frame.locator(".filmstrip button").first.click()
    shown.wait_for_step("0")


def test_two_runs_are_compared_with_the_heads_that_changed_most(alone):
    shown = alone(tab="compare", otherRun="b & <i>b</i>".replace("&", "%26"), otherStep="same")
    titles = shown.frame.locator(".compare h2").all_inner_texts()
    assert titles == [
        "a/attention, step 400",
        "b & <i>b</i>, step 400",
        "Difference",
        "Heads that changed most",
    ]
    shown.frame.wait_for_selector("[data-panel=difference] path")
    numbers = [float(n) for n in shown.frame.locator(".changed .number").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True) and numbers[0] > 0.1
    shown.frame.locator(".changed .row").first.click()
    shown.frame.wait_for_selector(".changed .row.on")


def test_translations_that_differ_are_not_subtracted(alone):
    shown = alone(tab="compare", map="translation", otherStep="first")
    assert "tokens differ" in shown.text("[data-panel=difference]")


def test_reading_aids_show_links_coverage_and_the_error_against_gold(alone):
    shown = alone(tab="read")
    assert "lowest alignment error" in shown.text("[data-panel=links] .about")
    assert "not an alignment" in shown.text("[data-panel=links] .about")
    reference = shown.frame.locator("[data-panel=links] figure").first
    assert reference.locator("line").count() == 7  # I want to buy two train tickets
    assert shown.count(".coverage tr") == 1 + 7
    assert shown.text("[data-panel=alignment-error] h2") == "Alignment error over training"


# ---------------------------------------------------------------- hostile and damaged data


def test_hostile_tokens_are_text(alone):
    shown = alone(tag="probe-2")
    for view in ("explore", "time", "compare", "read"):
        shown.frame.click(f"[data-tab={view}]")
        shown.frame.wait_for_selector(f".views.{view}:visible")
    shown.frame.click("[data-tab=explore]")
    text = shown.frame.locator("[data-panel=heat-map] svg").inner_html()
    assert "&lt;script&gt;" in text and "⟨202E⟩right" in text and "a⟨200B⟩b" in text
    shown.frame.locator(".bipartite .token-box").nth(4).hover()
    assert shown.text(".tooltip b") == "x" * 500
    assert shown.page.evaluate("window.hacked") is None
    assert shown.frame.evaluate("window.hacked") is None
    assert shown.count("main script, main img, header img") == 0


def test_a_damaged_step_is_skipped_with_a_note(alone):
    shown = alone(run="damaged", tag="probe-9", step="3")
    shown.frame.locator("input[aria-label=Step]").fill("0")
    shown.frame.wait_for_selector(".notes:visible")
    assert "Step 1 can't be shown" in shown.text(".notes")
    shown.frame.locator("input[aria-label=Step]").fill("2")
    shown.wait_for_step("3")
    shown.frame.wait_for_selector(".notes", state="hidden")


# ---------------------------------------------------------------- while training goes on


def test_new_steps_appear_and_are_followed(browser, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path / "run"))
    write(writer, 50, [0, 50])
    with tensorboard(tmp_path) as server:
        page = browser.new_page()
        shown = Viewer(page).open(f"{server}#attention")
        assert shown.step() == "step 50"
        write(writer, 50, [100])
        shown.wait_for_step("100")
        shown.frame.locator("input[aria-label=Step]").fill("0")
        shown.wait_for_step("0")
        write(writer, 50, [150])
        shown.frame.wait_for_function(
            "document.querySelector('input[aria-label=Step]').max === '3'"
        )
        assert shown.step() == "step 0"  # who looks at an old step is left there
        page.close()


# ---------------------------------------------------------------- theme, pictures


def test_the_theme_is_that_of_tensorboard(tab):
    shown = tab()
    background = "getComputedStyle(document.body).backgroundColor"
    assert shown.frame.evaluate(background) == "rgb(255, 255, 255)"
    shown.page.evaluate("document.body.classList.add('dark-mode')")
    shown.frame.wait_for_function(f"{background} === 'rgb(27, 31, 36)'")


def test_a_view_is_saved_as_svg_and_png(alone, tmp_path):
    shown = alone()
    for kind in ("svg", "png"):
        with shown.page.expect_download() as download:
            shown.frame.click(f"[data-panel=heat-map] [title='Save as {kind.upper()}']")
        download.value.save_as(tmp_path / f"map.{kind}")
    text = (tmp_path / "map.svg").read_text("utf-8")
    assert text.startswith("<svg") and "火车" in text and "class=" not in text and "fill=" in text
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- the page of its own


def test_the_page_shows_the_same_views_without_a_server(viewer, tmp_path):
    snapshots = [snapshot(), snapshot(source=HOSTILE)]
    (tmp_path / "page.html").write_text(write_page(snapshots, "</title><b>run"), encoding="utf-8")
    shown = viewer.open((tmp_path / "page.html").as_uri())
    assert shown.text("[data-text=Source]") == "我想买两张火车票。"
    assert shown.count(".heatmap svg path") > 0
    for what_needs_steps in (".steps-bar", "[data-tab=time]", "[data-tab=compare]"):
        assert not shown.frame.is_visible(what_needs_steps)
    shown.frame.click("[data-tab=read]")
    shown.frame.wait_for_selector("[data-panel=links] svg")
    shown.frame.select_option("label:has-text('Sentence') select", "text-2")
    shown.frame.wait_for_selector("[data-text=Source]:has-text('<script>')")
    assert shown.errors == []
    assert {url.partition(":")[0] for url in shown.requests} <= {"file", "data", "blob"}
    assert [url for url in shown.requests if url.startswith("file:")] == shown.requests[:1]


# ---------------------------------------------------------------- modules


@pytest.fixture(scope="module")
def evaluate(browser, server):
    """Return a function that runs JavaScript beside the modules."""
    page = browser.new_page()
    page.goto(f"{server}data/plugin_entry.html?name=attention")
    return page.evaluate


@pytest.mark.parametrize(
    "pieces, words",
    [
        (["▁I", "▁want", "▁tick", "ets", "."], ["I", "want", "tickets", "."]),
        (["▁", "M", "y", "▁tea"], ["My", "tea"]),
        (["▁我", "想买", "。"], ["我", "想买", "。"]),
        (["▁don", "'", "t", "!"], ["don't", "!"]),
        (["▁", "<0xE4>", "<0xBD>", "<0xA0>", "<0xE5>", "<0xA5>", "<0xBD>"], ["你", "好"]),
        (["▁GPU", "卡", "x"], ["GPU", "卡", "x"]),
    ],
)
def test_pieces_are_joined_to_words(evaluate, pieces, words):
    code = """async (pieces) => {
      const { group } = await import("./tokens.js");
      const tokens = pieces.map((piece) => ({ piece, isSpecial: false }));
      return group(tokens, { words: true, hide: false }).labels.map(({ text }) => text);
    }"""
    assert evaluate(code, pieces) == words


def test_weights_to_the_pieces_of_a_word_add_up_and_those_from_them_are_averaged(evaluate):
    code = """async () => {
      const { matrixOf } = await import("./matrix.js");
      const toTokens = (pieces) => pieces.map((piece) => ({ piece, isSpecial: piece === "</s>" }));
      const sequences = { rows: toTokens(["▁a", "b"]), columns: toTokens(["▁c", "d", "</s>"]) };
      const map = { rows: "rows", columns: "columns", numColumns: 3 };
      const weights = Float32Array.from([0.5, 0.25, 0.25, 0, 0.5, 0.5]);
      const of = (options) => [...matrixOf({ sequences }, map, weights, options).values];
      return [of({ words: true, hide: false }), of({ words: false, hide: true })];
    }"""
    joined, hidden = evaluate(code)
    assert joined == [0.625, 0.375]
    assert hidden == pytest.approx([2 / 3, 1 / 3, 0, 1])


def test_the_written_format_is_read_with_its_weights(evaluate):
    written = snapshot(sharpness=0.7)
    code = """async (bytes) => {
      const { decodeSnapshot } = await import("./snapshot.js");
      const snapshot = await decodeSnapshot(Uint8Array.from(bytes).buffer);
      const map = snapshot.maps.cross;
      return [Object.keys(snapshot.maps), [...map.mean([[1, 0]])], [...map.mean([[1, 0], [1, 3]])]];
    }"""
    names, one, mean = evaluate(code, list(summary.encode(written)))
    assert names == ["encoder", "decoder", "cross", "translation"]
    weights = written.maps[2].weights
    assert one == pytest.approx(weights[1, 0].ravel(), abs=0.004)
    assert mean == pytest.approx(weights[1, [0, 3]].mean(0).ravel(), abs=0.004)


def test_what_is_unknown_in_an_address_is_ignored(evaluate):
    code = """async (strings) => {
      const { fromStrings, toStrings } = await import("./state.js");
      return toStrings(fromStrings(strings));
    }"""
    good = {"step": "300", "heads": "0.1,2.3", "words": "true", "run": "a&b"}
    assert evaluate(code, good) == good
    assert evaluate(code, {"step": "abc", "heads": "x", "nothing": "1", "words": "maybe"}) == {}


def test_every_module_is_reached_from_both_entries():
    static = Path(summary.__file__).parent / "static"
    modules = {file.name: file.read_text("utf-8") for file in static.glob("*.js")}
    for entry in ("index.js", "page.js"):
        seen, todo = set(), [entry]
        while todo:
            name = todo.pop()
            seen.add(name)
            todo += set(re.findall(r'from "\./(\w+\.js)"', modules[name])) - seen
        other = {"index.js", "page.js"} - {entry}
        assert seen == set(modules) - other
