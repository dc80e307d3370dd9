"""penstock keys: the file of those who may use a server. Keys are shown once; the file has their hashes."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.columns import field
from penstock.cli.command import Group, command
from penstock.cli.exits import Exit
from penstock.cli.session import Session
from penstock.cli.tables import Column

app = typer.Typer(
    cls=Group, no_args_is_help=True, add_completion=False, help="Who may use a server: its file of keys."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is; logs have this name.")]
File = Annotated[str, typer.Option("--file", metavar="FILE", help="The file, which only its owner may read.")]
_COLUMNS = (
    Column("name", field("name")),
    Column("grants", field("grants")),
    Column("certificate", field("certificate")),
    Column("aws access key", field("aws_access_key")),
    Column("expires", field("expires_at")),
)


@command(app, "create")
def create(
    session: Session,
    name: Name,
    grants: Annotated[
        list[str],
        typer.Option(
            "--grant",
            metavar="QUEUE=PERMISSIONS",
            help="'emails*=enqueue,read', '*=admin': of enqueue, consume, read, admin. May be repeated.",
        ),
    ],
    file: File = "keys.yaml",
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="TIME", help="Like 2027-01-31T00:00:00Z.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="CN", help="A client's certificate is as good.")
    ] = None,
    aws: Annotated[
        bool, typer.Option("--aws", help="With an access key and a secret too, for clients of SQS.")
    ] = False,
) -> None:
    """Make a key, and show it this once; a server that runs takes it within a second.

    A name that has a key already gets no other: revoke it first, or keep both under two names meanwhile.
    """
    from penstock.server.credentials import TOKEN_PREFIX, hash_of

    token = TOKEN_PREFIX + secrets.token_hex(32)
    entry: dict[str, Any] = {"grants": dict(map(_grant, grants)), "token_sha256": hash_of(token)}
    # Of hexadecimal digits: in the file nothing of them is a variable's name.
    pair = {"aws_access_key": _aws_access_key(), "aws_secret": secrets.token_hex(32)} if aws else {}
    entry |= pair
    more = {"expires_at": expires_at, "certificate": certificate}
    entry |= {key: value for key, value in more.items() if value is not None}
    with _changed(file) as keys:
        if name in keys:
            raise typer.BadParameter(f"{name!r} has a key already; penstock keys revoke {name}")
        keys[name] = entry
    if session.out.as_json:
        session.out.object({"name": name, "key": token, **pair})
    session.out.say(token)
    session.out.note(f"the key of {name!r}, in {file} by its hash; it is not shown again")
    if pair:
        session.out.say(f"AWS_ACCESS_KEY_ID={pair['aws_access_key']}")
        session.out.say(f"AWS_SECRET_ACCESS_KEY={pair['aws_secret']}")
        session.out.note(f"for clients of SQS; {file} has the secret in clear: it makes signatures")


@command(app, "list")
def list_(session: Session, file: File = "keys.yaml") -> Exit:
    """Show whose keys there are and what they may do, never a key."""
    from penstock.server.credentials import read_entries

    rows = (
        {
            "name": name,
            "grants": "; ".join(f"{queue}={','.join(given)}" for queue, given in entry.grants.items()),
            "certificate": entry.certificate,
            "aws_access_key": entry.aws_access_key,
            "expires_at": entry.expires_at,
        }
        for name, entry in read_entries(file, os.environ).items()
    )
    return Exit.DONE if session.out.rows(rows, _COLUMNS, "there are no keys") else Exit.NOTHING


@command(app, "revoke")
def revoke(session: Session, name: Name, file: File = "keys.yaml") -> Exit:
    """Take somebody out of the file; a server that runs refuses the key within a second."""
    with _changed(file) as keys:
        found = keys.pop(name, None)
    if found is None:
        session.out.note(f"{name!r} has no key in {file}; see penstock keys list")
        return Exit.NOTHING
    if session.out.as_json:
        session.out.object({"name": name, "revoked": True})
    session.out.say(f"{name!r} is revoked")
    return Exit.DONE


def _aws_access_key() -> str:
    """Of the length of AWS's own, and none of theirs."""
    return f"PSKA{secrets.token_hex(8).upper()}"


def _grant(text: str) -> tuple[str, list[str]]:
    queue, _, given = text.rpartition("=")
    if not queue:
        raise typer.BadParameter(f"--grant {text!r} is not like 'emails*=enqueue,read'")
    return queue, given.split(",")


@contextmanager
def _changed(file: str) -> Iterator[dict[str, Any]]:
    """The entries as they are written; what was changed takes the file's place if it can be used."""
    from penstock.server.credentials import read_entries

    path = Path(file).absolute()
    new = path.with_name(f"{path.name}.new")
    with _locked(path.parent):
        if path.exists():
            read_entries(str(path), os.environ)
            tree = msgspec.yaml.decode(path.read_bytes()) or {}
        else:
            tree = {}
        keys = tree.get("keys") or {}
        yield keys
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(msgspec.yaml.encode({"keys": keys}))
                stream.flush()
                os.fsync(stream.fileno())
            read_entries(str(new), os.environ)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two commands at once would each write the file without the other's change."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
