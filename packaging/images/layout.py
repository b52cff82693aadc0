"""OCI image layouts, made without a container runtime and equal to the byte for equal contents.

It knows blobs, layers, manifests and indexes as the OCI image specification 1.1 has them. It knows no image.
"""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class Entry:
    """One file of a layer: a directory if it has neither contents nor a target."""

    path: str
    content: bytes | None = None
    target: str | None = None
    mode: int = 0o755
    owner: int = 0


def tar(entries):
    """The entries as a tar archive, in the order of their paths, without times and names of this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in sorted(entries, key=lambda entry: entry.path):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.owner, entry.owner, 0
            if entry.content is not None:
                info.size = len(entry.content)
                archive.addfile(info, io.BytesIO(entry.content))
                continue
            info.type = tarfile.SYMTYPE if entry.target else tarfile.DIRTYPE
            info.linkname = entry.target or ""
            archive.addfile(info)
    return buffer.getvalue()


def encoded(document):
    """JSON with one spelling for one document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


@dataclass
class Layout:
    """A layout in memory: its blobs, and the manifests that its index names."""

    blobs: dict = field(default_factory=dict)
    manifests: list = field(default_factory=list)

    def blob(self, content, media_type, **more):
        """Adds a blob, and returns its descriptor."""
        self.blobs[digest(content)] = content
        return {"mediaType": media_type, "digest": digest(content), "size": len(content), **more}

    def layer(self, entries):
        """Adds a compressed layer. Its descriptor, and the digest of what it unpacks to."""
        plain = tar(entries)
        return self.blob(gzip.compress(plain, 9, mtime=0), LAYER), digest(plain)

    def manifest(self, config, layers, annotations, **more):
        """Adds a manifest, and returns its descriptor."""
        document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers, "annotations": annotations}
        return self.blob(encoded(document), MANIFEST, **more)

    def index(self, manifests, annotations):
        """Adds an index over manifests of several platforms, and returns its descriptor."""
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations}
        return self.blob(encoded(document), INDEX)

    def tagged(self, descriptor, name, tag):
        """Names an image of the layout: the tag for registries and skopeo, the full name for `docker load`."""
        annotations = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"docker.io/library/{name}:{tag}"}
        self.manifests.append({**descriptor, "annotations": annotations})

    def files(self):
        """The layout's files by their paths."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests}
        found = {"oci-layout": encoded({"imageLayoutVersion": "1.0.0"}), "index.json": encoded(index)}
        for name, content in self.blobs.items():
            found["blobs/" + name.replace(":", "/")] = content
        return found

    def write(self, archive):
        """Writes the layout as one archive, whole or not at all."""
        entries = [Entry("blobs"), Entry("blobs/sha256")]
        entries += [Entry(path, content, mode=0o644) for path, content in self.files().items()]
        archive = Path(archive)
        whole = archive.with_name(archive.name + ".new")
        whole.write_bytes(tar(entries))
        whole.replace(archive)
