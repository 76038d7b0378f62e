"""The Kubernetes manifest: it can be read, its parts fit together, and it fits the program and the image."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from intern.settings.loading import load_settings

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "packaging" / "kubernetes.yaml"
KUBECTL = shutil.which("kubectl") or ""


def deployment() -> dict[str, Any]:
    yaml: Any = import_module("yaml")  # it has no types
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return found


def test_labels_volumes_and_probes_name_each_other() -> None:
    found = deployment()
    assert (found["apiVersion"], found["kind"]) == ("apps/v1", "Deployment")
    spec, template = found["spec"], found["spec"]["template"]
    assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    volumes = {each["name"] for each in template["spec"]["volumes"]}
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    ports = {each["name"] for each in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports


def test_it_fits_the_program_and_its_image() -> None:
    pod = deployment()["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environ = {each["name"]: each["value"] for each in container["env"]}
    file = environ.pop("INTERN_CONFIG")
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    assert str(Path(file).parent) in mounts
    settings = load_settings(environ={**environ, "INTERN__PAGE__TOKEN": "a-token-of-20-letters"})
    assert settings.hosting.enabled
    assert (settings.page.enabled, settings.page.port) == (True, container["ports"][0]["containerPort"])
    assert pod["terminationGracePeriodSeconds"] > 20
    image = (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {pod['securityContext']['runAsUser']}\n" in image
    [data] = re.findall(r"INTERN__DATA__DIR=(\S+)", image)
    assert data in mounts
    server = (ROOT / "intern/frontends/http/server.py").read_text(encoding="utf-8")
    for probe in ("livenessProbe", "readinessProbe"):
        assert f'"{container[probe]["httpGet"]["path"]}"' in server


@pytest.mark.rest
@pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")
def test_kubectl_reads_it() -> None:
    command = [KUBECTL, "set", "image", "--local", "-f", str(MANIFEST), "intern=other", "-o", "name"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "deployment.apps/intern")
