"""What a local worker's process runs first: it asks to be stopped when whoever started it is gone, however it went.

`main` takes a module and its arguments; its standard input is a pipe that nobody writes to and that closes with the
parent.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time

# The environment variable with what a local worker is to ask of whoever calls it.
SECRET = "HEADWAY_WORKER_SECRET"
# After being asked, this long until it is ended.
GRACE_S = 60.0


def _hold() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main() -> None:
    module, *arguments = sys.argv[1:]
    threading.Thread(target=_hold, name="headway-lifeline", daemon=True).start()
    sys.argv = ["headway", *arguments]
    importlib.import_module(module).main()
