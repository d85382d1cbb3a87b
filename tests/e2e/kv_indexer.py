"""The part of sgl-router that queries an external index: a channel of grpcio, messages of protobuf, hashes of SGLang.

Nothing here shares code with bridge/: the messages are declared for Google's protobuf, the hashes are computed with hashlib."""

import hashlib
import pathlib
import struct

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VECTORS = pathlib.Path(__file__).parents[1] / "data" / "vectors"
SERVICE = "/kv_indexer.v1.KVIndexer/"
MATCH = SERVICE + "MatchExternalKvPrefix"
FIELDS = {  # message: (name, number, type, repeated)
    "Request": [("hashes", 1, "SFIXED64", True), ("max_blocks", 2, "UINT32", False)],
    "Match": [("worker_address", 1, "STRING", False), ("matched_prefix_blocks", 2, "UINT32", False), ("worker_id", 3, "STRING", False)],
    "Response": [("matches", 1, "MESSAGE", True), ("best_prefix_blocks", 2, "UINT32", False), ("blocks_read", 3, "UINT32", False)],
}


def declare():
    file = descriptor_pb2.FileDescriptorProto(name="sgl.proto", package="sgl", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in FIELDS.items():
        row = file.message_type.add(name=message)
        for name, number, kind, is_repeated in fields:
            field = row.field.add(name=name, number=number, type=getattr(kinds, "TYPE_" + kind),
                                  label=kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL)
            if kind == "MESSAGE":
                field.type_name = ".sgl.Match"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName("sgl." + name)) for name in ("Request", "Response")]


Request, Response = declare()


def vector(name):
    lines = (VECTORS / "sgl-router-indexer.txt").read_text().splitlines()
    return bytes.fromhex(next(line for line in lines if line.startswith(name + " ")).split()[1])


def chain(tokens, block_size, extra_key=None):
    """SGLang's hash of each block, as the signed 64-bit number that it publishes."""
    head = b"" if extra_key is None else struct.pack("<I", len(extra_key.encode())) + extra_key.encode()
    hashes, before = [], b""
    for at in range(0, len(tokens), block_size):
        page = b"".join(struct.pack("<I", token) for token in tokens[at:at + block_size])
        before = hashlib.sha256(head + before + page).digest()
        hashes.append(int.from_bytes(before[:8], "big", signed=True))
    return hashes


class Router:
    """A channel as sgl-router has one."""

    def __init__(self, port, timeout=30.0, credentials=None):
        """credentials: of grpc.ssl_channel_credentials()."""
        options = [("grpc.max_send_message_length", 64 << 20), ("grpc.max_receive_message_length", 64 << 20),
                   ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        address = f"127.0.0.1:{port}"
        self.channel = (grpc.secure_channel(address, credentials, options) if credentials
                        else grpc.insecure_channel(address, options))
        self.timeout = timeout

    def call(self, body, path=MATCH, **options):
        """The bytes of the answer."""
        return self.method(path)(body, timeout=options.pop("timeout", self.timeout), **options)

    def method(self, path=MATCH):
        return self.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)

    def match(self, hashes, max_blocks=0):
        answer = Response.FromString(self.call(Request(hashes=hashes, max_blocks=max_blocks).SerializeToString()))
        assert answer.best_prefix_blocks == max([row.matched_prefix_blocks for row in answer.matches], default=0)
        return [(row.worker_address, row.matched_prefix_blocks, row.worker_id) for row in answer.matches]

    def code(self, body, path=MATCH, **options):
        """The name of the status with which the request is refused."""
        try:
            self.call(body, path, **options)
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    def close(self):
        self.channel.close()
