"""Checks Kubernetes manifests without a cluster, strictly: an unknown field is a mistake.

    check.py VERSION FILE...     `-` reads standard input, as `helm template` writes it

Kinds of Kubernetes by the schemas of that version, custom resources by `fields.json`. Prints every mistake with the
file and the object, then the number of objects by kind; exit code 1 if there is a mistake. Values of charts, which are
not objects, are checked for templates of Pods.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import kubernetes_validate
import yaml

KINDS = json.loads((Path(__file__).parent / "fields.json").read_text())["kinds"]
TYPES = {"string": str, "boolean": bool, "number": (int, float), "map": dict}
# Annotations that hold JSON of the volumes and mounts that Istio adds to a proxy.
OF_PROXIES = {"sidecar.istio.io/userVolume", "sidecar.istio.io/userVolumeMount"}


class Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it, but a duplicate key is a mistake."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = [key for key, times in Counter(map(str, keys)).items() if times > 1]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key {twice[0]!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def of_fields(value, fields, path):
    """The mistakes in a value, by the notation of `fields.json`."""
    if isinstance(fields, list):
        return [] if value in fields else [f"{path}: {value!r} is none of {fields}"]
    if isinstance(fields, str):
        if fields == "any":
            return []
        is_right = isinstance(value, TYPES[fields]) and not (fields == "number" and isinstance(value, bool))
        is_right = is_right and (fields != "map" or all(isinstance(text, str) for text in value.values()))
        return [] if is_right else [f"{path}: {value!r} is not a {fields}"]
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is not an object"]
    known = {name.rstrip("!").removesuffix("[]"): (name, inner) for name, inner in fields.items()}
    found = [f"{path}.{name}: missing" for name, (spelled, _) in known.items() if spelled.endswith("!") and name not in value]
    for name, inner_value in value.items():
        if name not in known:
            found.append(f"{path}.{name}: unknown field; known: {', '.join(sorted(known))}")
            continue
        spelled, inner = known[name]
        if "[]" not in spelled:
            found += of_fields(inner_value, inner, f"{path}.{name}")
        elif not isinstance(inner_value, list):
            found.append(f"{path}.{name}: not a list")
        else:
            for index, item in enumerate(inner_value):
                found += of_fields(item, inner, f"{path}.{name}[{index}]")
    return found


def of_kubernetes(resource, version):
    try:
        kubernetes_validate.validate(resource, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path)) or 'the object'}: {error.message}"]
    except kubernetes_validate.SchemaNotFoundError as error:
        return [error.message]
    return []


def of_annotations(annotations):
    return [f"annotation {name}: {error}" for name in OF_PROXIES & annotations.keys() for error in of_json(annotations[name])]


def of_json(text):
    try:
        return [] if isinstance(json.loads(text), dict) else ["not a JSON object"]
    except ValueError as error:
        return [str(error)]


def of_object(resource, version):
    mistakes = []
    for field in ("apiVersion", "kind", "metadata"):
        if field not in resource:
            return [f"no {field}"]
    fields = KINDS.get(f"{resource['apiVersion']} {resource['kind']}")
    if fields is None:
        mistakes += of_kubernetes(resource, version)
    else:
        mistakes += [f"{name}: unknown field" for name in resource.keys() - {"apiVersion", "kind", "metadata", "spec"}]
        mistakes += of_fields(resource.get("spec", {}), fields, "spec")
    of_pods = resource.get("spec", {}).get("template", {})
    if isinstance(of_pods, dict):
        mistakes += of_annotations(of_pods.get("metadata", {}).get("annotations") or {})
    return mistakes


def of_values(values, version):
    """The mistakes in templates of Istio's injector, each as the Pod that it makes."""
    mistakes = []
    for name, text in values.get("sidecarInjectorWebhook", {}).get("templates", {}).items():
        template = yaml.load(text, Loader)
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "injected", **template.get("metadata", {})},
            "spec": {"containers": [{"name": "application"}], **template["spec"]},
        }
        mistakes += [f"template {name}: {mistake}" for mistake in of_object(pod, version)]
        mistakes += of_annotations(pod["metadata"].get("annotations", {}))
    return mistakes


def main():
    version, files = sys.argv[1], sys.argv[2:]
    kinds, failed = Counter(), False
    for file in files:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        for document in yaml.load_all(text, Loader):
            if document is None:
                continue
            is_object = "apiVersion" in document or "kind" in document
            name = f"{document.get('kind')} {document.get('metadata', {}).get('name')}" if is_object else "values"
            kinds[document.get("kind") if is_object else "values"] += 1
            for mistake in of_object(document, version) if is_object else of_values(document, version):
                failed = True
                print(f"{file}: {name}: {mistake}")
    print(" ".join(f"{kind}={count}" for kind, count in sorted(kinds.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
