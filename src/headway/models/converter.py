"""The child that converts: `python -m headway.models.converter SOURCE.gguf` writes the IR beside SOURCE.

Alone in its file because nothing else may run here: the process may be killed by the file it reads. Imported by
nobody.
"""

from __future__ import annotations

import sys

from headway.models import telemetry


def main(source: str) -> None:
    """Build a pipeline for its side effect, `openvino_model.xml` and `.bin` beside `source`."""
    telemetry.turn_off()
    import openvino_genai

    try:
        openvino_genai.LLMPipeline(source, "CPU", enable_save_ov_model=True)
    except RuntimeError as problem:
        # The last line is the library's reason; the lines before are a path on its build machine.
        sys.exit(str(problem).strip().splitlines()[-1])


if __name__ == "__main__":
    main(sys.argv[1])
