"""A warm process that forks a child per round: `python -m tests.crash.zygote`.

It has imported everything and opened nothing, so that a fork is safe and a round costs no start-up.
Orders come in on stdin, one JSON line each; answers go to stdout: `started PID`, `opened`, `ended STATUS`.
"""

from __future__ import annotations

import os
import pickle  # noqa: F401  # the driver imports it when it opens; a child may not be allowed to by then
import sys

import msgspec
import rocksdict  # noqa: F401  # imported for its children

from tests.crash import child, probe


def main() -> None:
    answers = sys.stdout.fileno()
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=child.Order | probe.ProbeOrder)
        pid = os.fork()
        if pid == 0:
            try:
                if isinstance(order, probe.ProbeOrder):
                    probe.run(order)
                else:
                    child.run(order, answers)
            finally:
                os._exit(child.ENDED)  # Nobody killed it: the parent finds out why in its logs.
        os.write(answers, f"started {pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(answers, f"ended {status}\n".encode())


if __name__ == "__main__":
    main()
