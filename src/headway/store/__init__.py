"""Files, batches and background jobs on the disk, in SQLite: what must survive a restart.

A leaf: it knows nothing of HTTP, of the engine or of the core, and decides nothing. Time and ids are arguments.
"""

from headway.store.async_store import AsyncIncoming, AsyncStore
from headway.store.batches import Batch, BatchError, Batches
from headway.store.contents import MAX_FILE_BYTES, Contents, Incoming, Received
from headway.store.errors import (
    AlreadyExists,
    BadValue,
    Conflict,
    Corrupt,
    DiskFull,
    DuplicateItem,
    IllegalMove,
    InputChanged,
    InUse,
    LeaseLost,
    Locked,
    NotFound,
    StoreError,
    StoreFailed,
    TooLarge,
    Unwritable,
    WrongVersion,
)
from headway.store.files import Files, StoredFile
from headway.store.items import Item, ItemResult, Items, NewItem, Recorded
from headway.store.jobs import Claim, Job, Jobs
from headway.store.lifecycle import BATCH_MOVES, ITEM_MOVES, JOB_MOVES, BatchState, ItemState, JobState
from headway.store.paging import Page, Swept
from headway.store.store import Store

__all__ = [
    "BATCH_MOVES",
    "ITEM_MOVES",
    "JOB_MOVES",
    "MAX_FILE_BYTES",
    "AlreadyExists",
    "AsyncIncoming",
    "AsyncStore",
    "BadValue",
    "Batch",
    "BatchError",
    "BatchState",
    "Batches",
    "Claim",
    "Conflict",
    "Contents",
    "Corrupt",
    "DiskFull",
    "DuplicateItem",
    "Files",
    "IllegalMove",
    "InUse",
    "Incoming",
    "InputChanged",
    "Item",
    "ItemResult",
    "ItemState",
    "Items",
    "Job",
    "JobState",
    "Jobs",
    "LeaseLost",
    "Locked",
    "NewItem",
    "NotFound",
    "Page",
    "Received",
    "Recorded",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoredFile",
    "Swept",
    "TooLarge",
    "Unwritable",
    "WrongVersion",
]
