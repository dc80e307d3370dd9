"""A report as one HTML page that needs nothing else: no script, no network; light or dark."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from penstock.spark.jobs.reporting import sections
from penstock.spark.jobs.reporting.axes import amount, duration, moment
from penstock.spark.jobs.reporting.facts import COUNTS, Facts
from penstock.spark.jobs.reporting.markup import card, nothing, text
from penstock.version import __version__

_HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # The page's own style is all that it may use: whatever gets into it can fetch nothing and run nothing.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def page(facts: Facts) -> str:
    """The whole page."""
    style = files("penstock.spark.jobs.reporting").joinpath("page.css").read_text()
    title = f"Penstock report{f' of {facts.source}' if facts.source else ''}"
    body = "".join(_body(facts))
    return f"{_HEAD}<title>{text(title)}</title><style>{style}</style></head><body>{body}</body></html>\n"


def _body(facts: Facts) -> Iterator[str]:
    yield "<header><h1>Penstock report</h1>"
    if facts.source:
        yield f"<p>of <bdi>{text(facts.source)}</bdi></p>"
    if facts.events:
        since, until = moment(facts.since_ns), moment(facts.until_ns)
        length = duration((facts.until_ns - facts.since_ns) / 1e9)
        yield f"<p>{since} to {until} UTC ({length}); one point of a plot is {duration(facts.bucket_s)}</p>"
    yield "</header>"
    if not facts.events:
        yield nothing("There is nothing to report: no events in these queues and this time.")
    else:
        if not facts.whole:
            yield (
                '<p class="warning">The history of some queues does not reach back to their beginning. What '
                "happened before is not counted, and how long messages had waited by then is not known.</p>"
            )
        yield _cards(facts)
        built = list(sections.all_of(facts))
        yield "<nav>" + "".join(f'<a href="#{one.anchor}">{one.title}</a>' for one in built) + "</nav>"
        yield from (one.html for one in built)
    yield f"<footer>Made by Penstock {__version__} at {moment(facts.made_at_ns)} UTC.</footer>"


def _cards(facts: Facts) -> str:
    seconds = max(0.001, (facts.until_ns - facts.since_ns) / 1e9)  # Of one moment there is no rate.
    total = {name: sum(getattr(one, name) for one in facts.timeline) for name in COUNTS}
    last = facts.timeline[-1]
    waits = facts.wait_s.p95
    works = facts.work_s.p95
    failed = f"{100 * total['failed'] / total['delivered']:.1f} % of deliveries" if total["delivered"] else ""
    cards = (
        card("enqueued", amount(total["enqueued"]), f"{amount(total['enqueued'] / seconds)} a second"),
        card("delivered", amount(total["delivered"]), f"{amount(total['delivered'] / seconds)} a second"),
        card("done", amount(total["acked"])),
        card("failed deliveries", amount(total["failed"]), failed),
        card("dead", amount(total["dead"])),
        card("wait, 95 of 100 within", "–" if waits is None else duration(waits)),
        card("work, 95 of 100 within", "–" if works is None else duration(works)),
        card(
            "waiting at the end",
            amount(last.waiting),
            f"oldest: {duration(last.oldest_s)}" if last.oldest_s else "",
        ),
    )
    return f'<dl class="cards">{"".join(cards)}</dl>'
