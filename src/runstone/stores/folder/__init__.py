"""The folder store: `runs/<run_id>/events.ndjson` and `snapshot.json`, and no database (§PIP-1)."""

from runstone.stores.folder.store import FolderStore

__all__ = ["FolderStore"]
