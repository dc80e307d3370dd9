"""penstock serve: a store over HTTP."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command import command
from penstock.cli.session import Session

if TYPE_CHECKING:
    from penstock.server.serving import Address

app = typer.Typer(add_completion=False)


@command(app, "serve")
def serve(
    session: Session,
    host: Annotated[
        str | None, typer.Option("--host", help="Where to listen; elsewhere than here it takes credentials.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", min=0, max=65_535, help="0: a free one, which is printed.")
    ] = None,
    credentials: Annotated[
        str | None, typer.Option("--credentials", metavar="FILE", help="Who may come; see penstock keys.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="PEM, with its chain.")
    ] = None,
    key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key, PEM.")] = None,
    client_ca: Annotated[
        str | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Clients must show a certificate of this."),
    ] = None,
    allow_plaintext: Annotated[
        bool | None,
        typer.Option("--allow-plaintext", help="Without TLS where others can reach it.", show_default=False),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Of requests; - for standard error, or off.")
    ] = None,
) -> None:
    """Serve a store over HTTP: queues, SQS's protocol, health and metrics.

    First: `penstock serve --store ./data` makes the store if there is none,
    and prints what to try; /docs in a browser has all operations.

    It listens on this machine alone and lets everybody in. For others:
    `penstock keys create`, --credentials, --tls-certificate and --tls-key,
    then --host 0.0.0.0; all of it can stand in penstock.yaml, as `server:`.

    Ctrl-C or SIGTERM ends it: what has arrived is answered; a second one
    waits for nothing.
    """
    from penstock.backends.registry import missing_stores
    from penstock.server.serving import check_access, serve
    from penstock.server_config import from_environment, with_flags

    config = session.config()
    settings = config.server or from_environment(os.environ)
    settings = with_flags(
        settings,
        host=host,
        port=port,
        credentials=credentials,
        certificate=certificate,
        key=key,
        client_ca=client_ca,
        allow_plaintext=allow_plaintext,
        log=log,
    )
    check_access(settings)  # Before a store is opened.
    with _logging() as log_of_server:
        for path in missing_stores(config):
            log_of_server.info("%s is new: a store is made there", path)
        with session.create(config) as ps:
            serve(ps, settings, lambda address: _say(session, address, settings.credentials is None))


def _say(session: Session, address: Address, is_open: bool) -> None:
    if session.out.as_json:
        session.out.object({"url": address.url, "host": address.host, "port": address.port})
    session.out.say(f"serving {address.url}, Ctrl-C ends")
    session.out.say(f"  curl {address.url}/readyz")
    session.out.say(f"  in a browser: {address.url}/docs")
    sign = " --no-sign-request" if is_open else ""
    session.out.say(f"  aws --endpoint-url {address.url}{sign} sqs list-queues")
    if not is_open:
        session.out.say("    with an access key of penstock keys create --aws")
    session.out.flush()


@contextmanager
def _logging() -> Iterator[logging.Logger]:
    """What the server has to say besides requests, on standard error."""
    logger, said = logging.getLogger("penstock.server"), logging.StreamHandler(sys.stderr)
    form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    said.setFormatter(form)
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    finally:
        logger.removeHandler(said)
