"""The page and the report in a real browser. Run with `make test-browser`; skipped where there is none."""

import json
import shutil

import pytest
from conftest import sentiment_rows
from test_web import Server, wait_for

from faithmeter import DataSpec, MeasureOptions, TrainingOptions, check, measure, report, train
from faithmeter.web.app import create_app

selenium = pytest.importorskip("selenium", reason="needs selenium: `make test-browser` installs it")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver"),
]
NASTY = "</script><img src=x onerror=document.title='hacked'> \u202e\x07"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    rows = [{**row, "text": f"{row['text']} {NASTY}"} for row in sentiment_rows(200)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = TrainingOptions(epochs=6, curriculum=False, learning_rate=2e-3, batch_size=16)
    run = train(folder / "run", DataSpec(data=str(folder / "rows.jsonl")), "small", options)
    check(run.path)
    return measure(run.path, MeasureOptions(measures=("grad-l2", "loo-signed"), rows=20, random_runs=1))


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(run):
    server = Server(create_app(run))
    yield f"http://127.0.0.1:{server.port}/"
    server.server.should_exit = True


def look(browser, width: int, scheme: str) -> None:
    browser.set_window_size(width, 1000)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def requests_to_elsewhere(browser, here: str) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith((here, "data:"))]


def by_id(browser, name):
    return browser.find_element("id", name)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [500, 1200])
def test_the_report_stands_in_its_window_runs_nothing_and_asks_for_nothing(browser, run, tmp_path, width, scheme):
    (file,) = report([run.path], tmp_path)
    look(browser, width, scheme)
    browser.get_log("performance")
    browser.get(file.as_uri())
    assert browser.title.startswith("Which explanation to believe")
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not requests_to_elsewhere(browser, file.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert "<img src=x onerror" in browser.find_element("tag name", "main").text
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_person_with_a_keyboard_explains_masks_and_compares(browser, address):
    look(browser, 500, "dark")
    browser.get_log("performance")
    browser.get(address)
    by_id(browser, "take").send_keys("\n")
    wait_for(lambda: by_id(browser, "text").get_attribute("value"))
    by_id(browser, "first").send_keys("loo-signed")
    by_id(browser, "second").send_keys("grad-l2")
    by_id(browser, "explain").send_keys("\n")
    wait_for(lambda: by_id(browser, "answer").is_displayed())
    boxes = browser.find_elements("css selector", ".one")
    assert [box.find_element("tag name", "h2").text for box in boxes] == ["loo-signed", "grad-l2"]
    before = boxes[0].find_element("css selector", ".numbers").text
    by_id(browser, "masking").send_keys("\ue014" * 5)  # the right arrow
    assert by_id(browser, "share").text == "50 %"
    assert len(boxes[0].find_elements("css selector", ".fm-masked")) > 0
    assert boxes[0].find_element("css selector", ".numbers").text != before
    by_id(browser, "level").send_keys("tokens")
    assert "U+202E" in boxes[0].text
    assert browser.title != "hacked"
    assert not requests_to_elsewhere(browser, address)
    assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_problem_is_said_on_the_page(browser, address):
    browser.get(address)
    browser.execute_script("document.getElementById('row').value = 100000")
    by_id(browser, "take").click()
    wait_for(lambda: by_id(browser, "status").text)
    assert "numbered from 0" in by_id(browser, "status").text
    assert "problem" in by_id(browser, "status").get_attribute("class")
