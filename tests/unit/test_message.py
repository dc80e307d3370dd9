"""Messages as people see them: what a log or a traceback may show, and what it may not."""

from __future__ import annotations

import penstock
from penstock import ManualClock


def test_what_is_shown_of_a_message_or_a_delivery_has_nothing_of_payload_or_header_values() -> None:
    with penstock.open("memory:", clock=ManualClock()) as ps:
        q = ps.create_queue("q")
        message_id = q.enqueue(b"tell-nobody", headers={"token": "tell-nobody"})
        page, message, delivery = q.list(), q.get(message_id), q.lease()[0]
    for shown in (page, message, delivery):
        for text in (repr(shown), str(shown), f"{shown}", f"{[shown]}"):
            assert "tell-nobody" not in text
            assert message_id in text
            assert "<11 bytes>" in text
