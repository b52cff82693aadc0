"""A server of the discovery protocol (xDS) for rate limits: gRPC's own implementation and Envoy's own messages.

    ads_server.py HOST:PORT [--tls CA CERTIFICATE KEY]

Reads one JSON object a line from standard input, each the state of the world from then on:
    {"version": "2", "resources": [{"name": ..., "domain": ..., "descriptors": [...]}]}
"raw" instead of "resources" has the bytes of resources, in base64. "pad" adds a resource of so many bytes.
Writes one JSON object a line: first the port, then each request of a client. Ends when the input ends.
"""

import base64
import concurrent.futures
import json
import queue
import sys
import threading

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf import struct_pb2  # noqa: F401, its file is imported below

TYPE = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
PACKAGE = "ratelimit.config.ratelimit.v3"


def rate_limit_config():
    """The class of the message, as ratelimit/config/ratelimit/v3/rls_conf.proto has it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="rls_conf.proto", package=PACKAGE, syntax="proto3",
        dependency=["google/protobuf/struct.proto"])
    field = descriptor_pb2.FieldDescriptorProto
    units = file.enum_type.add(name="RateLimitUnit")
    for number, name in enumerate(
            ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK"]):
        units.value.add(name=name, number=number)

    def message(name, *fields):
        of = file.message_type.add(name=name)
        for number, (label, kind, key) in enumerate(fields, 1):
            label = field.LABEL_REPEATED if label == "repeated" else field.LABEL_OPTIONAL
            plain = {"string": field.TYPE_STRING, "bool": field.TYPE_BOOL, "uint32": field.TYPE_UINT32}
            if kind in plain:
                of.field.add(name=key, number=number, label=label, type=plain[kind])
            else:
                name_of = kind if kind.startswith(".") else f".{PACKAGE}.{kind}"
                is_enum = kind == "RateLimitUnit"
                of.field.add(
                    name=key, number=number, label=label, type_name=name_of,
                    type=field.TYPE_ENUM if is_enum else field.TYPE_MESSAGE)

    message("RateLimitConfig", ("", "string", "name"), ("", "string", "domain"),
            ("repeated", "RateLimitDescriptor", "descriptors"))
    message("RateLimitDescriptor", ("", "string", "key"), ("", "string", "value"),
            ("", "RateLimitPolicy", "rate_limit"), ("repeated", "RateLimitDescriptor", "descriptors"),
            ("", "bool", "shadow_mode"), ("", "bool", "detailed_metric"),
            ("", "bool", "quota_mode"), ("", ".google.protobuf.Struct", "metadata"))
    message("RateLimitPolicy", ("", "RateLimitUnit", "unit"), ("", "uint32", "requests_per_unit"),
            ("", "bool", "unlimited"), ("", "string", "name"),
            ("repeated", "RateLimitReplace", "replaces"))
    message("RateLimitReplace", ("", "string", "name"))
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.RateLimitConfig"))


class World:
    """The resources, and a number that changes with them."""

    def __init__(self):
        self.changed = threading.Condition()
        self.number, self.response = 0, None

    def set(self, response):
        with self.changed:
            self.number, self.response = self.number + 1, response
            self.changed.notify_all()


class Server(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    def __init__(self, world):
        self.world = world

    def StreamAggregatedResources(self, requests, context):
        first = queue.Queue()

        def read():
            try:
                for request in requests:
                    report(request, context)
                    first.put(request)
            except Exception:  # The stream has ended.
                pass
            with self.world.changed:
                first.put(None)
                self.world.changed.notify_all()

        threading.Thread(target=read, daemon=True).start()
        request = first.get()
        if request is None:
            return
        sent = 0
        with self.world.changed:
            response = self.world.response
            # As go-control-plane: a client that has this version gets the next one.
            if response is not None and response.version_info == request.version_info:
                sent = self.world.number
        while context.is_active():
            with self.world.changed:
                self.world.changed.wait_for(
                    lambda: self.world.number > sent or not context.is_active(), timeout=1)
                if self.world.number == sent or self.world.response is None:
                    continue
                sent, response = self.world.number, self.world.response
            yield discovery_pb2.DiscoveryResponse(
                version_info=response.version_info, resources=response.resources,
                type_url=response.type_url, nonce=f"nonce-{sent}")


def report(request, context):
    known = {"node": request.node.id, "version": request.version_info, "type": request.type_url,
             "nonce": request.response_nonce, "error": request.error_detail.message,
             "metadata": json_format.MessageToDict(request.node.metadata),
             "headers": {key: value for key, value in context.invocation_metadata()
                         if isinstance(value, str)}}
    print(json.dumps(known), flush=True)


def response_of(line, config):
    asked = json.loads(line)
    response = discovery_pb2.DiscoveryResponse(version_info=asked["version"], type_url=TYPE)
    for resource in asked.get("resources", []):
        message = json_format.ParseDict(resource, config())
        response.resources.add(type_url=TYPE, value=message.SerializeToString())
    for raw in asked.get("raw", []):
        response.resources.add(type_url=TYPE, value=base64.b64decode(raw))
    if "pad" in asked:
        message = config(name="pad", domain="x" * asked["pad"])
        response.resources.add(type_url=TYPE, value=message.SerializeToString())
    return response


def main(address, tls):
    config, world = rate_limit_config(), World()
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(16),
        # Two servers at one address would each get some connections.
        options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)])
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(Server(world), server)
    if tls:
        ca, certificate, key = (open(path, "rb").read() for path in tls)
        port = server.add_secure_port(address, grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=ca, require_client_auth=True))
    else:
        port = server.add_insecure_port(address)
    server.start()
    print(json.dumps({"port": port}), flush=True)
    for line in sys.stdin:
        world.set(response_of(line, config))
    server.stop(0)


if __name__ == "__main__":
    host, options = sys.argv[1], sys.argv[2:]
    main(host, options[1:] if options[:1] == ["--tls"] else None)
