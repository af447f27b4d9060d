"""The package store, over both journals."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Mapping

import pytest

from contextbus.actors.append import BlobsPut
from contextbus.runtime.connection import connect
from contextbus.runtime.embedded import Server
from contextbus.runtime.journal import Journal, Record, Refused, Unanswered
from contextbus.runtime.journal_jetstream import JetStreamJournal
from contextbus.runtime.journal_memory import MemoryJournal
from contextbus.runtime.package_store import CHUNK_BYTES, LONGEST_BLOB, PackageStore, name_command
from contextbus.runtime.streams import ensure
from contextbus_protocol import codec, subjects
from contextbus_protocol.digests import digest_bytes, is_digest

MINUTE = 60.0


@pytest.fixture(params=["memory", pytest.param("jetstream", marks=pytest.mark.broker)])
async def journal(request: pytest.FixtureRequest, tenant: str) -> AsyncGenerator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    server: Server = request.getfixturevalue("broker")
    async with connect(server.url, token=server.token, tenant=tenant) as connection:
        await ensure(connection, tenant)
        yield JetStreamJournal(connection)


@pytest.fixture
def store(journal: Journal, tenant: str) -> PackageStore:
    return PackageStore(journal, tenant)


def named(data: bytes) -> tuple[str, bytes]:
    return digest_bytes(data), data


async def commit(journal: Journal, tenant: str, run: str, command: str, data: bytes, expected: int = 0) -> None:
    subject = subjects.log(tenant, run, "run")
    await journal.append(subject, data, expected=expected, message_id=f"{run}{command}", command=name_command(command))


async def test_put_and_get(store: PackageStore) -> None:
    blobs = tuple(named(f"blob {i}".encode()) for i in range(20))
    assert await store.put("run", blobs, "c1") == BlobsPut()
    assert await store.get("run", (digest for digest, _ in blobs)) == blobs
    assert await store.get("another run", (blobs[0][0],)) == ()


async def test_already_there_is_success(store: PackageStore) -> None:
    blob = named(b"same")
    assert await store.put("run", (blob,), "c1") == BlobsPut()
    assert await store.put("run", (blob, blob), "c2") == BlobsPut()
    assert await store.get("run", (blob[0], blob[0])) == (blob,)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * CHUNK_BYTES + 5])
async def test_blobs_of_any_size(store: PackageStore, size: int) -> None:
    blob = named(bytes(i % 251 for i in range(1000)) * (size // 1000) + b"x" * (size % 1000))
    assert len(blob[1]) == size
    assert await store.put("run", (blob,), "c") == BlobsPut()
    assert await store.get("run", (blob[0],)) == (blob,)


async def test_no_message_is_longer_than_a_chunk(store: PackageStore, journal: Journal, tenant: str) -> None:
    blob = named(b"y" * (3 * CHUNK_BYTES))
    await store.put("run", (blob,), "c")
    held = await journal.subjects(subjects.blobs_of_run(tenant, "run"))
    assert isinstance(held, tuple)
    assert len(held) == 2  # three equal chunks are one blob, and the list
    for subject in held:
        data = await journal.get(subject)
        assert isinstance(data, bytes)
        assert len(data) <= CHUNK_BYTES


async def test_what_is_too_long_is_refused(store: PackageStore) -> None:
    assert isinstance(await store.put("run", (named(bytes(LONGEST_BLOB + 1)),), "c"), Refused)


async def test_missing_and_damaged_blobs_are_left_out(store: PackageStore, journal: Journal, tenant: str) -> None:
    good, damaged = named(b"good"), digest_bytes(b"what it should be")
    await store.put("run", (good,), "c")
    await journal.put(subjects.blob(tenant, "run", damaged), b"what it is", headers={})
    liar = digest_bytes(b"liar")
    await journal.put(
        subjects.blob(tenant, "run", liar), codec.encode_json({"chunks": [good[0]], "size": 4}), headers={}
    )
    lost = digest_bytes(b"lost")
    await journal.put(
        subjects.blob(tenant, "run", lost), codec.encode_json({"chunks": [damaged[:-1] + "0"], "size": 4}), headers={}
    )
    wanted = (digest_bytes(b"missing"), damaged, liar, lost, "sha256:>", "", good[0])
    assert await store.get("run", wanted) == (good,)


def test_digests() -> None:
    assert is_digest(digest_bytes(b""))
    assert not is_digest(digest_bytes(b"") + "\n")
    assert not is_digest("sha256:" + "A" * 64)


async def test_a_command_id_cannot_break_a_header(store: PackageStore, journal: Journal, tenant: str) -> None:
    blob = named(b"data")
    assert await store.put("run", (blob,), "a\r\nNats-Rollup: all\r\n ") == BlobsPut()
    record = await journal.last(subjects.blob(tenant, "run", blob[0]))
    assert isinstance(record, Record)
    assert record.command == "a=0D=0ANats-Rollup=3A=20all=0D=0A=20"


async def test_erase_run_takes_its_log_and_blobs_only(store: PackageStore, journal: Journal, tenant: str) -> None:
    blob = named(b"data")
    for run in ("run", "run2", "r n"):
        await store.put(run, (blob,), "c")
        await commit(journal, tenant, run, "c", b"{}")
    assert await store.erase_run("run") == 2
    assert await store.erase_run("r n") == 2
    assert await store.get("run", (blob[0],)) == ()
    assert await store.get("run2", (blob[0],)) == (blob,)
    assert await journal.last(subjects.log(tenant, "run", "run")) is None
    assert await journal.last(subjects.log(tenant, "run2", "run")) is not None
    assert await store.erase_run("run") == 0


async def test_sweep_erases_what_no_commit_names(store: PackageStore, journal: Journal, tenant: str) -> None:
    kept, cited, orphan = named(b"kept"), named(b"cited"), named(b"orphan")
    big, big_orphan = named(b"b" * (CHUNK_BYTES + 1)), named(b"o" * (CHUNK_BYTES + 1))
    await store.put("run", (kept,), "committed")
    await store.put("run", (cited, big, orphan, big_orphan), "given up")
    await store.put("other run", (orphan,), "committed")
    await commit(journal, tenant, "run", "committed", f'{{"blob":"{cited[0]}","package":"{big[0]}"}}'.encode())
    now = time.time()
    assert await store.sweep(now + 9 * MINUTE) == 0
    # The orphans of both runs; of the large one its two chunks and their list.
    assert await store.sweep(now + 11 * MINUTE) == 5
    every = (kept[0], cited[0], orphan[0], big[0], big_orphan[0])
    assert await store.get("run", every) == (kept, cited, big)
    assert await store.get("other run", (orphan[0],)) == ()
    assert await store.sweep(now + 11 * MINUTE) == 0


class _Silent(MemoryJournal):
    """A journal of which nothing is heard."""

    def put(self, subject: str, data: bytes, *, headers: Mapping[str, str]) -> Awaitable[bool | Refused | Unanswered]:
        async def silence() -> Unanswered:
            return Unanswered("timeout")

        del subject, data, headers
        return silence()

    async def get(self, subject: str) -> Unanswered:
        del subject
        return Unanswered("timeout")

    async def purge(self, subject: str) -> Unanswered:
        del subject
        return Unanswered("timeout")

    async def subjects(self, pattern: str) -> Unanswered:
        del pattern
        return Unanswered("timeout")


async def test_silence_is_no_success() -> None:
    store, silence = PackageStore(_Silent(), "t"), Unanswered("timeout")
    assert await store.put("run", (named(b"a"), named(b"b")), "c") == silence
    assert await store.put("run", (named(b"a" * (CHUNK_BYTES + 1)),), "c") == silence
    assert await store.get("run", (digest_bytes(b"a"),)) == silence
    assert await store.erase_run("run") == silence
    assert await store.sweep(0) == silence


@pytest.mark.rule("D.J.7")
async def test_a_blob_is_erased_with_its_chunks(store: PackageStore, journal: Journal, tenant: str) -> None:
    small, large = named(b"small"), named(b"a" * CHUNK_BYTES + b"b" * CHUNK_BYTES + b"c")
    await store.put("run", (small, large), "c1")
    await store.put("other", (large,), "c1")
    assert await store.erase("run", large[0]) == 4
    assert await store.erase("run", large[0]) == 0
    assert await journal.subjects(subjects.blobs_of_run(tenant, "run")) == (subjects.blob(tenant, "run", small[0]),)
    assert await store.erase("run", small[0]) == 1
    assert await store.get("other", (large[0],)) == (large,)


async def test_a_chunk_that_another_blob_has_too_is_not_erased(store: PackageStore) -> None:
    shared = b"a" * CHUNK_BYTES
    one, two = named(shared + b"one"), named(shared + b"two")
    await store.put("run", (one, two), "c1")
    assert await store.chunks_of("run", one[0]) == (digest_bytes(shared), digest_bytes(b"one"))
    assert await store.erase("run", one[0]) == 2
    assert await store.get("run", (one[0], two[0])) == (two,)


async def test_an_erasure_that_is_interrupted_can_be_repeated(tenant: str) -> None:
    class Tired(MemoryJournal):
        left = 1

        async def erase(self, subject: str, sequence: int) -> bool | Refused | Unanswered:
            self.left -= 1
            return await super().erase(subject, sequence) if self.left >= 0 else Unanswered("timeout")

    journal = Tired()
    store, large = PackageStore(journal, tenant), named(b"a" * CHUNK_BYTES + b"b")
    await store.put("run", (large,), "c1")
    assert await store.erase("run", large[0]) == Unanswered("timeout")
    journal.left = 10
    assert await store.erase("run", large[0]) == 2
    assert await journal.subjects(subjects.blobs_of_run(tenant, "run")) == ()
