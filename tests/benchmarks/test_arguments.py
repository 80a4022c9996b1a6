"""Wrong numbers on the benchmarks' command lines are named, with their option, before anything starts."""

import pytest

from scripts.benchmarks import host_path, run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--levels", "0"], "--levels: must be a whole number from 1 on, got '0'"),
        (["--rounds", "many"], "--rounds: must be a whole number"),
        (["--scale", "nan"], "--scale: must be a number above 0"),
        (["--scale=-1"], "--scale: must be a number above 0"),
        (["--ladder", "--rows", "99"], "--rows: invalid choice: 99"),
        (["--perf-analyzer-levels", "0"], "--perf-analyzer-levels: must be a whole number"),
    ],
)
def test_run(capsys, tmp_path, options, words):
    with pytest.raises(SystemExit):
        run.arguments(["--out", str(tmp_path / "report"), *options])
    assert words in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("option", ["concurrency", "rounds", "text", "audio", "frames", "text-responses-per-s"])
def test_host_path(capsys, monkeypatch, option):
    monkeypatch.setattr("sys.argv", ["host_path", f"--{option}", "0"])
    with pytest.raises(SystemExit):
        host_path.main()
    assert f"--{option}: must be a whole number from 1 on, got '0'" in capsys.readouterr().err


def test_good_numbers_pass(tmp_path):
    args = run.arguments(
        ["--out", str(tmp_path), "--levels", "1", "64", "--rounds", "3", "--scale", "0.5", "--rows", "6"]
    )
    assert (args.levels, args.rounds, args.scale, args.rows) == ([1, 64], 3, 0.5, [6])
