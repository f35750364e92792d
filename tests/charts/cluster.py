"""As much of a Kubernetes API server as helm needs: objects are kept and given back, and nothing runs.

Jobs and pods have succeeded as soon as they are made, unless the test says that Jobs fail.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import yaml

# Group and version, plural, kind.
KNOWN = [
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    ("v1", "pods", "Pod"),
    ("v1", "secrets", "Secret"),
    ("v1", "serviceaccounts", "ServiceAccount"),
    ("v1", "services", "Service"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "replicasets", "ReplicaSet"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("batch/v1", "jobs", "Job"),
    ("networking.k8s.io/v1", "ingresses", "Ingress"),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    ("monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
]
NEW = [
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
]
OLD = [
    ("autoscaling/v2beta2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    ("policy/v1beta1", "poddisruptionbudgets", "PodDisruptionBudget"),
]

# What Kubernetes puts before Protobuf.
MAGIC = b"k8s\0"


def fields(data: bytes) -> list[tuple[int, bytes]]:
    """Numbers and contents of the members of a Protobuf message that have a length; numbers are left out."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            if data[at] < 0x80:
                return value, at + 1
            at, shift = at + 1, shift + 7

    found, at = [], 0
    while at < len(data):
        tag, at = varint(at)
        value, at = varint(at)
        if tag & 7 == 2:
            found.append((tag >> 3, data[at : at + value]))
            at += value
    return found


def parsed(body: bytes):
    """An object as helm sends it: JSON, YAML when it is applied, Protobuf when it is a Secret with a release."""
    if not body.startswith(MAGIC):
        return yaml.safe_load(body)

    def entries(message: bytes, number: int) -> dict[str, bytes]:
        pairs = [dict(fields(content)) for known, content in fields(message) if known == number]
        return {pair[1].decode(): pair.get(2, b"") for pair in pairs}

    message = dict(fields(body[len(MAGIC) :]))[2]
    metadata = dict(fields(message))[1]
    return {
        "metadata": {
            "name": dict(fields(metadata))[1].decode(),
            "labels": {key: value.decode() for key, value in entries(metadata, 11).items()},
        },
        "data": {key: base64.b64encode(value).decode() for key, value in entries(message, 2).items()},
        "type": dict(fields(message)).get(3, b"").decode(),
    }


class Cluster:
    """An API server on a free port of the loopback, with one namespace."""

    def __init__(self, namespace: str, minor: int = 33):
        self.namespace = namespace
        self.minor = minor
        self.known = KNOWN + (NEW if minor >= 25 else OLD)
        self.objects: dict[tuple[str, str], dict] = {}
        # Kind and name of all that was made, in order.
        self.made: list[tuple[str, str]] = []
        self.failing_jobs = False
        self.lock = threading.Lock()
        self.revision = 0
        self.put("ServiceAccount", "default", {})
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer leaves in one piece; in two, each would wait for the other side's timer.
            wbufsize = -1

            def log_message(self, *args):
                pass

            def answer(self, status: int, value: dict):
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                try:
                    self.end_headers()
                    self.wfile.write(body)
                except BrokenPipeError:
                    # Who watches leaves in the middle of an answer.
                    self.close_connection = True

            def handle_any(self):
                length = int(self.headers.get("content-length") or 0)
                sent = self.rfile.read(length)
                # Of a deletion come options, which change nothing here.
                body = parsed(sent) if sent and self.command != "DELETE" else None
                url = urlsplit(self.path)
                if url.path == "/openapi/v2":
                    # An empty document in Protobuf: nothing is known, so nothing is compared.
                    self.send_response(200)
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                with cluster.lock:
                    status, value = cluster.serve(self.command, url.path, query, body, self.headers)
                self.answer(status, value)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        return {"HELM_KUBEAPISERVER": f"http://127.0.0.1:{self.server.server_port}"}

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def put(self, kind: str, name: str, value: dict) -> dict:
        """Keeps an object, as its owner or the tests give it."""
        self.revision += 1
        value = copy.deepcopy(value)
        metadata = value.setdefault("metadata", {})
        metadata.update({"name": name, "namespace": self.namespace, "resourceVersion": str(self.revision)})
        metadata.setdefault("uid", str(uuid.uuid4()))
        version = next(version for version, _, known in self.known if known == kind)
        value.update({"apiVersion": version, "kind": kind})
        if kind == "Job":
            condition = "Failed" if self.failing_jobs else "Complete"
            value["status"] = {
                "succeeded": 0 if self.failing_jobs else 1,
                "conditions": [{"type": condition, "status": "True", "reason": "BackoffLimitExceeded"}],
            }
        if kind == "Pod":
            value["status"] = {"phase": "Succeeded"}
        self.objects[kind, name] = value
        return value

    def serve(self, method: str, path: str, query: dict, body, headers) -> tuple[int, dict]:
        if path == "/version":
            minor = str(self.minor)
            return 200, {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            versions = sorted({version for version, _, _ in self.known if "/" in version})
            groups = []
            for version in versions:
                one = {"groupVersion": version, "version": version.split("/")[1]}
                groups.append({"name": version.split("/")[0], "versions": [one], "preferredVersion": one})
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        for version, plural, kind in self.known:
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            if path == base:
                return 200, self.resources(version)
            inside = f"{base}/namespaces/{self.namespace}/{plural}"
            if path == inside:
                return self.of_kind(method, kind, version, query, body)
            if path.startswith(f"{inside}/"):
                return self.single(method, kind, path[len(inside) + 1 :], body, headers)
        return 404, self.missing(path)

    def resources(self, version: str) -> dict:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        return {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": [
                {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
                for known, plural, kind in self.known
                if known == version
            ],
        }

    def of_kind(self, method: str, kind: str, version: str, query: dict, body) -> tuple[int, dict]:
        if method == "POST":
            name = body["metadata"]["name"]
            if (kind, name) in self.objects:
                return 409, {"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409}
            if query.get("dryRun"):
                return 201, body
            self.made.append((kind, name))
            return 201, self.put(kind, name, body)
        if method != "GET":
            return 405, self.missing(kind)
        found = [one for (known, _), one in self.objects.items() if known == kind]
        wanted = [part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part]
        for key, value in wanted:
            found = [one for one in found if one["metadata"].get("labels", {}).get(key) == value]
        fields = query.get("fieldSelector", "")
        if fields.startswith("metadata.name="):
            found = [one for one in found if one["metadata"]["name"] == fields.split("=", 1)[1]]
        metadata = {"resourceVersion": str(self.revision)}
        return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": found}

    def single(self, method: str, kind: str, name: str, body, headers) -> tuple[int, dict]:
        name = name.split("/")[0]
        old = self.objects.get((kind, name))
        applies = headers.get("content-type", "").startswith("application/apply-patch")
        if old is None and not (method == "PATCH" and applies):
            return 404, self.missing(name)
        if method == "GET":
            return 200, old
        if method == "DELETE":
            del self.objects[kind, name]
            return 200, {"kind": "Status", "status": "Success"}
        if method == "PATCH" and not applies:
            body = merged(old, body)
        if old is None:
            self.made.append((kind, name))
        return (200 if old else 201), self.put(kind, name, body)

    @staticmethod
    def missing(what: str) -> dict:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": "NotFound",
            "message": f"{what} is not here",
            "code": 404,
        }


def merged(old, patch):
    """A JSON merge patch; good enough for strategic ones of what the tests change."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found
