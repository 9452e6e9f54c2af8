"""A fleet under a real Prometheus: `python scripts/check_metrics.py target/debug/fedanchor`, with a Python that has flwr.

Needs the programs `prometheus` and `promtool` (Debian's package `prometheus`). Checks that Prometheus reads coordinator and
nodes while they work, that it accepts the alerts, and that alerts and dashboard name metrics that exist.
"""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from check_fleet import expect, wait_for
from fleet import LONGEST, NAMES, pictures, start_coordinator, start_flower, wait_for_socket
from harness import Federation, free_port, taken_down

MONITORING = pathlib.Path(__file__).resolve().parent.parent / "flower" / "monitoring"
METRIC = re.compile(r"\bfedanchor_[a-z_]+")


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return answer.read().decode()


def value(port: int, query: str) -> float | None:
    """The only value of a query to Prometheus."""
    found = json.loads(get(f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"))["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def start_prometheus(federation: Federation, targets: dict[str, list[str]]) -> int:
    port, folder = free_port(), federation.folder / "prometheus"
    folder.mkdir()
    shutil.copy(MONITORING / "alerts.yml", folder)
    jobs = [{"job_name": name, "static_configs": [{"targets": list_}]} for name, list_ in targets.items()]
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": ["alerts.yml"], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    federation.start("prometheus", [*command, f"--web.listen-address=127.0.0.1:{port}"])

    def is_ready() -> bool:
        try:
            return "Ready" in get(f"http://127.0.0.1:{port}/-/ready")
        except OSError:
            return False

    wait_for("Prometheus", is_ready, 60)
    return port


def main() -> None:
    program = str(pathlib.Path(sys.argv[1]).resolve())
    for tool in ("prometheus", "promtool"):
        if not shutil.which(tool):
            raise SystemExit(f"error: {tool} is missing: install it (on Debian: apt-get install prometheus)")
    checked = subprocess.run(["promtool", "check", "rules", MONITORING / "alerts.yml"], capture_output=True, text=True)
    expect(f"promtool accepts the alerts {checked.stderr}", checked.returncode == 0)
    with taken_down() as federation:
        pictures(program, federation.folder)
        ports = {name: free_port() for name in ("coordinator", *NAMES)}
        for name in NAMES:
            socket = federation.node_socket(name)
            command = [program, "--log-format", "json", "node", "--data", str(federation.folder / "all" / "unlabelled" / name)]
            command += ["--name", name, "--socket", str(socket), "--state", str(federation.folder / f"{name}-state")]
            wait_for_socket(socket, federation.start(f"node-{name}", [*command, "--metrics", str(ports[name])]))
        start_flower(federation, NAMES)
        of = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        nodes = [of[name] for name in NAMES]
        prometheus = start_prometheus(federation, {"fedanchor-coordinator": [of["coordinator"]], "fedanchor-node": nodes})
        log = federation.folder / "coordinator.jsonl"
        with log.open("wb") as file:
            more = ("--set", "rounds=500", "--metrics", str(ports["coordinator"]), "--log-format", "json")
            coordinator = start_coordinator(program, federation, federation.folder / "fleet", *more, log=file)
        federation.run()
        wait_for("two rounds in Prometheus", lambda: (value(prometheus, "fedanchor_round") or 0) >= 2)
        expect("Prometheus reads the coordinator and all nodes", value(prometheus, 'sum(up{job=~"fedanchor-.*"})') == 4)
        expect("all nodes are connected", value(prometheus, "fedanchor_nodes_connected") == len(NAMES))
        expect("all nodes have joined", value(prometheus, "sum(fedanchor_node_joined)") == len(NAMES))
        expect("nodes count what they do", (value(prometheus, "sum(fedanchor_node_training_seconds_total)") or 0) > 0)
        pages = [get(f"http://{address}/metrics") for address in of.values()]
        known = {name for page in pages for name in METRIC.findall(page)}
        for name in ("alerts.yml", "dashboard.json"):
            missing = set(METRIC.findall((MONITORING / name).read_text())) - known
            expect(f"{name} names metrics that exist {sorted(missing)}", not missing)
        rules = json.loads(get(f"http://127.0.0.1:{prometheus}/api/v1/rules"))["data"]["groups"][0]["rules"]
        expect(f"Prometheus evaluates {len(rules)} alerts", bool(rules) and all(rule["health"] == "ok" for rule in rules))
        firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
        expect(f"none of them fires {firing}", not firing)
        expect("the coordinator is alive", get(f"http://{of['coordinator']}/healthz") == "ok\n")
        coordinator.send_signal(signal.SIGINT)
        coordinator.wait(LONGEST)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        rounds = [line for line in lines if line["message"].startswith("round ")]
        expect(f"its log is {len(lines)} lines of JSON", len(rounds) >= 2 and all("timestamp" in line for line in lines))
        time.sleep(1)
    print("ok: all processes have ended")


if __name__ == "__main__":
    main()
