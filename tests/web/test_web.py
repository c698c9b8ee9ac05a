"""The page's server, asked as a browser and as a stranger would ask it."""

import http.client
import json
import shutil
import socket
import threading
import time

import pytest
import uvicorn
from conftest import sentiment_rows

from faithmeter import MeasureOptions, Run, measure
from faithmeter.errors import InputError
from faithmeter.files import write_jsonl
from faithmeter.progress import yield_to_cancellation
from faithmeter.web import job_queue as queue_module
from faithmeter.web.app import create_app
from faithmeter.web.job_queue import JobQueue, Turns


class Server:
    """A live server on a free port of this machine."""

    def __init__(self, app) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="error"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_for(lambda: self.server.started)

    def ask(self, method, path, body=None, **headers):
        """Return the status, the headers and the content of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        if isinstance(body, dict):
            body, headers = json.dumps(body), {"Content-Type": "application/json", **headers}
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        content = response.read().decode()
        connection.close()
        is_json = response.getheader("content-type", "").startswith("application/json")
        return response.status, response.headers, json.loads(content) if is_json else content

    def explain(self, **question):
        status, _, content = self.ask("POST", "/explanations", question)
        assert status == 202, content
        return self.answer(content["job"])

    def answer(self, job):
        found = None

        def ready():
            nonlocal found
            found = self.ask("GET", f"/explanations/{job}")[2]
            return found["state"] != "running"

        wait_for(ready)
        return found


def wait_for(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def run(checked_toy, tmp_path_factory):
    return Run(shutil.copytree(checked_toy, tmp_path_factory.mktemp("web") / "run"))


@pytest.fixture(scope="module")
def server(run):
    server = Server(create_app(run))
    yield server
    server.server.should_exit = True
    server.thread.join(10)


def test_the_page_and_its_parts_are_there_and_load_nothing_from_elsewhere(server):
    status, headers, page = server.ask("GET", "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "http" not in page.replace("http-equiv", "")
    for path in ("/static/page.css", "/static/page.js"):
        assert path in page
        assert server.ask("GET", path)[0] == 200
    assert server.ask("GET", "/static/../app.py")[0] == 404


def test_a_text_is_explained_by_two_measures_with_every_step(server):
    found = server.explain(text="good film story plot", measures=["loo-signed", "grad-l2"])
    assert found["state"] == "done"
    assert [one["measure"] for one in found["answer"]] == ["loo-signed", "grad-l2"]
    one = found["answer"][0]
    assert len(one["steps"]) == 11
    assert one["steps"][10]["tokens"] == one["steps"][10]["words"] == [0, 1, 2, 3]
    assert 0 <= one["steps"][3]["p_value"] <= 1
    assert one["words"].count("data-n") == 4


@pytest.mark.parametrize(
    "text", ["</script><img src=x onerror=alert(1)>", "a\x00b \u202e right to left", "good " * 200_000]
)
def test_markup_control_characters_and_a_megabyte_are_only_text(server, text):
    found = server.explain(text=text, measures=["grad-l2"])
    assert found["state"] == "done", found
    shown = found["answer"][0]["words"]
    assert "<img" not in shown
    assert not set(shown) & set("\x00\u202e")
    assert len(json.dumps(found)) < 1_000_000


def test_the_page_says_what_the_run_does_not_stand_behind_and_what_was_not_read(server, run):
    page = server.ask("GET", "/")[2]
    doubt = "Nothing has been measured, so no importance measure can be recommended"
    assert page.index(f'<p class="care" role="alert">{doubt}') < page.index("<form")
    (short,) = server.explain(text="good film", measures=["grad-l2"])["answer"]
    assert (short["warnings"], short["unread"]) == ([], 0)
    (long,) = server.explain(text="good " * 600, measures=["grad-l2"])["answer"]  # and two special tokens
    assert long["unread"] == 90
    assert long["warnings"][0].startswith("The text is too long: 90 of 602 tokens were cut off")
    assert "...warnings, text," in server.ask("GET", "/static/page.js")[2]  # before the heat map


def test_a_measure_that_the_run_does_not_stand_behind_is_doubted_on_the_page(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "run")
    row = {"masking_ratio": None, "detail": None, "n": 200, "over": "observations"}
    areas = {"loo-signed": (0.4, 0.3, 0.5), "grad-l2": (-0.03, -0.05, -0.01)}
    found = [
        {**row, "kind": "acu", "measure": name, "value": value, "low": low, "high": high}
        for name, (value, low, high) in areas.items()
    ]
    write_jsonl(path / "results.jsonl", [*run.results, *found])
    server = Server(create_app(Run(path)))
    assert 'role="alert"' not in server.ask("GET", "/")[2]
    good, bad = server.explain(text="good film", measures=["loo-signed", "grad-l2"])["answer"]
    assert good["warnings"] == []
    assert bad["warnings"][0].startswith("grad-l2 was not shown to beat random masking on this model (ACU -0.03")
    server.server.should_exit = True
    server.thread.join(10)


def test_a_text_is_explained_by_the_units_that_the_run_was_measured_by(run, tmp_path):
    path = shutil.copytree(run.path, tmp_path / "run")
    measure(path, MeasureOptions(("grad-l2",), rows=2, random_runs=1, by="chunk", chunk=2))
    server = Server(create_app(Run(path)))
    (one,) = server.explain(text="good film story plot", measures=["loo-signed"])["answer"]
    assert one["words"].count("data-n") == 2  # chunks of two words each, and no token is masked without its chunk
    assert [len(step["tokens"]) for step in one["steps"]] == [0, 0, 0, 2, 2, 2, 2, 2, 4, 4, 4]
    server.server.should_exit = True
    server.thread.join(10)


def test_a_test_text_can_be_taken(server, run):
    test = run.data().test
    assert server.ask("GET", "/rows/3")[2]["text"] == test[3]["text"]
    status, _, content = server.ask("GET", "/rows/100000")
    assert (status, "numbered from 0" in content["error"]) == (400, True)


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"text": "  "}, "no text"),
        ({"text": "good", "measures": ["loo-sined"]}, "Did you mean 'loo-signed'"),
        ({"text": "good", "target": "sideways"}, "no class 'sideways'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_in_words(server, question, problem):
    status, _, content = server.ask("POST", "/explanations", question)
    assert (status, problem in content["error"]) == (400, True)


def test_what_is_not_a_question_is_refused(server):
    assert server.ask("POST", "/explanations", "text=good", Content_Type="application/x-www-form-urlencoded")[0] == 400
    assert server.ask("POST", "/explanations", "{", Content_Type="application/json")[0] == 400
    assert server.ask("POST", "/explanations", "[]", Content_Type="application/json")[0] == 400
    assert server.ask("POST", "/explanations", {"text": "x" * 9_000_000})[0] == 400
    assert server.ask("GET", "/explanations/nothing")[0] == 404


def test_other_sites_cannot_ask(server):
    here = f"127.0.0.1:{server.port}"
    assert server.ask("GET", "/rows/1", Host="evil.example")[0] == 421
    assert server.ask("GET", "/rows/1", Host=f"evil.example:{server.port}")[0] == 421
    assert server.ask("POST", "/explanations", {"text": "good"}, Origin="http://evil.example")[0] == 403
    assert server.ask("POST", "/explanations", {"text": "good"}, Origin="null")[0] == 403
    assert server.ask("POST", "/explanations", {"text": "good"}, Origin=f"http://{here}")[0] == 202
    assert server.ask("GET", "/rows/1", Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", ""])
def test_an_address_that_stands_for_every_one_is_refused_in_words(run, faithmeter, host):
    code, printed = faithmeter("serve", run.path, "--host", host)
    assert (code, "Give the address or host name that people will type" in printed) == (2, True)
    assert "The page is at" not in printed


@pytest.mark.parametrize(
    ("host", "name"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("192.168.1.20", "192.168.1.20"),
     ("fd00::20", "[fd00::20]"), ("Desk.local", "desk.local")],
)  # fmt: skip
def test_a_named_host_is_answered_under_its_own_name(run, faithmeter, monkeypatch, host, name):
    served = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: served.update(app=app, **options))
    code, printed = faithmeter("serve", run.path, "--host", host, "--port", 8123)
    assert (code, f"The page is at http://{name}:8123" in printed) == (0, True), printed
    assert served["host"] == host
    live = Server(served["app"])
    assert live.ask("GET", "/rows/1", Host=f"{name}:8123")[0] == 200
    assert live.ask("GET", "/rows/1", Host="0.0.0.0:8123")[0] == 421
    live.server.should_exit = True
    live.thread.join(10)


def test_long_work_can_be_cancelled_and_does_not_hold_up_a_quick_question(server):
    long = " ".join(["good film story plot"] * 40)
    job = server.ask("POST", "/explanations", {"text": long, "measures": ["beam"]})[2]["job"]
    assert server.explain(text="bad plot", measures=["grad-l2"])["state"] == "done"
    assert server.ask("GET", f"/explanations/{job}")[2]["state"] == "running"
    server.ask("DELETE", f"/explanations/{job}")
    assert server.answer(job)["state"] == "cancelled"


def test_many_people_at_once_get_the_answers_that_they_would_get_alone(server):
    texts = [row["text"] for row in sentiment_rows(12)]
    alone = [server.explain(text=text, measures=["loo-signed", "x-grad-signed"])["answer"] for text in texts]
    together = [None] * len(texts)

    def one(number):
        together[number] = server.explain(text=texts[number], measures=["loo-signed", "x-grad-signed"])["answer"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert together == alone


def test_who_stalls_or_leaves_in_the_middle_of_a_question_does_not_hold_up_others(server, caplog):
    head = (
        "POST /explanations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    )
    unfinished = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
    for connection in unfinished:
        connection.sendall(f'{head}{{"text": "'.encode())
    for connection in unfinished[:4]:
        connection.close()
    for _ in range(4):  # and some never come back for their answer
        server.ask("POST", "/explanations", {"text": "bad plot", "measures": ["beam"]})
    states = []
    ask = lambda: states.append(server.explain(text="good film", measures=["grad-l2"])["state"])  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert states == ["done"] * 8
    for connection in unfinished[4:]:
        connection.close()
    assert server.ask("GET", "/rows/1")[0] == 200
    assert not caplog.records  # leaving is no failure of the server


# -------------------------------------------------------------------------------------- the queue of explanations


def test_turns_are_taken_in_the_order_in_which_they_were_asked_for():
    turns, order = Turns(), []
    turns.take()
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=lambda n=number: (turns.take(), order.append(n), turns.give())))
        threads[-1].start()
        wait_for(lambda waiting=number + 2: turns._next == waiting)
    turns.give()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]


def working_for_ever():
    while True:
        yield_to_cancellation()
        time.sleep(0.001)


def test_work_that_nobody_asks_after_ends_and_old_answers_are_forgotten(monkeypatch):
    monkeypatch.setattr(queue_module, "PATIENCE_SECONDS", 0.1)
    job_queue = JobQueue()
    job = job_queue.submit(working_for_ever)
    wait_for(lambda: job.state == "cancelled", 10)
    monkeypatch.setattr(queue_module, "KEPT_SECONDS", 0.0)
    done = job_queue.submit(lambda: 1)
    wait_for(lambda: done.state == "done", 10)
    job_queue.submit(lambda: 2)
    assert job_queue.find(job.number) is None


def test_a_queue_that_is_full_says_so_and_a_failure_stays_with_its_own_work(monkeypatch):
    monkeypatch.setattr(queue_module, "AT_MOST", 1)
    job_queue = JobQueue()
    job = job_queue.submit(working_for_ever)
    with pytest.raises(InputError, match="Try again in a moment"):
        job_queue.submit(lambda: 1)
    job_queue.cancel(job.number)
    wait_for(lambda: job.state == "cancelled", 10)
    failed = job_queue.submit(lambda: 1 / 0)
    wait_for(lambda: failed.state == "failed", 10)
    assert failed.problem == "ZeroDivisionError: the explanation could not be computed."
    fine = job_queue.submit(lambda: 3)
    wait_for(lambda: fine.answer == 3, 10)
