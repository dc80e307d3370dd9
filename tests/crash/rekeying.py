"""The process that is killed while it rekeys its store: `python -m tests.crash.rekeying STORE LOG`.

Which key it rekeys to is in its environment. One thread rekeys, one enqueues and works; each enqueued id is
written down once it is acknowledged, and each acked one before it is.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

import penstock
from penstock import NewMessage


def main(store: str, log_path: str) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system = penstock.open(f"rocksdb:{store}?durability=os")
    os.write(1, b"opened\n")
    threading.Thread(target=system.rekey, daemon=True).start()
    q = system.queue("q")
    for number in itertools.count():
        payload = b"%d" % number
        dedup_id = f"{log_path} {number}"  # Once a round: more comes in than is worked off.
        (result,) = q.enqueue_many([NewMessage(payload, headers={"n": str(number)}, dedup_id=dedup_id)])
        os.write(log, f"enqueued {result.id} {number}\n".encode())
        if number % 3 == 0:
            (delivery,) = q.lease(1)
            os.write(log, f"acking {delivery.id} {delivery.payload.decode()}\n".encode())
            q.ack([delivery.receipt])
        elif number % 3 == 1:
            (delivery,) = q.lease(1)
            q.nack([delivery.receipt], reason=f"reason {number}", delay_s=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
