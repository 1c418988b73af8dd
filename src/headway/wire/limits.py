"""What a request may ask at most. Each limit is stated in the error that refuses it and in `/openapi.json`.

They bound what one request can cost before it is admitted; what the service as a whole can carry is the core's affair.
"""

from __future__ import annotations

MAX_BODY_BYTES = 8 * 1024 * 1024  # a million token ids in JSON is about 7 MB
MAX_NESTING = 64  # of JSON arrays and objects; real tool schemas stay under 20
MAX_SAMPLES = 128  # `n`, OpenAI's own limit
MAX_SEQUENCES = 1024  # prompts x n in one call
MAX_STOP_STRINGS = 64  # OpenAI allows 4
MAX_STOP_CHARS = 1000  # each; every generated token is compared with all of them
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024  # entries
MAX_MODEL_NAME_CHARS = 256
MAX_CACHE_SALT_CHARS = 256
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
MAX_PRIORITY = 2**31 - 1
