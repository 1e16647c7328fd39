"""Fixtures of the pipeline's tests."""

from __future__ import annotations

import os

import pytest

from tests.integration.pipeline.press import Press


@pytest.fixture
def press() -> Press:
    return Press()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power: artifacts need no syncs."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
