"""Servers that tests of a module share, and AWS's client in both protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.server.sqs.query_model import written
from tests.server.sqs.serving import Serving, client, serving

_NUMBERS = count(1)
Named = Callable[..., str]


@pytest.fixture(scope="session")
def query_models(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(written(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as started:
        yield started


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: Serving, query_models: str) -> Any:
    """A client, once for each protocol."""
    return client(server.url, query_models if request.param == "query" else None)


@pytest.fixture
def queue(sqs: Any) -> Named:
    """Makes a queue of a name that no other test has, and gives its URL."""

    def made(fifo: bool = False, tags: dict[str, str] | None = None, **attributes: str) -> str:
        name = f"q{next(_NUMBERS)}" + (".fifo" if fifo else "")
        if fifo:
            attributes["FifoQueue"] = "true"
        url: str = sqs.create_queue(QueueName=name, Attributes=attributes, tags=tags or {})["QueueUrl"]
        return url

    return made
