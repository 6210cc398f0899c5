"""`carpool plan` from the outside: what it prints, and what it says of bad input."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from carpool.cli import app
from carpool.store.database import open_database
from carpool.store.lane import Lane
from carpool.store.usage_row import UsageRow
from carpool.store.usage_store import UsageStore

Run = Callable[..., Result]

CLASSES = {
    "meta-llama/Llama-3.1-8B-Instruct": "GQA",
    "codellama/CodeLlama-7b-hf": "MHA",
    "google/gemma-3-27b-it": "GQA + sliding window",
    "openai/gpt-oss-20b": "GQA + sliding window, MoE",
    "deepseek-ai/DeepSeek-V2-Lite": "MLA, MoE",
    "Qwen/Qwen3.6-27B": "GQA + recurrent state",
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["plan", *arguments], env={"CARPOOL_HOME": str(tmp_path)})

    return invoke


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    def write(**changes: object) -> Path:
        config = {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "max_position_embeddings": 131072,
        } | changes
        path = tmp_path / "config.json"
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return path

    return write


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_of_attention_is_planned(run: Run, name: str) -> None:
    result = run(name, "--gpu", "H200", "--people", "10", "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["fits"], plan["trouble"]
    assert plan["model"]["attention"] == CLASSES[name]
    at_context, at_full = plan["sequences"]["at_context"], plan["sequences"]["at_full"]
    assert at_full["value"] <= at_context["value"]
    assert at_context["low"] <= at_context["value"] <= at_context["high"]
    assert plan["capacity"]["kv_tokens"] > 0


def test_the_screen_has_bar_people_speed_and_a_command(run: Run) -> None:
    screen = run("llama-3.1-8b-instruct", "--gpu", "4090", "--people", "10").stdout
    for part in ("weights      ####", "10 people", "tokens/s", "vllm serve", "--max-num-seqs",
                 "8-bit KV cache", "Rent or buy"):  # fmt: skip
        assert part in screen


def test_a_config_is_enough(run: Run, write_config: Callable[..., Path]) -> None:
    plan = json.loads(run(str(write_config()), "--gpu", "4090", "--json").stdout)
    assert plan["model"]["weights_known"] == "published"
    assert plan["kv_cache"]["bytes_per_token"] == 131_072


def test_the_weights_of_a_gguf_are_measured(run: Run, write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(quantisation="Q8_0")
    result = run(str(path), "--gpu", "4090", "--context", "100", "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["model"]["weights_known"] == "measured"
    assert plan["engine"] == "llama.cpp"


def test_markdown_has_tables(run: Run) -> None:
    text = run("llama-3.1-8b-instruct", "--gpu", "4090", "--markdown").stdout
    assert text.startswith("# meta-llama")
    assert "| memory of one device | GiB | known |" in text


def test_a_plot_is_drawn(run: Run, tmp_path: Path) -> None:
    result = run("llama-3.1-8b-instruct", "--gpu", "4090", "--plot", str(tmp_path / "plan.svg"))
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_the_inverse_lists_devices_by_price(run: Run) -> None:
    rows = json.loads(run("qwen3-8b", "--for-people", "30", "--context", "16k", "--json").stdout)
    prices = [row["usd"] for row in rows]
    assert prices == sorted(prices)
    assert len(rows) > 3


def test_more_people_never_get_cheaper_devices(run: Run) -> None:
    def cheapest(people: int) -> float:
        return json.loads(run("qwen3-8b", "--for-people", str(people), "--json").stdout)[0]["usd"]

    assert cheapest(10) <= cheapest(300)


def test_what_does_not_fit_is_said_with_what_would(run: Run) -> None:
    screen = run("qwen3-32b", "--gpu", "4090").stdout
    assert "does not fit: the weights take 61.0 GiB" in screen
    assert "4-bit weights" in screen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen3-8c"], r"no model named 'qwen3-8c' (did you mean 'qwen/qwen3-8b'?)"),
        (["qwen3-8b", "--gpu", "H100"], "'H100 PCIe 80GB', 'H100 NVL 94GB', 'H100 SXM5 80GB'"),
        (["qwen3-8b", "--gpu", "RTX 9999"], "is not in the catalogue; nearest: RTX"),
        (["qwen3-8b", "--gpu", "4090", "--context", "x"], "--context is 'x'; write a number"),
        (["qwen3-8b", "--gpu", "4090", "--context", "0"], "--context is '0'"),
        (["qwen3-8b", "--gpu", "4090", "--people", "0"], "people is 0; it must be above 0"),
        (["qwen3-8b", "--gpu", "4090", "--gpus", "-1"], "--gpus is -1; it must be above 0"),
        (["qwen3-8b", "--gpu", "4090", "--max-model-len", "99k"], "made for 40,960 tokens"),
        (["qwen3-8b", "--gpu", "4090", "--weights", "q9"], "weight format 'q9' is not known"),
        (
            ["qwen3-8b", "--gpu", "4090", "--kv-cache-dtype", "z"],
            "no KV cache type 'z'; give one of auto",
        ),
        (
            ["qwen3-8b", "--gpu", "4090", "--kv-cache-dtype", "q8_0/q4_0"],
            "keeps keys and values in one type",
        ),
        (["qwen3-8b", "--gpu", "4090", "--engine", "z"], "engine 'z' is not known; give one of"),
        (["qwen3-8b", "--gpu", "4090", "--profile", "z"], "profile 'z' is not known; give one"),
        (["gpt-oss-20b", "--engine", "embedded"], "does not run 'gpt_oss'; it runs llama, mistral"),
        (["/nowhere/config.json"], "/nowhere/config.json: no such file or folder"),
        (["qwen3-8b", "--gpu-memory", "24GiB"], "--gpu-memory needs --gpu or --bandwidth"),
        (
            ["qwen3-8b", "--gpu", "4090", "--tensor-parallel", "2"],
            "takes 2 devices, and there is 1; give --gpus 2",
        ),
        (["qwen3-8b", "--gpu", "4090", "--plot", "x.doc"], "name a file with .png"),
        (["qwen3-8b", "--gpu", "4090", "--draft", "qwen3-9x"], "no model named 'qwen3-9x'"),
        (["qwen3-8b", "--gpu", "4090", "--host-offload", "much"], "no amount of memory"),
        (["qwen3-8b", "--gpu", "4090", "--context-spread", "-1"], "must not be below 0"),
        (["qwen3-8b", "--usage", "x.csv", "--from-ledger"], "exclude each other"),
    ],
)
def test_bad_input_is_named_with_what_would_do(
    run: Run, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba9"}, "architecture 'mamba9' (model_type) is not understood"),
        ({"num_hidden_layers": None}, "no field num_hidden_layers"),
        ({"vocab_size": -1}, "vocab_size is -1; it must be a positive integer"),
        ({"layer_types": ["wavelet"] * 32}, "layer type 'wavelet' is not understood"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_name(
    run: Run, write_config: Callable[..., Path], changes: dict[str, object], message: str
) -> None:
    path = write_config(**changes)
    result = run(str(path), "--gpu", "4090")
    assert result.exit_code == 2
    assert message in result.stderr
    assert str(path) in result.stderr


def test_contexts_that_differ_fill_a_cache_sooner(run: Run) -> None:
    plans = [
        json.loads(run("qwen3-8b", "--gpu", "4090", "--json", *more).stdout)
        for more in ([], ["--context-spread", "3000"])
    ]
    even, uneven = (plan["sequences"]["at_context"]["low"] for plan in plans)
    assert uneven < even


def test_the_ledger_takes_the_place_of_the_profile(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/carpool.db"
    now = time.time()
    rows = [usage_row(f"r{hour}", now - hour * 3600) for hour in range(1, 25 * 24, 3)]
    with closing(open_database(url)) as database:
        UsageStore(database).insert(rows)
    result = run("qwen3-8b", "--gpu", "4090", "--from-ledger", "--database", url, "--json")
    plan = json.loads(result.stdout)
    assert plan["profile"]["name"] == "ledger"
    assert plan["profile"]["prompt_tokens"] == 700
    assert plan["profile"]["sources"]["output_tokens"] == "measured: the ledger, 200 requests"
    assert plan["money"]["hours_per_month"] == pytest.approx(730 / 3, rel=0.01)
    assert plan["money"]["hours_known"] == "measured"


def test_a_ledger_without_requests_is_named(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/carpool.db"
    with closing(open_database(url)):
        pass
    result = run("qwen3-8b", "--gpu", "4090", "--from-ledger", "--database", url)
    assert result.exit_code == 2
    assert "the ledger has no requests since then; give a longer --since" in result.stderr


def usage_row(request_id: str, started_at: float) -> UsageRow:
    return UsageRow(
        request_id=request_id, started_at=started_at, person_id="ana", key_id="k", model="m",
        backend="b", api="chat", lane=Lane.INTERACTIVE, prompt_tokens=700, cached_tokens=350,
        output_tokens=100, usage_source="reported", queue_ms=0.0, ttft_ms=50.0, tpot_ms=9.0,
        total_ms=1000.0, outcome="ok", status=200, is_stream=True, is_fallback=False,
    )  # fmt: skip


def test_a_plan_takes_less_than_300_ms(write_config: Callable[..., Path]) -> None:
    program = f"""
import time
from carpool.cli import app, plan
from carpool.cli.plan import find_source
from carpool.hardware.device import find_device
from carpool.planning.choices import choices
from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import PlanRequest, make_plan
from carpool.planning.profile import PROFILES
from carpool.planning.settings import Settings
start = time.process_time()
request = PlanRequest(
    model=find_source({str(write_config())!r}), device=find_device("4090"), num_devices=1,
    settings=Settings(engine=EngineKind.VLLM), profile=PROFILES["chat"], num_people=10)
make_plan(request)
choices(request)
print(time.process_time() - start)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 0.3
