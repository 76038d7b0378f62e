"""The form of request that each endpoint accepts."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256

import msgspec

from intern.stores.tables.store import Store, json_array

_FORM_HOLDS = timedelta(days=7)
"""The time after which the form of an endpoint's requests is searched again: the server may take more by then."""


class RequestFormStore(Store):
    """Forms of requests in the database, as places of values, by address, model and structured output."""

    async def find_form(self, *endpoint: str) -> tuple[int, ...] | None:
        """Return the form that an endpoint took, if it is not old."""
        since = (self.clock.now() - _FORM_HOLDS).isoformat()
        row = await self.db.row(
            "select form from endpoint_forms where endpoint = ? and at > ?", (_hash_endpoint(endpoint), since)
        )
        return None if row is None else msgspec.json.decode(str(row[0]), type=tuple[int, ...])

    async def save_form(self, form: tuple[int, ...], *endpoint: str) -> None:
        """Replace the form of an endpoint."""
        await self.db.run(
            "insert into endpoint_forms (endpoint, form, at) values (?, ?, ?)"
            " on conflict (endpoint) do update set form = excluded.form, at = excluded.at",
            (_hash_endpoint(endpoint), json_array(form), self.now()),
        )


def _hash_endpoint(endpoint: tuple[str, ...]) -> str:
    """Return a hash: the query of an address may hold a secret."""
    return sha256(msgspec.json.encode(endpoint)).hexdigest()
