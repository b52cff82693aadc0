"""Holds the gRPC endpoint to RFC 9113 (HTTP/2), RFC 7541 (HPACK) and gRPC over HTTP/2, by a client that shares no
code with it: frames by hyperframe, header compression by hpack, whole calls by h2.

Usage: run.py TARGET [SECTION...], such as `run.py 127.0.0.1:8081 6.9 10.5`

TARGET is HOST:PORT or the path of a Unix socket, of a sidecar that serves ../rls_client.yaml. The modules
are tables: section, what is sent, what the section requires. Prints a line for each case; a failure names what
was required and what came. Exits with 1 if one fails. `known.py` has the deliberate deviations.
"""

import sys

import floods
import grpc_rules
import known
import rfc7541
import rfc9113_framing
import rfc9113_frames
import rfc9113_messages
import rfc9113_streams
import silent
import whole_calls

SUITES = {
    "RFC 9113": [rfc9113_framing, rfc9113_streams, rfc9113_frames, rfc9113_messages, floods],
    "RFC 7541": [rfc7541],
    "gRPC": [grpc_rules],
    "h2": [whole_calls],
    # Last, as its connections have to wait.
    "RFC 9113 ": [silent],
}


def address_of(target):
    host, _, port = target.rpartition(":")
    return target if "/" in target else (host, int(port))


def judge(name, case, address):
    """A verdict, and what to say of it."""
    required = case.expects.text
    if name in known.DEVIATIONS:
        case.expects, reason = known.DEVIATIONS[name]
        came = case.run(address)
        if came is None:
            return "differs", f"required: {required}; instead: {case.expects.text}, as {reason}"
        return "FAILED", f"required as a deviation: {case.expects.text}\n    came: {came}"
    came = case.run(address)
    if name in known.PENDING:
        if came is None:
            return "FAILED", "it holds now: take it out of PENDING in known.py"
        return "pending", f"required: {required}; {known.PENDING[name]}"
    return ("ok", "") if came is None else ("FAILED", f"required: {required}\n    came: {came}")


def main():
    target, *sections = sys.argv[1:]
    address = address_of(target)
    cases = [(f"{suite.strip()} {case.name}", case) for suite, modules in SUITES.items() for module in modules
             for case in module.CASES]  # fmt: skip
    names = {name for name, _ in cases}
    verdicts = []
    for name in sorted(known.PENDING.keys() | known.DEVIATIONS.keys()):
        if name not in names:
            verdicts.append("FAILED")
            print(f"FAILED {name}\n    known.py names it, but there is no such case")
    if len(names) < len(cases):
        verdicts.append("FAILED")
        print("FAILED two cases have one name")
    if sections:
        cases = [(name, case) for name, case in cases if any(f" {section}" in f" {name}" for section in sections)]
    for _, case in cases:
        if hasattr(case, "before"):
            case.before(address)
    for name, case in cases:
        verdict, more = judge(name, case, address)
        verdicts.append(verdict)
        print(verdict, name + (f"\n    {more}" if more else ""), flush=True)
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("ok", "differs", "pending", "FAILED")))
    return 1 if "FAILED" in verdicts or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
