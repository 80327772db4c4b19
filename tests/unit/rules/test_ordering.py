"""Key hashes, lanes, waves, and what a failure takes along."""

from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.ordering import (
    LANES,
    NO_LANE,
    fair_share,
    key_hash,
    lane_of,
    lanes_to_release,
    least_share,
    places_by_key,
    waves,
)


class Parcel(NamedTuple):
    position: int
    key: str | None


def key_of(parcel: Parcel) -> str | None:
    return parcel.key


def parcels(keys: list[str | None]) -> list[Parcel]:
    return [Parcel(position, key) for position, key in enumerate(keys)]


batches = st.lists(st.sampled_from([None, "a", "b", "c"]), max_size=20).map(parcels)
texts = st.text(st.characters(exclude_categories=["Cs"]))


class TestKeys:
    @pytest.mark.parametrize(
        ("key", "md5_starts_with"),
        [
            ("", "d41d8cd98f00b204"),
            ("a", "0cc175b9c0f1b6a8"),
            ("abc", "900150983cd24fb0"),
            ("message digest", "f96b697d7cb7938d"),
            ("注文", "c4c7755ed33ffbb6"),
        ],
    )
    def test_the_hash_is_the_first_64_bits_of_the_md5_of_the_utf_8_form(self, key: str, md5_starts_with: str) -> None:
        assert key_hash(key) % 2**64 == int(md5_starts_with, 16)

    @given(texts)
    def test_the_hash_fits_a_signed_64_bit_column(self, key: str) -> None:
        assert -(2**63) <= key_hash(key) < 2**63

    @given(texts)
    def test_every_key_has_one_of_the_lanes(self, key: str) -> None:
        assert lane_of(key_hash(key)) in range(LANES)

    @given(st.integers(-(2**63), 2**63 - 1))
    def test_the_lane_is_the_same_for_the_signed_and_the_unsigned_hash(self, hashed: int) -> None:
        assert lane_of(hashed) == lane_of(hashed % 2**64) == hashed % LANES

    def test_keys_are_spread_over_all_lanes(self) -> None:
        counts = Counter(lane_of(key_hash(str(number))) for number in range(16_000))
        assert set(counts) == set(range(LANES))
        assert min(counts.values()) > 800

    def test_no_lane_is_none_of_the_lanes(self) -> None:
        assert NO_LANE == -1
        assert NO_LANE not in range(LANES)


def test_places_of_one_key_stay_together_in_order() -> None:
    assert places_by_key(["a", "b", None, "a", None, "b"]) == [[0, 3], [1, 5], [2], [4]]
    assert places_by_key([]) == []


class TestWaves:
    def test_nothing_makes_no_wave(self) -> None:
        assert waves([], key_of) == []

    def test_L_16_a_key_that_repeats_goes_in_the_next_wave(self) -> None:
        a1, b1, a2, loose, a3, b2 = batch = parcels(["a", "b", "a", None, "a", "b"])
        assert waves(batch, key_of) == [[a1, b1, loose], [a2, b2], [a3]]

    @given(batches)
    def test_nothing_is_lost_or_doubled(self, batch: list[Parcel]) -> None:
        sent = [parcel for wave in waves(batch, key_of) for parcel in wave]
        assert sorted(sent, key=lambda parcel: parcel.position) == batch

    @given(batches)
    def test_L_16_a_wave_holds_at_most_one_of_a_key(self, batch: list[Parcel]) -> None:
        for wave in waves(batch, key_of):
            keys = [parcel.key for parcel in wave if parcel.key is not None]
            assert len(keys) == len(set(keys))

    @given(batches)
    def test_L_16_the_order_inside_a_key_is_kept(self, batch: list[Parcel]) -> None:
        positions: dict[str | None, list[int]] = defaultdict(list)
        for wave in waves(batch, key_of):
            assert wave == sorted(wave, key=lambda parcel: parcel.position)
            for parcel in wave:
                positions[parcel.key].append(parcel.position)
        for of_key in positions.values():
            assert of_key == sorted(of_key)

    @given(batches)
    def test_there_are_as_few_waves_as_possible(self, batch: list[Parcel]) -> None:
        repeats = Counter(parcel.key for parcel in batch if parcel.key is not None)
        fewest = max([*repeats.values(), min(len(batch), 1)])
        assert len(waves(batch, key_of)) == fewest

    @given(batches)
    def test_without_a_key_everything_leaves_at_once(self, batch: list[Parcel]) -> None:
        for wave in waves(batch, key_of)[1:]:
            assert all(parcel.key is not None for parcel in wave)

    @given(batches, st.sets(st.integers(0, 19)))
    def test_L_16_sent_in_waves_with_failures_a_key_never_skips_one(
        self, batch: list[Parcel], failing: set[int]
    ) -> None:
        failed_keys: set[str | None] = set()
        confirmed: list[Parcel] = []
        for wave in waves(batch, key_of):
            for parcel in wave:
                if parcel.key in failed_keys - {None}:
                    continue
                if parcel.position in failing:
                    failed_keys.add(parcel.key)
                else:
                    confirmed.append(parcel)
        for key in ("a", "b", "c"):
            of_key = [parcel for parcel in batch if parcel.key == key]
            delivered = [parcel for parcel in confirmed if parcel.key == key]
            assert delivered == of_key[: len(delivered)]
        loose = [p for p in batch if p.key is None and p.position not in failing]
        assert [parcel for parcel in confirmed if parcel.key is None] == loose


class TestSharing:
    @pytest.mark.parametrize(("workers", "share"), [(0, LANES), (1, LANES), (3, 6), (LANES, 1), (2 * LANES, 1)])
    def test_all_lanes_are_held_by_someone(self, workers: int, share: int) -> None:
        assert fair_share(workers) == share
        assert share * max(1, workers) >= LANES

    @pytest.mark.parametrize(("workers", "least"), [(0, LANES), (1, LANES), (2, 8), (3, 4), (5, 0), (2 * LANES, 0)])
    def test_what_is_left_for_one_when_the_others_hold_their_share(self, workers: int, least: int) -> None:
        assert least_share(workers) == least

    def test_idle_lanes_are_released_before_busy_ones(self) -> None:
        assert lanes_to_release([1, 2, 3, 4], {1, 2}, 3) == [3]
        assert lanes_to_release([1, 2, 3, 4], {1, 2}, 1) == [3, 4, 1]
        assert lanes_to_release([1, 2], {1, 2}, 2) == []
        assert lanes_to_release([], set(), 2) == []
