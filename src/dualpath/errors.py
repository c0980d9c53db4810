"""The exception tree of the whole project.

::

    DualPathError
    ├── SettingsError            a setting or flag is wrong; names the key
    ├── InvalidRequest           the caller's fault; HTTP 400
    │   ├── PromptTooLong
    │   └── UnknownModel         HTTP 404
    ├── RequestFailed            an accepted turn ended without its tokens; carries the reason
    │   ├── DeadlineExceeded     HTTP 504
    │   └── Cancelled            HTTP 499
    ├── Overloaded               no capacity to accept; HTTP 503
    ├── ModelError               a directory that is no model, an architecture that is not supported
    ├── StorageError
    │   ├── StoreFormatError     written by another format version, or no store
    │   └── StoreInUse           another process owns the index of this store
    ├── TransportError           a region or a peer is gone
    ├── ClusterError             a process did not start or would not stop
    ├── UnknownEngine            an engine that never joined, or was given up, reports; it has to join again
    ├── ProtocolError            a message that cannot be decoded
    └── TraceError               a trace that cannot be replayed; names file and line
"""

from __future__ import annotations


class DualPathError(Exception):
    """Root of everything this project raises on purpose."""


class SettingsError(DualPathError):
    """A setting is wrong; the message names the key and the value."""


class InvalidRequest(DualPathError):
    """The caller sent something that can never be served."""


class PromptTooLong(InvalidRequest):
    """The prompt, or prompt and output together, exceed what the cluster can hold."""


class UnknownModel(InvalidRequest):
    """The request names a model that is not served here."""


class RequestFailed(DualPathError):
    """An accepted turn ended without all of its tokens."""


class DeadlineExceeded(RequestFailed):
    """A turn, or one of its remote waits, took longer than its deadline."""


class Cancelled(RequestFailed):
    """The caller gave the turn up."""


class Overloaded(DualPathError):
    """No capacity to accept more work now."""


class ModelError(DualPathError):
    """A directory that is no model, or a model that is not supported."""


class StorageError(DualPathError):
    """The store cannot be used."""


class StoreFormatError(StorageError):
    """The store was written by another format version, or is no store."""


class StoreInUse(StorageError):
    """Another process owns the index of this store."""


class TransportError(DualPathError):
    """A memory region or its owner is gone."""


class ClusterError(DualPathError):
    """A process of the cluster did not start, or died too often."""


class UnknownEngine(DualPathError):
    """Engines report that never joined or were given up; ``names`` are those that have to join again."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class ProtocolError(DualPathError):
    """A control message that cannot be decoded."""


class TraceError(DualPathError):
    """A trace that cannot be replayed; the message names file and line."""
