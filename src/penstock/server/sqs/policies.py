"""Policies of queues: kept, changed by label, shown. They grant nothing: the permissions of keys decide."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.server.sqs import shapes
from penstock.server.sqs.attributes import PREFIX
from penstock.server.sqs.call import Call
from penstock.server.sqs.checks import invalid, missing
from penstock.server.sqs.errors import SqsError
from penstock.settings import QueueSettings

POLICY = PREFIX + "Policy"
MOST_ACTIONS = 7
MOST_STATEMENTS = 20
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")


async def add_permission(call: Call, args: shapes.AddPermission) -> None:
    _check_label(args.label)
    _check_accounts(args.aws_account_ids)
    _check_actions(args.actions)

    def changed(was: QueueSettings) -> dict[str, Any]:
        arn = call.place.arn(call.queue)
        policy = _policy(was) or {"Version": "2012-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
        statements = _statements(policy)
        if any(_sid(statement) == args.label for statement in statements):
            raise invalid("Label", args.label, "Already exists.")
        if len(statements) >= MOST_STATEMENTS:
            raise SqsError("OverLimit", f"A policy has at most {MOST_STATEMENTS} statements.")
        statement = {
            "Sid": args.label,
            "Effect": "Allow",
            "Principal": {"AWS": _one_or_all([f"arn:aws:iam::{one}:root" for one in args.aws_account_ids])},
            "Action": _one_or_all([f"SQS:{action}" for action in args.actions]),
            "Resource": arn,
        }
        return _with_policy(was, {**policy, "Statement": [*statements, statement]})

    await call.update(changed)


async def remove_permission(call: Call, args: shapes.RemovePermission) -> None:
    _check_label(args.label)

    def changed(was: QueueSettings) -> dict[str, Any]:
        policy = _policy(was)
        statements = _statements(policy)
        kept = [statement for statement in statements if _sid(statement) != args.label]
        if len(kept) == len(statements):
            raise invalid("Label", args.label, "can't find label.")
        return _with_policy(was, {**policy, "Statement": kept} if kept else None)

    await call.update(changed)


def _check_label(label: str) -> None:
    if not _LABEL.fullmatch(label):
        raise invalid("Label", label, "It has 1 to 80 letters, digits, hyphens and underscores.")


def _check_accounts(accounts: list[str]) -> None:
    if not accounts:
        raise missing("AWSAccountIds")
    for account in accounts:
        if not _ACCOUNT.fullmatch(account):
            raise invalid("PrincipalId", account, "An account has 12 digits.")


def _check_actions(names: list[str]) -> None:
    from penstock.server.sqs.actions import ACTIONS  # Which has these two among them.

    if not names:
        raise missing("Actions")
    if len(names) > MOST_ACTIONS:
        raise SqsError("OverLimit", f"{len(names)} Actions were found, maximum allowed is {MOST_ACTIONS}.")
    for name in names:
        if name != "*" and name not in ACTIONS:
            raise invalid("ActionName", name, "It is no action, and not *.")


def _policy(settings: QueueSettings) -> dict[str, Any]:
    text = settings.annotations.get(POLICY)
    found = msgspec.json.decode(text) if text else {}
    return found if isinstance(found, dict) else {}


def _statements(policy: dict[str, Any]) -> list[Any]:
    """One that stands alone may be no list."""
    found = policy.get("Statement", [])
    return found if isinstance(found, list) else [found]


def _sid(statement: Any) -> Any:
    return statement.get("Sid") if isinstance(statement, dict) else None


def _one_or_all(items: list[str]) -> str | list[str]:
    return items[0] if len(items) == 1 else items


def _with_policy(was: QueueSettings, policy: dict[str, Any] | None) -> dict[str, Any]:
    notes = {name: value for name, value in was.annotations.items() if name != POLICY}
    if policy is not None:
        notes[POLICY] = msgspec.json.encode(policy).decode()
    return {"annotations": notes}
