"""What every payload is made of."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, UnsetType

from runstone.core.events import AggregateType
from runstone.core.ids import Digest, Id

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A point in time, with its zone; RFC 3339 in UTC when stored."""

OptionalJson: TypeAlias = Raw | UnsetType
"""Any JSON value, exactly as written, or nothing at all: `null` is a value like any other."""

Name: TypeAlias = Annotated[str, Meta(max_length=100)]

ErrorCategory: TypeAlias = Literal[
    "APPLICATION", "CANCELLED", "DETERMINISM", "EXTERNAL", "INFRASTRUCTURE", "TIMEOUT", "VALIDATION"
]


class Payload(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The `event_data` of one type of event; the first line says when it is written."""

    EVENT_TYPE: ClassVar[str]
    AGGREGATE: ClassVar[AggregateType]
    VERSION: ClassVar[int] = 1


class ErrorInfo(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What went wrong, in the one form all parts share (§ENT-7)."""

    category: Annotated[ErrorCategory, Meta(description="Whose fault it is.")]
    code: Annotated[str, Meta(description="Stable and short, for programs.")]
    message: Annotated[str, Meta(description="For people.")]
    retryable: Annotated[bool, Meta(description="Whether trying again could help.")] = False


class ArtifactRef(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Points at something too large or too binary for the log."""

    uri: Annotated[str, Meta(description="Where it is: file, s3, gs, azure.")]
    kind: Annotated[str, Meta(description="What it is.")]
    sha256: Digest | None = None
    size_bytes: Annotated[int, Meta(ge=0)] | None = None
    expires_at: Moment | None = None


class EventRef(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Stands for a value that an earlier event holds already (§PAY-16)."""

    event: Annotated[Id, Meta(description="The event that holds it.")] = msgspec.field(name="$event")
    field: Annotated[str, Meta(description="The name it has in that event's data.")]
    sha256: Digest | None = None
    size: int | None = None
