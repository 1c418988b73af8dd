"""The child that converts: `main` writes the IR beside the GGUF file that is its argument.

Alone in its file because nothing else may run here: the process may be killed by the file it reads.
"""

from __future__ import annotations

import sys

from headway.models import telemetry


def main() -> None:
    """Build a pipeline for its side effect, `openvino_model.xml` and `.bin` beside the source."""
    telemetry.turn_off()
    import openvino_genai

    try:
        openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
    except RuntimeError as problem:
        # The last line is the library's reason; the lines before are a path on its build machine.
        sys.exit(str(problem).strip().splitlines()[-1])
