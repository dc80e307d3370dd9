"""The page: whole, harmless and readable, whatever the facts are."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest

from penstock.clock import NS_PER_S
from penstock.spark.jobs.reporting.facts import (
    AttemptRow,
    Facts,
    KeyRow,
    Moment,
    QueueRow,
    ReasonRow,
    ShareRow,
    Spans,
)
from penstock.spark.jobs.reporting.page import page
from penstock.spark.jobs.reporting.readings import READINGS

NOON_NS = 1_794_830_400 * NS_PER_S
SPANS = Spans(0.5, 2.0, 61.0)
#: Of 9 deliveries, what was due.
KEYS = (("content", 9.0), ("greedy", 5.0))
HOSTILE = (
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "&lt;b&gt; & <b>bold</b>",
    "]]> --> {{7*7}} ${7*7}",
    "\x1b[31mred\x07 \u202egnp.exe\u2028",
    "ünïcødé 名前 🦀",
    "x" * 1024,
)


class Seen(HTMLParser):
    """What a browser would make of a page: elements, attributes, texts."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "an element that is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def moments(queue: str | None, count: int) -> tuple[Moment, ...]:
    return tuple(
        Moment(
            queue=queue,
            at_ns=NOON_NS + n * 60 * NS_PER_S,
            enqueued=n,
            delivered=n,
            acked=n,
            failed=n % 3,
            wait_s=SPANS if n % 4 else Spans(),
            work_s=SPANS,
            waiting=count - n,
            leased=2,
            oldest_s=n / 2,
        )
        for n in range(count)
    )


def full(names: tuple[str, ...] = ("emails", "orders"), count: int = 60) -> Facts:
    """Facts with something in every table, all of whose names are these."""
    queues = tuple(
        QueueRow(
            queue=name, enqueued=9, delivered=8, acked=7, failed=1, dead=1, wait_s=SPANS, work_s=SPANS,
            waiting=1, leased=1, oldest_s=2.0,
        )
        for name in names
    )  # fmt: skip
    return Facts(
        source=names[0],
        made_at_ns=NOON_NS,
        since_ns=NOON_NS,
        until_ns=NOON_NS + count * 60 * NS_PER_S,
        bucket_s=60.0,
        events=100,
        queue_count=len(names),
        dead_letter_queues=names[-1:],
        deliveries=80,
        deliveries_with_key=40,
        key_count=1000,
        wait_s=SPANS,
        work_s=SPANS,
        queues=queues,
        timeline=moments(None, count),
        timeline_by_queue=tuple(one for name in names for one in moments(name, count)),
        attempts=(AttemptRow(1, 80, 60, 20), AttemptRow(2, 20, 19, 1)),
        failures=(
            *(ReasonRow(name, "nacked", name, 3, NOON_NS) for name in names),
            ReasonRow(names[0], "released", "", 2, NOON_NS),
        ),
        deaths=tuple(ReasonRow(name, "dead", name, 3, NOON_NS) for name in names),
        shares=tuple(ShareRow(name, 4, name, 2.0, 10, 9.5, 0.6, 0.55, 60.0) for name in names),
        slowest=tuple(KeyRow(name, name, 10, SPANS, SPANS) for name in names),
    )


def test_every_section_is_there_and_says_how_to_read_it() -> None:
    seen = Seen(page(full()))
    text = "".join(seen.text)
    for anchor, (title, how) in READINGS.items():
        assert ("section", "id", anchor) in seen.attributes
        assert ("a", "href", f"#{anchor}") in seen.attributes
        assert title in text
        assert how in text


def test_the_page_needs_nothing_but_itself() -> None:
    written = page(full())
    seen = Seen(written)
    assert not {"script", "img", "link", "iframe", "object", "embed", "form", "base"} & set(seen.tags)
    assert not re.search(r"url\(|@import|javascript:|https?://", written)
    links = [value for _, name, value in seen.attributes if name in ("href", "src", "action")]
    assert all(link.startswith("#") for link in links)
    policy = next(
        v for tag, name, v in seen.attributes if (tag, name) == ("meta", "content") and "default" in v
    )
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_a_text_wherever_it_stands(name: str) -> None:
    calm = Seen(page(full(("a", "b"))))
    seen = Seen(page(full((name, "b"))))
    assert seen.tags == calm.tags, "the name has become an element"
    assert [(tag, key) for tag, key, _ in seen.attributes if key != "title"] == [
        (tag, key) for tag, key, _ in calm.attributes if key != "title"
    ]
    text = "".join(seen.text)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2028]", text)
    assert re.sub(r"\\.*", "", name.split("\x1b")[0])[:60] in text


def test_light_and_dark_have_the_same_colours_by_name() -> None:
    written = page(full())
    light, dark = re.findall(r":root \{([^}]*)\}", written)
    names = [set(re.findall(r"(--[\w-]+):", part)) for part in (light, dark)]
    assert names[0] == names[1]
    used = set(re.findall(r"var\((--[\w-]+)\)", written))
    assert used <= names[0]


def test_nothing_to_report_says_so() -> None:
    written = page(Facts(source="./data", made_at_ns=NOON_NS))
    assert "There is nothing to report" in "".join(Seen(written).text)


def test_one_moment_of_one_queue_is_drawn() -> None:
    facts = msgspec.structs.replace(full(("only",), 1), timeline_by_queue=(), dead_letter_queues=())
    seen = Seen(page(facts))
    assert "circle" in seen.tags, "a line of one point would not be seen"
    assert ("section", "id", "by-queue") not in seen.attributes


def test_no_keys_no_failures_no_deaths_are_said() -> None:
    facts = msgspec.structs.replace(
        full(), deliveries_with_key=0, shares=(), slowest=(), failures=(), deaths=(), attempts=()
    )
    text = "".join(Seen(page(facts)).text)
    for said in ("Fairness keys are not known", "No message died", "No delivery was made"):
        assert said in text


def test_a_key_that_asked_for_no_more_is_said_to_have_got_it_all() -> None:
    """One that was never short because it got more than was due is not."""
    content, greedy = (ShareRow("q", 4, key, 1.0, 9, due, 0.5, due / 18, 0.0) for key, due in KEYS)
    assert ">all it asked for<" in page(msgspec.structs.replace(full(), shares=(content,)))
    assert ">all it asked for<" not in page(msgspec.structs.replace(full(), shares=(greedy,)))


def test_what_is_not_known_is_said() -> None:
    assert "50 % of the deliveries" in page(full())
    assert "does not reach back" not in page(full())
    assert "does not reach back" in page(msgspec.structs.replace(full(), whole=False))


def test_a_thousand_names_are_cut_to_what_fits() -> None:
    names = tuple(f"key {n}" for n in range(1000))
    few = msgspec.structs.replace(full(names[:8]), queue_count=1000)
    text = "".join(Seen(page(few)).text)
    assert "992 more queues are not listed" in text
    assert "992 more keys were faster" in text
    assert "992 others are not drawn" in "".join(
        Seen(page(msgspec.structs.replace(few, dead_letter_queues=()))).text
    )


def test_the_same_facts_give_the_same_page() -> None:
    assert page(full()) == page(full())


def test_numbers_stay_inside_the_picture() -> None:
    """Every point of every line: nothing hangs over the edge."""
    for path in re.findall(r'class="(?:line|area)" d="([^"]*)"', page(full())):
        for x, y in re.findall(r"([\d.]+) ([\d.]+)", path):
            assert 0 <= float(x) <= 960
            assert 0 <= float(y) <= 230
