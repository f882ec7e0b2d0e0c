"""The vectorised hash table against a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from flux.operators import hash_table as module
from flux.operators.hash_table import HashTable

# Few different keys, so that they meet again; extremes, because slot 0 has the key 0 too.
KEYS = st.lists(st.tuples(st.sampled_from([0, 1, -1, 2**62, -(2**63)]), st.integers(-3, 3)), max_size=30)
PARTITIONS = 3


def partition_of(key: tuple[int, int]) -> int:
    return (key[0] ^ key[1]) % PARTITIONS


class TableLikeADict(RuleBasedStateMachine):
    """Any mixture of insertions, deletions and moves of partitions leaves what a dict would hold."""

    @initialize(width=st.sampled_from([np.int64, np.int8]))
    def make(self, width: Any) -> None:
        self.width = width
        self.table = self.fresh()
        self.model: dict[tuple[int, int], int] = {}
        self.clock = 0

    def fresh(self) -> HashTable:
        return HashTable([np.int64, self.width], {"value": np.int64})

    def columns(self, keys: list[tuple[int, int]]) -> list[Any]:
        return [np.array([k[0] for k in keys], np.int64), np.array([k[1] for k in keys], self.width)]

    def pids(self, keys: list[tuple[int, int]]) -> Any:
        return np.array([partition_of(key) for key in keys], np.uint16)

    @rule(keys=KEYS)
    def insert(self, keys: list[tuple[int, int]]) -> None:
        slots, new = self.table.find_or_insert(self.columns(keys), self.pids(keys))
        assert new.tolist() == [key not in self.model for key in keys]
        for slot, key in zip(slots.tolist(), keys, strict=True):
            self.clock += 1
            self.table.values["value"][slot] = self.model[key] = self.clock

    @rule(keys=KEYS)
    def delete(self, keys: list[tuple[int, int]]) -> None:
        slots = self.table.find(self.columns(keys), self.pids(keys))
        self.table.delete(slots[slots != 0])
        for key in keys:
            self.model.pop(key, None)

    @rule(keys=KEYS)
    def find(self, keys: list[tuple[int, int]]) -> None:
        slots = self.table.find(self.columns(keys), self.pids(keys))
        values = [int(self.table.values["value"][slot]) if slot else None for slot in slots.tolist()]
        assert values == [self.model.get(key) for key in keys]

    @rule(pid=st.integers(0, PARTITIONS - 1))
    def drop(self, pid: int) -> None:
        self.table.drop(pid)
        self.model = {key: value for key, value in self.model.items() if partition_of(key) != pid}

    @rule(pid=st.integers(0, PARTITIONS - 1))
    def move_away_and_back(self, pid: int) -> None:
        away = self.fresh()
        away.install(pid, self.table.get(pid))
        self.table.drop(pid)
        self.table.install(pid, away.get(pid))

    @invariant()
    def holds_the_keys_of_the_model(self) -> None:
        held: dict[Any, int] = {}
        for pid in range(PARTITIONS):
            state = self.table.get(pid)
            keys = zip(state["key0"].tolist(), state["key1"].tolist(), strict=True)
            of_pid = dict(zip(keys, state["value"].tolist(), strict=True))
            assert all(partition_of(key) == pid for key in of_pid)
            held |= of_pid
        assert held == self.model
        assert len(self.table) == len(self.model) == sum(self.table.sizes().values())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make growing and sweeping happen with a few keys."""
    monkeypatch.setattr(module, "_FIRST_SLOTS", 2)
    monkeypatch.setattr(module, "_FIRST_BUCKETS", 2)
    monkeypatch.setattr(module, "_SWEEP_FROM", 4)


# A subclass of the generated test, so that the fixture above applies to it.
class TestTableLikeADict(TableLikeADict.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_slots_stay_their_keys_own_while_the_table_grows(seed: int) -> None:
    draw = np.random.default_rng(seed)
    table = HashTable([np.int32, np.int32], {"count": np.int64})
    model: dict[tuple[int, int], int] = {}
    slot_of: dict[tuple[int, int], int] = {}
    for _ in range(10):
        src, dst = (draw.integers(-20, 20, 300).astype(np.int32) for _ in range(2))
        slots, new = table.find_or_insert([src, dst], np.zeros(300, np.uint16))
        table.values["count"][slots[new]] = 0
        np.add.at(table.values["count"], slots, 1)
        for key, slot in zip(zip(src.tolist(), dst.tolist(), strict=True), slots.tolist(), strict=True):
            model[key] = model.get(key, 0) + 1
            assert slot_of.setdefault(key, slot) == slot
    assert len(set(slot_of.values())) == len(slot_of) == len(table)
    assert all(table.values["count"][slot] == model[key] for key, slot in slot_of.items())


def test_a_key_that_comes_and_goes_takes_no_further_room() -> None:
    table = HashTable([np.int64], {})
    keys = [np.arange(100)]
    pids = np.zeros(100, np.uint16)
    for _ in range(50):
        slots, new = table.find_or_insert(keys, pids)
        assert new.all()
        table.delete(slots)
    assert len(table) == 0
    assert slots.max() <= 100


def test_keys_that_never_come_back_are_swept() -> None:
    table = HashTable([np.int64], {})
    for round_ in range(200):
        slots, _ = table.find_or_insert([np.arange(50) + 50 * round_], np.zeros(50, np.uint16))
        table.delete(slots)
    assert slots.max() <= 200


def test_swept_keys_stay_away_while_the_table_grows() -> None:
    table = HashTable([np.int64], {})
    pids = np.zeros(40, np.uint16)
    old = np.arange(40)
    table.delete(table.find_or_insert([old], pids)[0])
    # The first of these sweeps the old ones; the last makes the index grow while slots are free.
    for keys in (np.arange(100, 104), np.arange(104, 108), np.arange(108, 128)):
        table.find_or_insert([keys], pids[: len(keys)])
    assert not table.find([old], pids).any()
    slots, new = table.find_or_insert([old], pids)
    others = table.find([np.arange(100, 128)], pids[:28])
    assert new.all()
    assert not set(slots.tolist()) & set(others.tolist())
    further, _ = table.find_or_insert([np.arange(200, 240)], pids)
    assert not set(further.tolist()) & {*slots.tolist(), *others.tolist()}


def test_keys_of_the_same_home_bucket_are_told_apart() -> None:
    table = HashTable([np.uint8, np.float64, np.int16], {})
    draw = np.random.default_rng(1)
    columns: list[Any] = [
        draw.integers(0, 4, 500).astype(np.uint8),
        draw.random(500).round(1),
        draw.integers(0, 4, 500, np.int16),
    ]
    slots, _ = table.find_or_insert(columns, np.zeros(500, np.uint16))
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    assert len(set(slots.tolist())) == len(set(keys)) == len(set(zip(keys, slots.tolist(), strict=True)))


@settings(max_examples=50)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=20), max_size=6))
def test_equal_keys_of_two_partitions_are_two_keys(batches: list[list[tuple[int, int]]]) -> None:
    table = HashTable([np.int32], {})
    slot_of: dict[tuple[int, int], int] = {}
    for rows in batches:
        key, pid = np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows], np.uint16)
        slots, new = table.find_or_insert([key], pid)
        assert new.tolist() == [row not in slot_of for row in rows]
        for row, slot in zip(rows, slots.tolist(), strict=True):
            assert slot_of.setdefault(row, slot) == slot
        assert table.find([key], pid).tolist() == slots.tolist()
    assert len(set(slot_of.values())) == len(slot_of) == len(table)
    for pid_ in range(3):
        assert sorted(table.get(pid_)["key0"].tolist()) == sorted(k for k, p in slot_of if p == pid_)
