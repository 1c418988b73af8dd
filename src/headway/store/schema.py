"""The tables, as steps from an empty file to the present version. A published step is never changed: add one.

`STRICT` tables refuse a value of the wrong type, so a defect cannot be stored. Bodies lie in a table of their own:
SQLite rewrites a whole row at each change, and a heartbeat must not rewrite a prompt of 10 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# "HDWY": tells our database from any other program's.
APPLICATION_ID = 0x48445759


@dataclass(frozen=True, slots=True)
class Step:
    """From one version to the next; `what` is for people who read the list."""

    what: str
    statements: tuple[str, ...]


STEPS: tuple[Step, ...] = (
    Step(
        "background jobs, files, batches and their items",
        (
            """CREATE TABLE jobs (
                seq INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                tenant TEXT NOT NULL,
                kind TEXT NOT NULL,
                endpoint TEXT NOT NULL,
                state TEXT NOT NULL,
                created_at_s REAL NOT NULL,
                not_before_s REAL NOT NULL,
                started_at_s REAL,
                finished_at_s REAL,
                tries INTEGER NOT NULL,
                max_tries INTEGER NOT NULL,
                claims INTEGER NOT NULL,
                owner TEXT,
                lease_until_s REAL,
                progress_tokens INTEGER NOT NULL,
                http_status INTEGER,
                meta TEXT NOT NULL
            ) STRICT""",
            "CREATE INDEX jobs_queued ON jobs (seq) WHERE state = 'queued'",
            "CREATE INDEX jobs_queued_of ON jobs (tenant, seq) WHERE state = 'queued'",
            "CREATE INDEX jobs_running ON jobs (lease_until_s) WHERE state = 'in_progress'",
            "CREATE INDEX jobs_finished ON jobs (finished_at_s) WHERE finished_at_s IS NOT NULL",
            "CREATE INDEX jobs_of ON jobs (tenant, seq)",
            """CREATE TABLE job_bodies (
                job INTEGER NOT NULL REFERENCES jobs (seq) ON DELETE CASCADE,
                part TEXT NOT NULL,
                body BLOB NOT NULL,
                PRIMARY KEY (job, part)
            ) STRICT""",
            """CREATE TABLE files (
                seq INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                tenant TEXT NOT NULL,
                filename TEXT NOT NULL,
                purpose TEXT NOT NULL,
                bytes INTEGER NOT NULL,
                sha256 TEXT NOT NULL,
                status TEXT NOT NULL,
                created_at_s REAL NOT NULL,
                expires_at_s REAL
            ) STRICT""",
            "CREATE INDEX files_of ON files (tenant, seq)",
            "CREATE INDEX files_expiring ON files (expires_at_s) WHERE expires_at_s IS NOT NULL",
            """CREATE TABLE batches (
                seq INTEGER PRIMARY KEY AUTOINCREMENT,
                id TEXT NOT NULL UNIQUE,
                tenant TEXT NOT NULL,
                endpoint TEXT NOT NULL,
                input_file_id TEXT NOT NULL,
                completion_window TEXT NOT NULL,
                state TEXT NOT NULL,
                model TEXT,
                output_file_id TEXT,
                error_file_id TEXT,
                errors TEXT NOT NULL,
                metadata TEXT NOT NULL,
                created_at_s REAL NOT NULL,
                expires_at_s REAL NOT NULL,
                in_progress_at_s REAL,
                finalizing_at_s REAL,
                cancelling_at_s REAL,
                completed_at_s REAL,
                failed_at_s REAL,
                expired_at_s REAL,
                cancelled_at_s REAL,
                ended_at_s REAL,
                total INTEGER NOT NULL,
                completed INTEGER NOT NULL,
                failed INTEGER NOT NULL,
                input_tokens INTEGER NOT NULL,
                cached_tokens INTEGER NOT NULL,
                output_tokens INTEGER NOT NULL
            ) STRICT""",
            "CREATE INDEX batches_of ON batches (tenant, seq)",
            "CREATE INDEX batches_unfinished ON batches (seq) WHERE ended_at_s IS NULL",
            "CREATE INDEX batches_ended ON batches (ended_at_s) WHERE ended_at_s IS NOT NULL",
            "CREATE INDEX batches_reading ON batches (input_file_id) WHERE ended_at_s IS NULL",
            """CREATE TABLE items (
                batch INTEGER NOT NULL,
                line INTEGER NOT NULL,
                custom_id TEXT NOT NULL,
                body_hash BLOB NOT NULL,
                state TEXT NOT NULL,
                tries INTEGER NOT NULL,
                error_class TEXT,
                error TEXT,
                input_tokens INTEGER,
                cached_tokens INTEGER,
                output_tokens INTEGER,
                queue_s REAL,
                prefill_s REAL,
                decode_s REAL,
                wall_s REAL,
                response_ref TEXT,
                finished_at_s REAL,
                PRIMARY KEY (batch, line)
            ) STRICT, WITHOUT ROWID""",
            "CREATE UNIQUE INDEX items_by_id ON items (batch, custom_id)",
            "CREATE INDEX items_missing ON items (batch, line) WHERE state = 'pending'",
            # Batches that are deleted, and whose items are being deleted piece by piece: a million at once would hold
            # up everybody.
            "CREATE TABLE items_left (batch INTEGER PRIMARY KEY) STRICT",
            # Where deleted things were in the order of creation: a client that deletes while it pages
            # names a deleted one as the place to go on from.
            """CREATE TABLE deleted (
                kind TEXT NOT NULL,
                id TEXT NOT NULL,
                tenant TEXT NOT NULL,
                seq INTEGER NOT NULL,
                deleted_at_s REAL NOT NULL,
                PRIMARY KEY (kind, id)
            ) STRICT, WITHOUT ROWID""",
            "CREATE INDEX deleted_when ON deleted (deleted_at_s)",
        ),
    ),
)


def upgrade(execute: Callable[[str], object], steps: Sequence[Step], current: int) -> None:
    """Carry out the steps after version `current`, within the caller's transaction: all or none."""
    for step in steps[current:]:
        for statement in step.statements:
            execute(statement)
    execute(f"PRAGMA application_id = {APPLICATION_ID}")
    execute(f"PRAGMA user_version = {len(steps)}")
