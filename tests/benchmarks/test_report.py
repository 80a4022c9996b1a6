"""Reports: tables, agreement, ladder configurations."""

import csv
import json

import pytest
import yaml

from python_backends.config.deploy import load_deploy_config
from scripts.bench.table import cell
from scripts.benchmarks import ladder, machine, report
from scripts.benchmarks.records import Record, summarise


@pytest.fixture
def results():
    figures = summarise([Record(0.0, 0.1, [(0.2, 4.0)], 1.0)])
    rows = [{"row": "batch", "driver": driver, "concurrency": 1} | figures for driver in ("own", "perf_analyzer")]
    rows[1]["ttfp_ms_mean"] = 210.0
    timeline = {"id": "0123456789", "concurrency": 1, "packets": [(200.0, 4.0)]}
    timeline["timings_ms"] = {"opened": 1.0, "first_text": 100.0, "first_audio": 200.0, "thinker_done": 500.0}
    facts = {"date": "d", "command": "c", "machine": machine.facts(), "workload": "w", "ladder": True}
    return facts | {"rows": rows, "timeline": timeline}


def test_a_report_has_its_tables_and_can_be_made_again_from_its_json(results, tmp_path):
    report.write(tmp_path, results)
    text = (tmp_path / "report.md").read_text()
    assert "| batch | own | 1 | 1 | 0 |" in text and "+5.0 %" in text and "5884" in text
    assert all(f"![{name}]({name}.png)" in text for name in results["plots"])
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in results["plots"])
    with (tmp_path / "results.csv").open() as file:
        assert [row["driver"] for row in csv.DictReader(file)] == ["own", "perf_analyzer"]
    again = json.loads((tmp_path / "results.json").read_text())
    assert report.markdown(again) == text


def test_cells_are_short():
    assert [cell(value) for value in (None, 0.12345, 12.345, 1234.5, 640, "x")] == [
        "-", "0.123", "12.3", "1234", "640", "x",
    ]  # fmt: skip


def test_every_row_of_the_ladder_is_a_valid_configuration(tmp_path):
    switches = []
    for at, row in enumerate(ladder.LADDER):
        path = tmp_path / f"{at}.yaml"
        path.write_text(yaml.safe_dump(ladder.deploy_yaml("cpu", row, "dummy")))
        config = load_deploy_config(path)
        assert all("dummy" in str(replica.options) for item in config.replicas.values() for replica in item)
        schedule = ("auto" if config.adaptive_first_chunk else config.schedule.initial, config.schedule.steady)
        keys = config.keys
        switches.append(
            (keys.cuda_graphs, keys.async_chunk, keys.async_output, len(config.replicas["talker"]), schedule)
        )
    assert switches == [
        (False, False, False, 1, (4, 0)),
        (True, False, False, 1, (4, 0)),
        (True, True, False, 1, (4, 25)),
        (True, True, True, 1, (4, 25)),
        (True, True, True, 2, (4, 25)),
        (True, True, True, 1, (1, 25)),
        (True, True, True, 1, ("auto", 25)),
    ]


def test_overrides_win_over_the_row():
    over = {"stages": [{"stage_id": 1, "max_num_seqs": 8}], "cuda_graphs": False}
    config = ladder.deploy_yaml("two_gpus", ladder.LADDER[3], None, over)
    assert config["cuda_graphs"] is False and config["stages"][1] == {"stage_id": 1, "max_num_seqs": 8}


def test_rows_can_be_chosen_and_a_machine_without_gpu_skips_the_graphs():
    assert [row.name for row in ladder.rows(False)] == ["as configured"]
    assert [row.name for row in ladder.rows(True, [0, 1, 2], has_gpu=False)] == ["batch", "+ async chunk"]
