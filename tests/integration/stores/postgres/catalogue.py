"""What a database's catalogue says of our schema, in lines that can be compared."""

from __future__ import annotations

from typing import Final

from tests.integration.stores.postgres.filled import Connection

_QUERIES: Final = {
    "column": """
        SELECT a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            a.attidentity, pg_get_expr(d.adbin, d.adrelid), a.attcollation::regcollation, a.attstorage
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'runstone'::regnamespace AND c.relkind IN ('r', 'v', 'c') AND a.attnum > 0
            AND NOT a.attisdropped""",
    "relation": """
        SELECT oid::regclass, relkind, relowner::regrole, relrowsecurity, relforcerowsecurity, reloptions,
            (SELECT array_agg(acl::text ORDER BY acl::text) FROM unnest(relacl) AS acl)
        FROM pg_class WHERE relnamespace = 'runstone'::regnamespace AND relkind IN ('r', 'v', 'S', 'c')""",
    "constraint": """
        SELECT conrelid::regclass, conname, contype, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'runstone'::regnamespace""",
    "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'runstone'",
    "trigger": """
        SELECT tgrelid::regclass, pg_get_triggerdef(t.oid), tgenabled
        FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE c.relnamespace = 'runstone'::regnamespace AND NOT tgisinternal""",
    "function": """
        SELECT pg_get_functiondef(oid), proowner::regrole,
            (SELECT array_agg(acl::text ORDER BY acl::text) FROM unnest(proacl) AS acl)
        FROM pg_proc WHERE pronamespace = 'runstone'::regnamespace""",
    "policy": """
        SELECT tablename, policyname, roles, cmd, qual, with_check
        FROM pg_policies WHERE schemaname = 'runstone'""",
    "view": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'runstone'",
    "schema": "SELECT nspowner::regrole, nspacl::text FROM pg_namespace WHERE nspname = 'runstone'",
}


async def catalogue(connection: Connection) -> list[str]:
    """Everything that the migrations have made."""
    found = {kind: await connection.fetch(query) for kind, query in _QUERIES.items()}
    return sorted(f"{kind}: {' | '.join(map(str, row))}" for kind, rows in found.items() for row in rows)
