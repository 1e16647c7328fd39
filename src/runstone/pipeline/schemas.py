"""JSON Schemas of artifacts: what an item writes is checked before anybody can read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runstone.core import codec
from runstone.errors import ArtifactInvalid, InvalidPayload, RegistrationError


def check_schema(schema: Mapping[str, Any], where: str) -> None:
    """Refuses a schema that is none, when it is declared."""
    validator = _validator()
    try:
        validator.check_schema(schema)
    except Exception as error:
        raise RegistrationError(f"The schema of {where} is no JSON Schema: {_first_line(error)}") from error


def check_content(name: str, content: bytes, schema: Mapping[str, Any], schema_id: str | None) -> None:
    """Refuses content that does not fit, and says where."""
    try:
        value = codec.parse(content)
    except InvalidPayload as error:
        raise ArtifactInvalid(f"Artifact {name!r} has a schema and is no JSON: {error}") from error
    errors = sorted(
        _validator()(schema).iter_errors(value), key=lambda error: (str(error.json_path), error.message)
    )
    if errors:
        pointer = "".join(f"/{part}" for part in errors[0].absolute_path)
        of = f" {schema_id}" if schema_id else ""
        raise ArtifactInvalid(
            f"Artifact {name!r} does not fit its schema{of} at {pointer or 'its root'}: {errors[0].message}"
        )


def _validator() -> Any:
    try:
        import jsonschema
    except ModuleNotFoundError as error:
        raise RegistrationError(
            "Artifacts with a schema need jsonschema: pip install 'runstone[pipeline]'"
        ) from error
    return jsonschema.Draft202012Validator


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
