"""Ends a process group when whoever holds the other end of its stdin is gone.

Run as a script of its own, so that it also works where the holder was killed. It reads the
number of the group, and "done" if all went well.
"""

import contextlib
import os
import signal
import sys
import time

GRACE_S = 5.0
_POLL_S = 0.05


def main() -> None:
    words = sys.stdin.buffer.read().split()
    if len(words) != 1:
        return
    group = int(words[0])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(_POLL_S)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
