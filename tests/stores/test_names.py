"""Members' names are known until they are forgotten, and their number is bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.ids import UserId
from intern.stores.tables.members import NameStore
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

MIA, ANN, TOM = UserId("1"), UserId("2"), UserId("3")


async def test_names_are_known_over_all_starts_the_newest_first(tmp_path: Path) -> None:
    for _ in range(2):
        async with await open_database(tmp_path / "intern.db") as db:
            names = NameStore(db)
            await names.add([(MIA, ("Mia", "mia_")), (ANN, ("Ann\n Berg",)), (UserId(""), ("nobody",))])
            assert await names.read_names((MIA, ANN, TOM)) == {MIA: ("mia_", "Mia"), ANN: ("Ann Berg",)}


async def test_names_in_a_text_are_found_however_they_are_written(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        names = NameStore(db)
        await names.add([(MIA, ("Zoë",)), (ANN, ("J. R. Smith",)), (TOM, ("Tom", "\u200b", "to\0m"))])
        assert set(await names.find_in_text("ZOE met\0 J.R.\nSmith")) == {(MIA, "Zoë"), (ANN, "J. R. Smith")}
        assert await names.find_in_text("") == ()


async def test_an_id_or_nothing_at_all_is_no_name(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        names = NameStore(db)
        await names.add([(MIA, ("1", "", "\u200b")), (ANN, ())])
        assert await names.read_names((MIA, ANN)) == {}


async def test_who_is_forgotten_has_no_name_left(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        names = NameStore(db)
        await names.add([(MIA, ("mia_",)), (ANN, ("ann_",))])
        await names.forget_author(MIA)
        assert await names.read_names((MIA, ANN)) == {ANN: ("ann_",)}
        assert await names.find_in_text("mia_ and ann_") == ((ANN, "ann_"),)


async def test_the_oldest_names_go_first(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        names = NameStore(db)
        names.most = 12
        await names.add([(MIA, [f"mia {n}" for n in range(12)])])
        assert len((await names.read_names((MIA,)))[MIA]) == 10
        await names.add([(ANN, ("ann a", "ann b", "ann c"))])
        assert (await names.read_names((MIA,)))[MIA] == tuple(f"mia {n}" for n in range(11, 2, -1))
        assert len((await names.read_names((ANN,)))[ANN]) == 3
