"""The bill of materials of a binary, as CycloneDX 1.5: the crates that are compiled into it, by cargo's own account.

It names what is linked, not what builds or tests. It has no time and no random number, so that equal inputs make equal
documents.
"""

import json
import subprocess
import tomllib
import uuid

# Of what a static binary has besides crates: the C library, by Debian's name for the files to link.
C_LIBRARIES = {"amd64": "libc6-dev", "arm64": "libc6-dev-arm64-cross"}


def bill(root, package, target, features=(), architecture=None):
    """The document for one package of the workspace on one target."""
    metadata = json.loads(cargo(root, "metadata", "--format-version", "1", "--filter-platform", target))
    compiled = tree(root, package, target, features)
    packages = {
        found["id"]: found for found in metadata["packages"] if (found["name"], found["version"]) in compiled
    }
    top = next(id for id, found in packages.items() if found["name"] == package and found["source"] is None)
    checksums = {
        (locked["name"], locked["version"]): locked.get("checksum")
        for locked in tomllib.loads((root / "Cargo.lock").read_text())["package"]
    }
    edges = {
        node["id"]: {needed["pkg"] for needed in node["deps"] if needed["pkg"] in packages}
        for node in metadata["resolve"]["nodes"] if node["id"] in packages
    }
    components = [component(packages[id], checksums) for id in edges if id != top]
    components.append(rust())
    components += c_library(architecture)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(packages[top], checksums), "type": "application"}},
        "components": sorted(components, key=lambda found: found["bom-ref"]),
        "dependencies": sorted(
            ({"ref": reference(packages[id]), "dependsOn": sorted(reference(packages[to]) for to in needs)} for id, needs in edges.items()),
            key=lambda found: found["ref"],
        ),
    }
    document["serialNumber"] = "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(document, sort_keys=True)))
    return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


def tree(root, package, target, features):
    """Name and version of each crate that is compiled into the package. Procedural macros run in the compiler, so neither
    they nor what they need are part of it."""
    options = ["--package", package, "--target", target, "--edges", "normal,no-proc-macro", "--prefix", "none"]
    options += ["--features", ",".join(features)] if features else []
    lines = cargo(root, "tree", "--format", "{p}", *options).splitlines()
    words = [line.split() for line in lines if line.strip()]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def cargo(root, command, *options):
    return subprocess.run(["cargo", command, "--locked", *options], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, checksums):
    found = {
        "type": "library", "bom-ref": reference(package), "purl": reference(package),
        "name": package["name"], "version": package["version"],
    }
    if package.get("license"):
        # Old crates separate alternatives by a slash.
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def rust():
    version = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    return {
        "type": "library", "bom-ref": f"rust-std@{version}", "name": "rust-std", "version": version,
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }


def c_library(architecture):
    """The C library of a static binary; none for a module."""
    if architecture is None:
        return []
    package = C_LIBRARIES[architecture]
    asked = subprocess.run(["dpkg-query", "--show", "--showformat=${Version}", package], capture_output=True, text=True)
    version = asked.stdout if asked.returncode == 0 else "unknown"
    purl = f"pkg:deb/debian/{package}@{version}"
    return [{
        "type": "library", "bom-ref": purl, "purl": purl, "name": "glibc", "version": version,
        "licenses": [{"expression": "LGPL-2.1-or-later"}],
    }]
