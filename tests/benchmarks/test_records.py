"""The figures of a run, on records whose answers are known."""

import pytest

from scripts.benchmarks.records import Playback, Record, playback, summarise


def record(started, first_text, packets, finished, **fields):
    return Record(started, first_text, packets, finished, **fields)


def test_metrics_of_one_request():
    metrics = record(10.0, 10.02, [(10.05, 0.32), (10.2, 2.0)], 11.16).metrics()
    assert metrics["ttft_ms"] == pytest.approx(20)
    assert metrics["ttfp_ms"] == pytest.approx(50)
    assert metrics["latency_ms"] == pytest.approx(1160)
    assert metrics["rtf"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ([], Playback(0, 0.0)),
        ([(5.0, 1.0), (5.9, 1.0), (6.5, 1.0)], Playback(0, 0.0)),
        ([(5.0, 1.0), (6.5, 1.0), (7.5, 1.0)], Playback(1, 0.5)),
        ([(5.0, 0.1), (5.2, 0.1), (5.5, 0.1)], Playback(2, 0.3)),
    ],
)
def test_a_player_runs_dry_when_a_packet_comes_after_the_sound_ended(packets, expected):
    got = playback(packets)
    assert got.under_runs == expected.under_runs and got.gap_s == pytest.approx(expected.gap_s)


def test_a_request_fails_by_error_missing_end_or_wrong_length():
    assert record(0, 0.1, [(0.2, 1.0)], 1.0).failure is None
    assert record(0, 0.1, [(0.2, 1.0)], 1.0, expected_audio_s=1.02).failure is None
    assert "asked for" in record(0, 0.1, [(0.2, 1.0)], 1.0, expected_audio_s=2.0).failure
    assert record(0, 0.1, [(0.2, 1.0)], None).failure == "no end"
    assert record(0, None, [], None, error="overloaded: full").failure == "overloaded: full"


def test_a_run_is_rated_over_its_wall_time_and_failures_count_for_nothing():
    records = [record(at, at + 0.1, [(at + 0.2, 4.0)], at + 1.0) for at in (0.0, 0.5, 1.0)]
    records.append(record(0.0, None, [], None, error="x"))
    row = summarise(records)
    assert (row["requests"], row["failures"], row["under_runs"]) == (4, 1, 0)
    assert row["requests_per_s"] == pytest.approx(1.5)
    assert row["audio_s_per_s"] == pytest.approx(6.0)
    assert row["ttfp_ms_mean"] == pytest.approx(200) and row["ttfp_ms_p99"] == pytest.approx(200)
    assert row["rtf_p50"] == pytest.approx(0.25)


def test_a_run_in_which_nothing_was_served_has_no_rates():
    assert summarise([record(0.0, None, [], None)]) == {"requests": 1, "failures": 1}
