"""make_hf_model.py GGUF FOLDER: dequantise a GGUF into a Hugging Face folder in bf16, as vLLM wants it.

Runs in the environment of vLLM, which must also hold `gguf` and `accelerate`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"


def dequantise(gguf: Path, folder: Path) -> None:
    """Written elsewhere and moved at the end: a folder with a `config.json` is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    source, name = str(gguf.absolute().parent), gguf.name
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(partial)
    quantisation = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, dtype=torch.bfloat16, quantization_config=quantisation
    )
    model.save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
