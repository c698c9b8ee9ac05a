"""The page's server: one run, its model, and requests about texts. It listens on this machine only.

Another web site that a user has open could send requests here too. So the host and the origin of every request are
checked (DNS rebinding, cross-site requests), questions must be JSON, and the page may load nothing from elsewhere.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from faithmeter.errors import InputError
from faithmeter.explaining.explanation import Explanation, Piece, explain_text
from faithmeter.explaining.heat_map import small_curve, visible
from faithmeter.explaining.options import PREDICTED, ExplainOptions, require_target
from faithmeter.importance.table import as_measure, measures_of
from faithmeter.models.classifier import Classifier
from faithmeter.problems import LABELS, NUMBER, gold_in_words
from faithmeter.reports import sentences
from faithmeter.reports.evidence import evidence
from faithmeter.runs.results import measures
from faithmeter.runs.run import Run
from faithmeter.statistics.one_text import FEWEST_ORDERS
from faithmeter.studies.explain import as_measured
from faithmeter.web.job_queue import JobQueue

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
LARGEST_QUESTION = 8_000_000  # bytes
LONGEST_SHOWN = 20_000  # characters: what lies behind the model's longest text is not explained anyway
HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("faithmeter.web"), autoescape=True, undefined=jinja2.StrictUndefined
)


class Explorer:
    """The page's requests: the page itself, a test text, an explanation, and its progress.

    Texts are explained as the run was measured: by its most faithful measure, and by the units that were masked.
    """

    def __init__(self, run: Run) -> None:
        self.classifier, self.config, self.test = run.classifier(), run.config, run.data().test
        for parameter in self.classifier.model.parameters():
            parameter.requires_grad_(False)  # shared by all threads, so none may switch it on and off
        self.masf, self.best, self.rows = run.in_distribution_test(), run.measure_to_use, run.results
        self.doubt, self.pairs = sentences.doubt(self.rows), self.config.data.resolved().context is not None
        self.options = as_measured(run, ExplainOptions(orders=FEWEST_ORDERS))  # who asks is waiting
        self.job_queue = JobQueue()

    async def page(self, _: Request) -> Response:
        """Return the page."""
        html = _TEMPLATES.get_template("page.html").render(
            model=self.config.subject,
            measures=measures_of(self.classifier.model.config.model_type),
            best=self.best,
            labels=self.config.labels,
            what=self.config.problem.what,
            pairs=self.pairs,
            rows=len(self.test),
            checked=self.masf is not None,
            doubt=self.doubt,
            evidence=evidence(self.rows, self.best if measures(self.rows) else None),
        )
        return HTMLResponse(html)

    async def row(self, request: Request) -> Response:
        """Return a test text."""
        number = request.path_params["number"]
        if number >= len(self.test):
            raise InputError(f"There are {len(self.test)} test texts, numbered from 0.")
        found = self.test[number]
        gold = gold_in_words(self.config.problem, self.config.labels, found["label"])
        return JSONResponse(
            {
                "text": found["text"],
                "context": found.get("context"),
                "label": gold,
                "what": self.config.problem.what if self.config.problem.name != LABELS else "labels",
            }
        )

    async def ask(self, request: Request) -> Response:
        """Begin to explain a text."""
        question = await _question(request)
        text, context = str(question.get("text", "")), question.get("context") if self.pairs else None
        if not text.strip():
            raise InputError("There is no text to explain.")
        if self.pairs and not str(context or "").strip():
            raise InputError("This model takes pairs: give a context as well.")
        options = replace(self.options, target=str(question.get("target") or PREDICTED))
        require_target(options.target, self.config.labels)
        chosen = [as_measure(str(name)) for name in question.get("measures") or [self.best]][:2]

        def work() -> list[dict[str, Any]]:
            pair = None if context is None else str(context)
            found = explain_text(twin(self.classifier), text, pair, options, measures=chosen, masf=self.masf)
            # the page already shows this warning at its top
            doubts = {one.name: None if self.doubt else sentences.doubt(self.rows, one.name) for one in chosen}
            return [shown(replace(one, doubt=doubts[one.measure])) for one in found]

        return JSONResponse({"job": self.job_queue.submit(work).number}, status_code=202)

    async def job(self, request: Request) -> Response:
        """Return how far an explanation is, or what came of it."""
        number = request.path_params["number"]
        if request.method == "DELETE":
            self.job_queue.cancel(number)
        found = self.job_queue.find(number)
        if found is None:
            return JSONResponse({"error": "There is no such explanation any more: ask again."}, status_code=404)
        content = {"state": found.state, "passes": found.passes, "error": found.problem, "answer": found.answer}
        return await run_in_threadpool(JSONResponse, content)


def create_app(run: Run, hosts: frozenset[str] = LOOPBACK) -> ASGIApp:
    """Return the application for a run; `hosts` are the host names that it answers to."""
    explorer = Explorer(run)

    async def refuse(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=400)

    routes = [
        Route("/", explorer.page),
        Route("/rows/{number:int}", explorer.row),
        Route("/explanations", explorer.ask, methods=["POST"]),
        Route("/explanations/{number}", explorer.job, methods=["GET", "DELETE"]),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    handlers = {InputError: refuse, ClientDisconnect: refuse}  # who left reads nothing, and it is no failure
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)


async def _question(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request, if it is one and not too large."""
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise InputError("Send a JSON object (content type application/json).")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_QUESTION:
            raise InputError(f"The text is too long: at most {LARGEST_QUESTION // 1_000_000} MB can be sent.")
    try:
        question = json.loads(bytes(body))
    except ValueError as error:
        raise InputError("That is not JSON.") from error
    if not isinstance(question, dict):
        raise InputError("Send a JSON object.")
    return question


class Guard:
    """Accepts only requests to this server, from its own page or from no page."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on and add the headers that keep the page to itself."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        named = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if named not in self.hosts:
            await JSONResponse({"error": "This server is not known by that name."}, 421)(scope, receive, send)
            return
        if origin is not None and urlsplit(origin).netloc != host:
            await JSONResponse({"error": "Requests from other sites are refused."}, 403)(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:  # noqa: ANN401 (whatever ASGI sends)
            if message["type"] == "http.response.start":
                message["headers"] += [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
            await send(message)

        await self.app(scope, receive, send_with_headers)


def twin(classifier: Classifier) -> Classifier:
    """Return a classifier of the same weights whose modules are its own: a pass changes them, and threads take turns
    between passes.
    """
    model = classifier.model
    weights = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    own = copy.copy(classifier)
    own.model = copy.deepcopy(model, weights)
    return own


def _tokens_of(words: Sequence[Piece], tokens: Sequence[Piece], first: int = 0) -> list[set[int]]:
    """Return the numbers of the tokens of each word, from `first` on."""
    return [
        {number for number, token in enumerate(tokens, start=first) if word.start <= token.start < word.end}
        for word in words
    ]


def shown(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as the page shows it: texts as HTML that cannot do anything, numbers as numbers."""
    # the model reads no further than its last token
    end = max(LONGEST_SHOWN, *(token.end for token in explanation.tokens), 0)
    parts = _tokens_of(explanation.words, explanation.tokens)
    parts += _tokens_of(explanation.context_words, explanation.context_tokens, first=len(explanation.tokens))
    return {
        "measure": explanation.measure,
        "warnings": explanation.warnings,
        "unread": explanation.unread,
        "says": visible(explanation.answer),
        "followed": "moved by" if explanation.problem == NUMBER else "probability",
        "acu": explanation.acu,
        "racu": explanation.racu,
        "p_value": explanation.p_value,
        "orders": explanation.against_orders,
        "left_out": len(explanation.text) > end,
        "curve": small_curve(
            explanation.curve,
            explanation.random_curve,
            visible(explanation.measure),
            (explanation.random_low, explanation.random_high),
        ),
        "random": explanation.random_curve,
        "words": explanation.coloured(end=end),
        "tokens": explanation.coloured(tokens=True, end=end),
        "steps": [
            {
                "tokens": step.masked,
                "words": [number for number, tokens in enumerate(parts) if tokens and tokens <= set(step.masked)],
                "predicted": visible(step.predicted),
                "probability": along,
                "p_value": step.p_value,
            }
            for step, along in zip(explanation.steps, explanation.curve, strict=True)
        ],
    }
