"""What is in `deploy/`: it is valid where something here can tell, safe by default, and its commands exist."""

from __future__ import annotations

import configparser
import copy
import json
import re
import runpy
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from postroom import Consumer
from postroom.cli.app import app
from postroom.settings import ENVIRONMENT
from postroom.telemetry.health import Health
from postroom.telemetry.probes import pages, prometheus_page
from tests.services.packages import require_programs
from tests.services.service import Unavailable

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
MANIFESTS = [path for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if path.stem != "kustomization"]
CHART = DEPLOY / "helm" / "postroom"
DRAIN = 30
"""Seconds that a process may need to finish what is in flight; what stops it by force must wait longer."""
EVERYTHING = {
    "image": {"tag": "1.2"},
    "imagePullSecrets": [{"name": "pull"}],
    "serviceAccount": {"annotations": {"a": "b"}},
    "relay": {
        "args": ["--app", "shop:saga", "--batch", "500"],
        "env": {"A": "1", "B": 'say "hello"'},
        "podAnnotations": {"x": "y"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "consumers": [
        {"name": "billing", "app": "shop.billing:consumer", "image": "shop:1", "replicas": 3, "env": {"C": "d"}},
        {"name": "mail", "app": "shop:mail", "args": ["--log-level", "debug"], "resources": {"limits": {"cpu": "1"}}},
    ],
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}


# The commands


def check_command(words: list[str]) -> None:
    """Parse the command line as `postroom` would; unknown commands and options, and wrong values, raise."""
    command: Any = typer.main.get_group(app())
    [name, *arguments] = words
    command.commands[name].make_context(name, list(arguments))


def unit_commands() -> list[list[str]]:
    started = [line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    commands = [shlex.split(line.removeprefix("ExecStart=/opt/postroom/bin/postroom")) for line in started]
    numbers = {"%i": "9090", "${CONSUMER_PORT}": "9100"}
    return [[numbers.get(word, word) for word in words] for words in commands]


def test_every_command_in_units_containers_and_manifests_exists() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
    commands = [
        *unit_commands(),
        *(service["command"] for service in compose.values() if service.get("image") == "postroom"),
        *(container["args"] for path in MANIFESTS for one in manifests(path) for container in containers(one)),
        *(container["args"] for one in rendered(EVERYTHING) for container in containers(one)),
        *(json.loads(found) for found in re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)),
    ]
    assert {words[0] for words in commands} == {"relay", "consume", "init", "cleanup", "dashboard"}
    for words in commands:
        check_command(words)


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for wrong in (["relay", "--http-prot", "1"], ["relay", "--http-port", "many"], ["consume"]):
        with pytest.raises(Exception, match=r"(?i)no such option|valid integer|missing"):
            check_command(wrong)


def test_every_setting_in_them_exists() -> None:
    known = {variable for variables in ENVIRONMENT.values() for variable in variables} | {"POSTROOM_DASHBOARD_TOKEN"}
    for path in (path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix not in {".md", ".json"}):
        for variable in re.findall(r"\bPOSTROOM_[A-Z_]+\b", path.read_text()):
            assert variable.removesuffix("_FILE") in known, f"{path.name}: {variable}"


# systemd


def test_systemd_takes_the_units_as_they_are(tmp_path: Path) -> None:
    try:
        analyze = require_programs("systemd-analyze", packages=["systemd"])["systemd-analyze"]
    except Unavailable as reason:
        pytest.skip(f"NOT TESTED: systemd-analyze: {reason}")
    program = Path(sysconfig.get_path("scripts")) / "postroom"
    names = []
    for unit in UNITS:
        name = unit.name.replace("@.", "@9090.")
        (tmp_path / name).write_text(unit.read_text().replace("/opt/postroom/bin/postroom", str(program)))
        names.append(tmp_path / name)
    ended = subprocess.run([analyze, "verify", "--man=no", *names], capture_output=True, text=True, check=False)
    ours = [line for line in ended.stderr.splitlines() if "postroom" in line]
    assert (ended.returncode, ours) == (0, []), ended.stderr
    names[0].write_text(names[0].read_text().replace("NoNewPrivileges", "NoNewPriviledges"))
    ended = subprocess.run([analyze, "verify", "--man=no", names[0]], capture_output=True, text=True, check=False)
    assert "NoNewPriviledges" in ended.stderr, "a misspelt option is noticed"


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_a_unit_gives_up_what_it_does_not_need_and_stops_gracefully(unit: Path) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    parsed.read_string(unit.read_text())
    service = parsed["Service"]
    for option in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictSUIDSGID"):
        assert service[option] == "yes", option
    assert service["ProtectSystem"] == "strict"
    assert service["KillSignal"] == "SIGTERM"
    if service["Type"] != "oneshot":
        assert int(service["TimeoutStopSec"]) > DRAIN
        assert service["Restart"] == "on-failure"
        assert "WantedBy" in parsed["Install"]
    assert "://" not in service.get("Environment", ""), "URLs hold passwords"


# Docker


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    dockerfile = DEPLOY / "docker" / "Dockerfile"
    ended = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    wrong = dockerfile.read_text().replace('ENTRYPOINT ["postroom"]', "ENTRYPOINT postroom")
    ended = subprocess.run([hadolint, "-"], input=wrong, capture_output=True, text=True, check=False)
    assert "DL3025" in ended.stdout


def test_the_image_runs_without_root_and_says_whether_it_lives() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert stages == ["${BASE}", "${BASE}"]
    last = text[text.rindex("\nFROM") :]
    for instruction in ("USER 10001:10001", "STOPSIGNAL SIGTERM", "HEALTHCHECK", 'ENTRYPOINT ["postroom"]'):
        assert f"\n{instruction}" in last
    assert "\nRUN " not in last, "the last stage only takes what was built"
    for name in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for path in name.split():
            assert (DEPLOY.parent / path).exists(), path
            assert f"!{path}" in (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text()


def test_the_compose_file_starts_what_depends_on_each_other_in_order() -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"db", "nats", "init", "relay", "consumer", "dashboard"}
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[other]
        for volume in service.get("volumes", ()):
            place = volume.partition(":")[0]
            assert place in compose["volumes"] or (DEPLOY / "docker" / place).is_dir()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "not for the whole network"
        if service["image"] == "postroom":
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
            assert int(service["stop_grace_period"].removesuffix("s")) > DRAIN
            if name != "init":
                assert service["depends_on"]["init"]["condition"] == "service_completed_successfully"
    place = (services["init"]["build"]["context"], services["init"]["build"]["dockerfile"])
    assert (DEPLOY / "docker" / Path(*place)).is_file()


def test_the_example_that_the_compose_file_runs_is_a_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["consumer"]
    for name, value in compose["environment"].items():
        monkeypatch.setenv(name, value)
    module, _, name = compose["command"][-1].partition(":")
    found = runpy.run_path(str(DEPLOY / "docker" / "app" / f"{module}.py"))
    assert isinstance(found[name], Consumer)


# Kubernetes


def manifests(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def containers(one: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one["spec"]["template"]["spec"]["containers"] if one["kind"] in RUNNING else []
    return found


RUNNING = {"Deployment", "Job"}
OF_OTHERS = {"PodMonitor"}
"""Kinds that Kubernetes does not know by itself."""


def test_kubernetes_takes_the_manifests() -> None:
    everything = [one for path in MANIFESTS for one in manifests(path)]
    listed = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [path.name for path in MANIFESTS]
    check(everything)
    wrong = copy.deepcopy(everything)
    next(iter(containers(one) for one in wrong if containers(one)))[0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(wrong)


@pytest.mark.parametrize("given", [{}, EVERYTHING], ids=["as it comes", "all that can be set"])
def test_kubernetes_takes_what_the_chart_renders(given: dict[str, Any]) -> None:
    found = rendered(given)
    check(found)
    kinds = sorted(one["kind"] for one in found)
    if not given:
        assert kinds == ["ConfigMap", "Deployment", "Job", "PodDisruptionBudget", "ServiceAccount"]
        return
    assert kinds.count("Deployment") == 4
    assert set(kinds) >= {"NetworkPolicy", "PodMonitor", "Service"}
    [relay] = [one for one in found if one["kind"] == "Deployment" and one["metadata"]["name"] == "shop-relay"]
    [container] = containers(relay)
    assert container["args"] == ["relay", "--app", "shop:saga", "--batch", "500"]
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": 'say "hello"'}]
    assert container["image"] == "postroom:1.2"


def check(everything: list[dict[str, Any]]) -> None:
    """Each is valid, restricted and stops gracefully; what selects pods finds some."""
    pods = [one["spec"]["template"]["metadata"]["labels"].items() for one in everything if one["kind"] in RUNNING]
    for one in everything:
        if one["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(one, "1.31", strict=True)
        if one["kind"] in {"PodDisruptionBudget", "Service", "Deployment"}:
            selector = one["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert sum(wanted <= labels for labels in pods) == 1, one["metadata"]["name"]
        for container in containers(one):
            check_container(one, container)


def check_container(one: dict[str, Any], container: dict[str, Any]) -> None:
    pod = one["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]
    if container["args"][0] in {"relay", "consume"}:
        assert pod["terminationGracePeriodSeconds"] > DRAIN
        served = pages(Health(), prometheus_page)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["path"] in served
            assert ports[asked["port"]] == 9090


# Helm


def rendered(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What the chart makes of these values."""
    return [one for one in yaml.safe_load_all(helm("template", "shop", CHART, given=given)) if one]


def helm(*words: str | Path, given: dict[str, Any]) -> str:
    """What `helm` prints; it gets the values as JSON, which is YAML too. Raises if it refuses."""
    program = Path(sysconfig.get_path("scripts")) / "helm"
    return subprocess.run(
        [program, *words, "--values", "-"], input=json.dumps(given), capture_output=True, text=True, check=True
    ).stdout


def test_the_charts_values_have_a_schema_that_refuses_what_it_does_not_know() -> None:
    for good in ({}, EVERYTHING):
        assert "0 chart(s) failed" in helm("lint", CHART, given=good)
    bad: dict[str, Any]
    for bad in ({"relay": {"replica": 2}}, {"consumers": [{"name": "x"}]}, {"config": {"A": 1}}, {"relays": {}}):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            helm("template", "shop", CHART, given=bad)
        assert "don't meet the specifications of the schema" in refused.value.stderr


# OpenTelemetry


def test_the_collectors_pipelines_are_made_of_parts_that_are_declared() -> None:
    collector = yaml.safe_load((DEPLOY / "opentelemetry" / "collector.yaml").read_text())
    assert set(collector) == {"receivers", "processors", "exporters", "extensions", "service"}
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in collector["service"]["pipelines"].values():
        for part, names in pipeline.items():
            used[part] |= set(names)
        assert pipeline["processors"][0] == "memory_limiter"
    assert used == {part: set(collector[part]) for part in used}
    assert collector["service"]["extensions"] == list(collector["extensions"])
