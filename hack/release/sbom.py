#!/usr/bin/env python3
"""Leaves in an SBOM of cargo-cyclonedx the crates that a binary names, in which cargo-auditable has written them.

cargo-cyclonedx asks `cargo metadata`, which also has optional crates that only a weak feature mentions (`crate?/feature`), and what they need. Nobody
builds these.

Usage: hack/release/sbom.py BINARY <SBOM >SBOM
"""
import json
import subprocess
import sys
import zlib

SECTION = ".dep-v0"


def crates_of(binary):
    """The names and versions of the crates in a binary, those of its build scripts included."""
    headers = subprocess.run(["readelf", "--wide", "--section-headers", binary], check=True, capture_output=True, text=True).stdout
    found = [line.partition("]")[2].split() for line in headers.splitlines() if f" {SECTION} " in line]
    if not found:
        sys.exit(f"sbom: {binary} names no crates: was it built by cargo auditable?")
    # Name, type, address, offset, size.
    offset, size = (int(number, 16) for number in found[0][3:5])
    with open(binary, "rb") as file:
        file.seek(offset)
        packages = json.loads(zlib.decompress(file.read(size)))["packages"]
    return {(package["name"], package["version"]) for package in packages}


named = crates_of(sys.argv[1])
sbom = json.load(sys.stdin)
crate = lambda component: (component["name"], component["version"])
kept = [component for component in sbom["components"] if crate(component) in named]
missing = named - {crate(component) for component in [*kept, sbom["metadata"]["component"]]}
if missing:
    sys.exit("sbom: the binary has, and the SBOM has not: " + ", ".join(" ".join(one) for one in sorted(missing)))
references = {component["bom-ref"] for component in [*kept, sbom["metadata"]["component"]]}
sbom["components"] = kept
sbom["dependencies"] = [
    {**entry, "dependsOn": [target for target in entry["dependsOn"] if target in references]} if "dependsOn" in entry else entry
    for entry in sbom["dependencies"]
    if entry["ref"] in references
]
json.dump(sbom, sys.stdout, indent=2)
print()
