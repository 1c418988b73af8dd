"""A name to files, tokenizer and chat template: GGUF, OpenVINO IR directory, Hugging Face repository id.

Read `load_model` in `model.py` first; each other file is one step of it.
"""

from headway.models.cache import Progress, Report, cache_folder
from headway.models.chat_template import ChatTemplate
from headway.models.model import DEFAULT_MODEL, Model, load_model
from headway.models.tokenizer import Detokenizer, Tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "ChatTemplate",
    "Detokenizer",
    "Model",
    "Progress",
    "Report",
    "Tokenizer",
    "cache_folder",
    "load_model",
]
