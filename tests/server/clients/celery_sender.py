"""Sends the tasks of the app, from a process that is no worker."""

from __future__ import annotations

import sys

from tests.server.clients.celery_app import COUNTDOWN_S, fails_twice, later, long, note, short, slow

if sys.argv[1] == "many":
    for number in range(int(sys.argv[2])):
        short.delay(number)
    fails_twice.delay()
    note("sent")
    later.apply_async(countdown=COUNTDOWN_S)
elif sys.argv[1] == "one-slow":
    slow.delay(float(sys.argv[2]))
else:
    long.delay()
