"""Makes services.binpb, the FileDescriptorSet that server reflection answers with.

Usage: services.py FILE          writes it
       services.py --check FILE  exits with 1 unless FILE is what would be written

Run it with the packages of tests/clients/requirements.txt, which contain the published files, as in
.tools/clients/bin/python crates/servers/src/rls/reflection/services.py FILE

Keeps the methods that the server answers, the types that their messages refer to, and protobuf's own files
whole. Leaves out options (validation, languages), which would import twenty further files.
"""

import sys

from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import descriptor_pb2, text_format
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

METHODS = {"ShouldRateLimit", "Check", "Watch", "ServerReflectionInfo"}


def published():
    """The files of the services with all their imports, by name."""
    files = {}
    missing = [module.DESCRIPTOR for module in (rls_pb2, health_pb2, reflection_pb2)]
    while missing:
        file = missing.pop()
        files[file.name] = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
        missing.extend(file.dependencies)
    add_newer(files)
    return files


def add_newer(files):
    """What the server reads and xds-protos 1.85.0 lacks."""
    (descriptor,) = [
        message
        for message in files["envoy/extensions/common/ratelimit/v3/ratelimit.proto"].message_type
        if message.name == "RateLimitDescriptor"
    ]
    kind = descriptor_pb2.FieldDescriptorProto
    descriptor.field.add(name="is_negative_hits", number=4, label=kind.LABEL_OPTIONAL, type=kind.TYPE_BOOL)
    files["envoy/type/v3/ratelimit_unit.proto"].enum_type[0].value.add(name="WEEK", number=7)


def types(scope, holder, top="message_type"):
    """The messages and enums of a file or message, nested ones too, by the name that fields refer to."""
    names = {f"{scope}.{enum.name}": enum for enum in holder.enum_type}
    for message in getattr(holder, top):
        name = f"{scope}.{message.name}"
        names |= {name: message} | types(name, message, "nested_type")
    return names


def types_of(file):
    return types(f".{file.package}", file)


def references(types):
    """The names that the fields of messages refer to."""
    fields = [field for kind in types.values() for field in getattr(kind, "field", [])]
    return {field.type_name for field in fields if field.type_name}


def keep(items, is_kept):
    kept = [item for item in items if is_kept(item)]
    del items[:]
    items.extend(kept)


def strip(item):
    """Removes options and what is reserved, except what makes a message the entry of a map."""
    is_map_entry = isinstance(item, descriptor_pb2.DescriptorProto) and item.options.map_entry
    for part, value in item.ListFields():
        if part.name in ("options", "reserved_name", "reserved_range"):
            item.ClearField(part.name)
        elif part.message_type:
            for child in value:
                strip(child)
    if is_map_entry:
        item.options.map_entry = True


def served():
    files = published()
    home = {name: file.name for file in files.values() for name in types_of(file)}
    every = {name: kind for file in files.values() for name, kind in types_of(file).items()}
    used = {name for name in home if name.startswith(".google.protobuf.")}
    for file in files.values():
        strip(file)
        for service in file.service:
            keep(service.method, lambda method: method.name in METHODS)
            used |= {name for method in service.method for name in (method.input_type, method.output_type)}
    while more := references({name: every[name] for name in used}) - used:
        used |= more
    wanted = {home[name] for name in used if not name.startswith(".google.protobuf.")}
    for file in files.values():
        keep(file.message_type, lambda message: f".{file.package}.{message.name}" in used)
        keep(file.enum_type, lambda enum: f".{file.package}.{enum.name}" in used)
        imports = {home[name] for name in references(types_of(file))}
        if file.name in wanted:
            wanted |= imports
        keep(file.dependency, lambda name: name in imports)
    return [file for file in files.values() if file.name in wanted]


def services():
    text = text_format.MessageToString(descriptor_pb2.FileDescriptorSet(file=served()))
    # The Python packages have folders of their own.
    text = text.replace('"grpc_health/', '"grpc/health/').replace('"grpc_reflection/', '"grpc/reflection/')
    made = text_format.Parse(text, descriptor_pb2.FileDescriptorSet())
    # No package has v1 of reflection; it is v1alpha with another name.
    v1 = text_format.Parse(text.replace("v1alpha", "v1"), descriptor_pb2.FileDescriptorSet())
    made.file.extend(file for file in v1.file if file.package == "grpc.reflection.v1")
    made.file.sort(key=lambda file: file.name)
    return made


if __name__ == "__main__":
    *check, path = sys.argv[1:]
    made = services()
    if check:
        with open(path, "rb") as file:
            sys.exit(descriptor_pb2.FileDescriptorSet.FromString(file.read()) != made)
    with open(path, "wb") as file:
        file.write(made.SerializeToString(deterministic=True))
