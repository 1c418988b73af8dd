"""OpenVINO's telemetry, kept off.

`import openvino` imports its model converter, which reports the import to an analytics service and writes a client id
and a usage counter under the home directory. There is no environment switch for it, and the documented opt-out is a
file in the home directory, where nothing of ours belongs. What the package does support is the telemetry package
being absent: it then uses a stub. So `turn_off` makes it look absent, in this process only.
"""

from __future__ import annotations

import sys


def turn_off() -> None:
    """Call before the first `import openvino`, or of anything that imports it. Idempotent.

    A `None` in `sys.modules` is the documented way to make an import raise `ModuleNotFoundError`. Where a program
    that embeds us imported OpenVINO before, that was its own choice and nothing changes.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
