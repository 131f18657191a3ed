"""The status page: its figures, what it lets a browser load, and the page itself in Chromium."""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from report.browser import Page, browser, find_browser
from server import models
from server.openai.folders import write_embedding_folder

import weft
import weft.server
from weft.server.pages.status import estimate_quantile
from weft.server.run import BackgroundServer
from weft.server.statistics import LATENCY_BOUNDS, ModelStatistics

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

SEED = 28
PATIENCE = 120.0  # seconds until a server that hangs fails a test
HOSTILE = "bad <img src=x onerror=broken=1>"
LONG = "a model with a name of many letters " + "x" * 90
NHWC, NCHW = "picture_last", "picture_first"


def write_picture(path: Path, shape: tuple[Any, ...], dtype: str) -> None:
    graph = weft.Graph("picture")
    x = graph.input("image", shape, dtype)
    graph.output(weft.ops.identity(x), "same")
    graph.to_onnx(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    folder = tmp_path_factory.mktemp("models")
    models.write_dense(folder / "dense.onnx")
    models.write_dense(folder / "measured.onnx")
    models.write_identity(folder / "wide.onnx", "int64")
    models.write_identity(folder / "texts.onnx", "string")
    models.write_identity(folder / f"{LONG}.onnx", "float32")
    models.write_identity(folder / "50%25 & more.onnx", "float32")
    write_picture(folder / "scalar.onnx", (), "float32")
    write_picture(folder / f"{NCHW}.onnx", ("batch", 3, 4, 4), "float32")
    write_picture(folder / f"{NHWC}.onnx", (4, 4, 3), "uint8")
    write_embedding_folder(folder / "vectors")
    (folder / f"{HOSTILE}.onnx").write_bytes(b"no model")
    with (
        weft.Generator(max_batch=4) as generator,
        weft.server.start([str(folder), {"story": generator}], grpc=None, metrics=None, poll=0) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def http(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    command = find_browser()
    if command is None:
        pytest.skip("no chromium here (on Debian: apt-get install chromium)")
    with browser(command, tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(chromium: Page, server: BackgroundServer) -> Iterator[Page]:
    """The page, with a check for messages of the browser, requests elsewhere, and names that became elements."""
    chromium.problems.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.problems == []
    assert all(address.startswith((server.url, "data:image/svg")) for address in chromium.requests), chromium.requests
    assert chromium.evaluate("typeof window.broken") == "undefined"
    assert chromium.evaluate("document.images.length") == 0


# -- figures ---------------------------------------------------------------------------------------------------------


def test_status_counts_requests(server: BackgroundServer, http: httpx.Client) -> None:
    row = {"name": "x", "datatype": "FP32", "shape": [2, 8], "data": [0.5] * 16}
    for _ in range(5):
        assert http.post("/v2/models/measured/infer", json={"inputs": [row]}).status_code == 200
    wrong = {**row, "shape": [0, 8], "data": []}
    missing = {**wrong, "name": "y"}
    assert http.post("/v2/models/measured/infer", json={"inputs": [missing]}).status_code == 400
    answer = http.get("/status.json")
    limit = server.app.budget.limit
    assert answer.headers["cache-control"] == "no-store"
    status = answer.json()
    assert status["memory"]["limit"] == limit
    assert status["active_requests"] == 0
    assert not status["draining"]
    rows = {model["name"]: model for model in status["models"]}
    assert rows.keys() >= {"measured", "story", "vectors", LONG, HOSTILE}
    measured = rows["measured"]
    assert measured["requests"]["success"] == measured["runs"] == 5
    assert measured["rows"] == 10
    assert 0 < measured["latency"]["p50"] <= measured["latency"]["p99"]
    assert measured["latency"]["p50"] <= measured["latency"]["total"]
    kinds = {name: model.get("kind") for name, model in rows.items()}
    assert (kinds["dense"], kinds["story"], kinds["vectors"], kinds[HOSTILE]) == (
        "model",
        "generator",
        "embedder",
        None,
    )
    assert "no model" in rows[HOSTILE]["reason"]
    assert "requests" not in rows[HOSTILE]


@pytest.mark.parametrize("fraction", [0.5, 0.99])
def test_quantiles_lie_in_the_right_bucket(fraction: float) -> None:
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    for _ in range(50):
        seconds = random.lognormal(random.uniform(-7, 0), random.uniform(0.1, 2), int(random.integers(1, 300)))
        counts = ModelStatistics()
        for each in seconds:
            counts.add_success(int(each * 1e9), 0)
        estimate = estimate_quantile(counts.latencies, fraction)
        exact = float(np.quantile(seconds, fraction, method="inverted_cdf"))
        assert estimate is not None
        bounds = (0.0, *LATENCY_BOUNDS, np.inf)
        bucket = int(np.searchsorted(LATENCY_BOUNDS, exact))
        assert min(bounds[bucket], LATENCY_BOUNDS[-1]) <= estimate <= bounds[bucket + 1]
    assert estimate_quantile(ModelStatistics().latencies, fraction) is None


# -- what the page may do --------------------------------------------------------------------------------------------


def test_page_is_self_contained_and_strict(http: httpx.Client) -> None:
    answer = http.get("/")
    text = answer.text
    entries = [part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";")]
    policy = {name: sources for name, _, sources in entries}
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    for kind, tag in (("script-src", "<script>"), ("style-src", "<style>")):
        content = text.partition(tag)[2].partition(tag.replace("<", "</"))[0]
        assert policy[kind] == f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(r"(?:https?:)?//[\w.]+", text)) <= {"http://www.w3.org"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|\son\w+=\"", text)
    assert http.head("/").headers["content-length"] == str(len(answer.content))


def test_page_needs_no_key_and_figures_do(tmp_path: Path) -> None:
    path = models.write_dense(tmp_path / "secret_name.onnx")
    with (
        weft.server.start(path, grpc=None, metrics=None, poll=0, api_key="k") as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as http,
    ):
        page = http.get("/")
        assert page.status_code == 200
        assert "secret_name" not in page.text
        assert '{"hasKey":true}' in page.text
        assert http.get("/status.json").status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert "secret_name" in http.get("/status.json", headers=headers).text


# -- the page in a browser -------------------------------------------------------------------------------------------


def wait_for(page: Page, expression: str) -> Any:
    """Return the first value of an expression that is true for JavaScript; the browser fails after a minute."""
    look = f"const look = () => {{ const value = {expression}; value ? done(value) : setTimeout(look, 20); }}; look();"
    return page.evaluate(f"new Promise((done) => {{ {look} }})")


def open_page(page: Page, url: str, width: int = 1280, **options: bool) -> None:
    page.open(f"{url}/", width, 900, **options)
    wait_for(page, "!document.getElementById('models').hidden")


def choose(page: Page, name: str) -> None:
    """Choose a model in the form, and wait for its fields."""
    page.evaluate(
        "(() => { const select = document.getElementById('model');"
        f"select.value = {json.dumps('1/' + name)};"
        "select.dispatchEvent(new Event('change')); })()"
    )
    wait_for(page, f"document.getElementById('model').value === {json.dumps('1/' + name)}")
    wait_for(page, "document.querySelector('#request [type=submit]') !== null")


def fill(page: Page, label: str, text: str) -> None:
    """Fill the control of a label."""
    control = (
        f"[...document.querySelectorAll('#request label')].find((each) => each.textContent === {json.dumps(label)})"
    )
    page.evaluate(
        f"(() => {{ const control = document.getElementById({control}.htmlFor); control.value = {json.dumps(text)};"
        "control.dispatchEvent(new Event('change')); })()"
    )


def run(page: Page, end: str = "after") -> str:
    """Send the request of the form, and return what the page says of it."""
    page.evaluate("document.getElementById('said').textContent = ''")
    page.evaluate("document.querySelector('#request [type=submit]').click()")
    message = "document.getElementById('said').textContent"
    return str(
        wait_for(page, f"({message}.includes({json.dumps(end)}) || document.querySelector('#said.bad')) && {message}")
    )


def cells(page: Page, row: int = 0) -> list[str]:
    texts = page.evaluate(
        f"[...document.querySelectorAll('#result tbody tr')[{row}].cells].map((cell) => cell.textContent)"
    )
    assert isinstance(texts, list)
    return texts


def command(page: Page) -> str:
    return str(page.evaluate("document.querySelector('#result pre').textContent"))


def request_of(page: Page) -> dict[str, Any]:
    """Return the body of the command, as a shell would read it."""
    text = command(page).partition("--data-binary ")[2]
    body: dict[str, Any] = json.loads(text[1:-1].replace("'\\''", "'"))
    return body


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_shows_all_models(
    page: Page, server: BackgroundServer, http: httpx.Client, width: int, dark: bool
) -> None:
    open_page(page, server.url, width, dark=dark, touch=width < 500)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 20, 22)") == dark
    names = page.evaluate("[...document.querySelectorAll('#rows td.name')].map((cell) => cell.textContent)")
    assert set(names) == {model["name"] for model in http.get("/status.json").json()["models"]}
    reasons = page.evaluate("[...document.querySelectorAll('#rows td.bad')].map((cell) => cell.textContent)")
    assert len(reasons) == 1
    assert "no model" in reasons[0]
    for name in (LONG, NCHW, "story"):
        choose(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrasts = page.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [entry for entry in contrasts if entry[0] < 4.5] == []


CONTRASTS = """
(() => {
  const parse = (color) => color.match(/[0-9.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] > 0.99) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((node) => node.getClientRects().length
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return texts.map((node) => {
    const [high, low] = [luminance(parse(getComputedStyle(node).color)), luminance(ground(node))].sort((a, b) => b - a);
    return [(high + 0.05) / (low + 0.05), node.localName, node.textContent.slice(0, 40)];
  });
})()
"""


def test_controls_have_names_and_tables_have_roles(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    for name in ("dense", NCHW, "texts", "story", "vectors"):
        choose(page, name)
        unnamed = page.evaluate(
            "[...document.querySelectorAll('button, input, select, textarea')]"
            ".filter((each) => !(each.labels?.length || each.ariaLabel || each.textContent.trim()))"
            ".map((each) => each.outerHTML.slice(0, 80))"
        )
        assert unnamed == []
    duplicates = page.evaluate(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);"
        "return ids.length - new Set(ids).size; })()"
    )
    assert duplicates == 0
    tree = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in tree if not node["ignored"]]
    assert roles.count("columnheader") == 12
    assert "row" in roles
    page.evaluate("document.getElementById('theme').focus()")
    page.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", windowsVirtualKeyCode=9)
    assert page.evaluate("document.activeElement.localName") == "button"  # the first "Try"


def test_charts_show_requests(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, "dense")
    run(page)
    page.evaluate("server.look()")
    wait_for(page, "charts.rates.samples.some(([, value]) => value > 0)")
    assert "highest" in page.evaluate("charts.rates.drawing.getAttribute('aria-label')")
    assert page.evaluate("charts.latencies.samples.some(([, value]) => value > 0 && value < 60)")
    assert page.evaluate("charts.rates.curve.getAttribute('d').startsWith('M')")


def test_a_hidden_page_does_not_ask(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    page.evaluate(  # while the page waits for an answer
        "server.look(); Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange')); 0"
    )
    page.evaluate("new Promise((done) => setTimeout(() => done(1), 500))")
    page.requests.clear()
    page.evaluate("new Promise((done) => setTimeout(() => done(1), 2300))")  # longer than between two looks
    assert page.requests == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); 0")
    wait_for(page, "performance.getEntriesByName(new URL('status.json', location.href).href).length > 1")
    page.settle()
    assert page.requests


# -- tensors ---------------------------------------------------------------------------------------------------------


def test_random_values_give_the_results_of_the_model(page: Page, server: BackgroundServer, tmp_path: Path) -> None:
    open_page(page, server.url)
    choose(page, "dense")
    fill(page, "Size 0", "3")
    assert "Answered" in run(page)
    entry = request_of(page)["inputs"][0]
    assert entry["shape"] == [3, 8]
    model = weft.load(models.write_dense(tmp_path / "dense.onnx"), device="cpu")
    expected = model.run({"x": np.array(entry["data"], np.float32).reshape(3, 8)})["y"]
    name, datatype, shape, values, *_ = cells(page)
    assert (name, datatype, shape) == ("y", "FP32", "[3, 4]")
    shown = [float(each) for each in values.removesuffix(", …").split(", ")]
    np.testing.assert_allclose(shown, expected.ravel()[:8], rtol=1e-4)


def test_json_keeps_all_digits(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, "wide")
    fill(page, "Size 1", "2")
    fill(page, "Values", "json")
    fill(page, "Array, flat or nested", "[[9223372036854775807, -9007199254740993]]")
    run(page)
    assert cells(page)[3] == "9223372036854775807, -9007199254740993"
    fill(page, "Array, flat or nested", "[1,")
    assert run(page).startswith("Input x: ")
    fill(page, "Array, flat or nested", "7")
    assert run(page) == "Input x: the JSON must be an array"


def test_a_scalar_has_no_sizes(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, "scalar")
    fill(page, "Values", "json")
    fill(page, "Array, flat or nested", "[28.5]")
    assert "Answered" in run(page)
    assert cells(page)[2:4] == ["[]", "28.5"]


def test_errors_of_the_server_are_shown(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, "wide")
    fill(page, "Values", "json")
    fill(page, "Array, flat or nested", '["<b>x</b>"]')
    assert "'<b>x</b>', which is not a INT64" in run(page)
    assert all("400" in problem for problem in page.problems)  # the browser's own message
    page.problems.clear()


def test_strings_are_shown_as_text(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, "texts")
    fill(page, "Size 1", "1")
    fill(page, "Text of each element", "it's <img src=x onerror=broken=1>")
    run(page)
    assert cells(page)[3] == '"it\'s <img src=x onerror=broken=1>"'
    assert request_of(page)["inputs"][0]["data"] == ["it's <img src=x onerror=broken=1>"]


def test_names_are_escaped_in_addresses(page: Page, server: BackgroundServer, http: httpx.Client) -> None:
    open_page(page, server.url)
    for name in ("50%25 & more", LONG):
        choose(page, name)
        assert "Answered" in run(page)
    address = command(page).split("'")[1]
    assert http.get(address.removesuffix("/infer")).json()["name"] == LONG


@pytest.mark.parametrize(("model", "scale"), [(NCHW, "unit"), (NCHW, "bytes"), (NCHW, "normal"), (NHWC, "bytes")])
def test_images_become_pixels(page: Page, server: BackgroundServer, model: str, scale: str) -> None:
    print(f"seed {SEED}")
    pixels = np.random.default_rng(SEED).integers(0, 256, (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    open_page(page, server.url)
    choose(page, model)
    fill(page, "Values", "image")
    fill(page, "Range of values", scale)
    if model == NCHW:
        fill(page, "Size 0", "2")
    page.evaluate(
        "(() => { const files = new DataTransfer();"
        f"files.items.add(new File([new Uint8Array({list(file.getvalue())})], 'x.png', {{ type: 'image/png' }}));"
        "document.querySelector('#request input[type=file]').files = files.files; })()"
    )
    assert "Answered" in run(page)
    entry = request_of(page)["inputs"][0]
    sent = np.array(entry["data"], np.float64).reshape(entry["shape"])
    expected = pixels.astype(np.float64)
    if scale == "unit":
        expected = expected / 255
    elif scale == "normal":
        expected = (expected / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    if model == NCHW:
        expected = np.stack([expected.transpose(2, 0, 1)] * 2)
    np.testing.assert_allclose(sent, expected, rtol=1e-6, atol=1e-6)
    shown = [float(each) for each in cells(page)[3].removesuffix(", …").split(", ")]
    np.testing.assert_allclose(shown, expected.ravel()[:8], rtol=1e-4, atol=1e-6)


def test_a_file_that_is_no_image_is_refused(page: Page, server: BackgroundServer) -> None:
    open_page(page, server.url)
    choose(page, NCHW)
    fill(page, "Values", "image")
    assert run(page) == "Input image: choose an image"
    page.evaluate(
        "(() => { const files = new DataTransfer(); files.items.add(new File(['text'], 'x.png'));"
        "document.querySelector('#request input[type=file]').files = files.files; })()"
    )
    assert "not an image" in run(page)


# -- text ------------------------------------------------------------------------------------------------------------


def test_a_chat_is_streamed(page: Page, server: BackgroundServer, http: httpx.Client) -> None:
    open_page(page, server.url)
    choose(page, "story")
    fill(page, "Message", "Say it's fine")
    fill(page, "Most tokens", "12")
    run(page)
    body = request_of(page)
    assert body.pop("stream") is True
    answer = http.post("/v1/chat/completions", json=body).json()
    assert (
        page.evaluate("document.querySelector('#result .text').textContent")
        == answer["choices"][0]["message"]["content"]
    )


def test_embeddings_show_values_and_norm(page: Page, server: BackgroundServer, http: httpx.Client) -> None:
    open_page(page, server.url)
    choose(page, "vectors")
    fill(page, "Text", "the quick fox")
    run(page)
    body = {"model": "vectors", "input": "the quick fox"}
    vector = np.array(http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"])
    facts = page.evaluate("document.querySelector('#result p').textContent")
    assert facts == f"{len(vector)} values, norm {float(f'{np.linalg.norm(vector):.6g}'):.5f}"
    shown = [float(each) for each in cells(page)[3].removesuffix(", …").split(", ")]
    np.testing.assert_allclose(shown, vector[:8], rtol=1e-4)


# -- keys and lost servers -------------------------------------------------------------------------------------------


def test_the_page_asks_for_the_key_and_sends_it(chromium: Page, tmp_path: Path) -> None:
    path = models.write_dense(tmp_path / "dense.onnx")
    with weft.server.start(path, grpc=None, metrics=None, poll=0, api_key="the key") as server:
        chromium.problems.clear()
        chromium.open(f"{server.url}/", 390, 800)
        assert chromium.problems == []
        assert chromium.evaluate("document.activeElement.id") == "key"
        assert chromium.evaluate("document.getElementById('models').hidden")
        for key, hidden in (("wrong", "access"), ("the key", "models")):
            chromium.evaluate(f"document.getElementById('key').value = {json.dumps(key)}")
            chromium.evaluate("document.querySelector('#access button').click()")
            expected = "does not accept this key" if key == "wrong" else ""
            wait_for(chromium, f"document.getElementById('problem').textContent.includes({json.dumps(expected)})")
            wait_for(chromium, f"!document.getElementById({json.dumps(hidden)}).hidden")
        choose(chromium, "dense")
        assert "Answered" in run(chromium)
        assert "the key" not in command(chromium)
        assert 'Authorization: Bearer $API_KEY"' in command(chromium)


def test_the_page_says_when_the_server_is_gone(chromium: Page, tmp_path: Path) -> None:
    path = models.write_dense(tmp_path / "dense.onnx")
    with weft.server.start(path, grpc=None, metrics=None, poll=0) as server:
        open_page(chromium, server.url)
    chromium.evaluate("server.look()")
    wait_for(chromium, "document.getElementById('state').textContent === 'No answer'")
    assert chromium.evaluate("document.getElementById('problem').textContent") == "The server does not answer."
