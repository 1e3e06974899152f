#!/usr/bin/env python3
"""Writes hack/order.ld anew: the order in which the linker lays the functions of the release binary.

Runs an inventory until it rests, the side-car, and then leases, status sync and resource sync in one daemon, as the bench does, under
valgrind, and notes every function that was executed. ARCHITECTURE.md, *The order of functions*, says what the file is for and how it is
made up. It is only replaced once all have been recorded.

Needs valgrind, binutils and procps (the names of Debian's packages), and what the bench needs.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
WORK = TARGET / "order"
BINARY, WRAPPER, RECORDS = WORK / "towline", WORK / "run", WORK / "records"
ORDER = ROOT / "hack/order.ld"
LONGEST_RUN = 15 * 60
# A process has settled when connections that nothing uses have been closed. The longest thing that it does at rest takes five minutes: a watch.
SETTLED_AFTER = 90
REST = 330

# Valgrind writes what was executed after so many blocks of code: the bench kills its daemons, which leaves no time to write.
WRAPPER_TEXT = f"""#!/bin/sh
case $1 in lease) blocks=20000;; *) blocks=3000000;; esac
mkdir -p {RECORDS}/$1
exec valgrind -q --tool=callgrind --demangle=no --dump-every-bb=$blocks --callgrind-out-file={RECORDS}/$1/%p {BINARY} "$@"
"""


def build():
    """The bench, and the daemon in the compiler's order: valgrind only knows the names of functions in `.text`."""
    subprocess.run([ROOT / "hack/release.sh"], check=True)
    bench = ["cargo", "build", "--release", "--locked", "--package", "integration", "--bin", "bench"]
    subprocess.run(bench, cwd=ROOT, check=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    # Valgrind would read the line numbers at each start.
    subprocess.run(["objcopy", "--strip-debug", TARGET / "release/towline", BINARY], check=True)
    WRAPPER.write_text(WRAPPER_TEXT)
    WRAPPER.chmod(0o755)


def run(until=None, then=lambda: None, **options):
    """Runs the bench with these options to its end, or, when it prints `until`, calls `then` and ends it."""
    environment = {**os.environ, **options, "RUNS": "1", "TOWLINE_BIN": str(WRAPPER)}
    log = WORK / "bench.log"
    with log.open("w") as output:
        bench = subprocess.Popen(
            [TARGET / "release/bench"], cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    end = time.monotonic() + LONGEST_RUN
    try:
        while bench.poll() is None and time.monotonic() < end:
            if until and until in log.read_text():
                then()
                if bench.poll() is None:
                    return
                break
            time.sleep(0.5)
    finally:
        bench.terminate()
        bench.wait()
        # Its children end with it, but for one that it was just starting.
        subprocess.run(["pkill", "-KILL", "--session", str(bench.pid)], check=False)
    if until or bench.returncode:
        sys.exit(f"{log.read_text()}\n{options}: the bench has failed or takes too long; hack/order.ld is as it was")


def rest():
    """Records what an idle process executes, once it has settled."""
    records = RECORDS / "run"
    # Each file is that of a process, and may have a number behind it.
    (pid,) = {path.name.split(".")[0] for path in records.iterdir()}
    time.sleep(SETTLED_AFTER)
    dump(pid, records)
    shutil.rmtree(records)
    records.mkdir()
    time.sleep(REST)
    dump(pid, records)
    records.rename(RECORDS / "rest")


def dump(pid, records):
    """Writes what was executed since the last time."""
    before = set(records.iterdir())
    subprocess.run(["callgrind_control", "--dump", pid], check=True, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while set(records.iterdir()) <= before:
        if time.monotonic() > end:
            sys.exit(f"process {pid} has recorded nothing; hack/order.ld is as it was")
        time.sleep(0.5)


def executed(command):
    """The functions of the binary that ran as this command."""
    found = set()
    for path in (RECORDS / command).iterdir():
        names, objects, inside = {}, {}, False
        for line in path.open(errors="replace"):
            # A name is written out where it first occurs; `cfn` and `cob` are those of a call.
            match = re.match(r"(c?)(fn|ob)=\((\d+)\)(?: (.*))?$", line)
            if not match:
                continue
            call, kind, number, text = match.groups()
            table = names if kind == "fn" else objects
            if text:
                table[number] = text
            if call:
                continue
            if kind == "ob":
                inside = objects.get(number, "") == str(BINARY)
            elif inside:
                found.add(re.sub(r"'\d+$", "", names[number]))
    # What has no name is an address.
    return {name for name in found if re.fullmatch(r"[A-Za-z_][\w.$]*", name)}


def family(symbol):
    """A pattern without what changes with each compiler and each feature of a crate: hashes, and numbers that follow from them."""
    if symbol.startswith("_R"):
        pattern = re.sub(r"Cs[0-9A-Za-z]+_", "C*", symbol)
        return re.sub(r"\.\d+$", "*", re.sub(r"B[0-9A-Za-z]*_", "*", pattern))
    return re.sub(r"17h[0-9a-f]{16}E.*$", "17h*", symbol)


def write():
    """The file, from what was recorded."""
    idle = {family(symbol) for symbol in executed("rest")}
    lease = {family(symbol) for symbol in executed("lease")} - idle
    others = {family(symbol) for symbol in executed("run")} - lease - idle
    if not idle or not lease or not others:
        sys.exit(f"valgrind has recorded nothing in {RECORDS}; hack/order.ld is as it was")
    lines = ["/* Written by hack/order.py (make order); ARCHITECTURE.md, The order of functions. */"]
    lines += ["SECTIONS", "{", "  .text.ordered :", "  {"]
    groups = [
        ("What an idle process executes.", idle),
        ("What the side-car executes as well.", lease),
        ("What the other jobs execute.", others),
    ]
    for title, patterns in groups:
        # The compiler puts functions that are seldom called into `.text.unlikely.*`.
        lines += [f"    /* {title} */", "    *(", *(f"      .text*.{pattern}" for pattern in sorted(patterns)), "    )"]
    lines += ["  }", "}", "INSERT BEFORE .text;"]
    new = ORDER.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(ORDER)
    print(f"hack/order.ld: {len(idle)} families of functions at rest, {len(lease)} more of the side-car, {len(others)} of other jobs")


def main():
    for tool in ["valgrind", "callgrind_control", "objcopy", "pkill"]:
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: apt-get install valgrind binutils procps")
    build()
    run(until="one release upgraded", then=rest, JOBS="inventory", MANY="0", IDLE=str(LONGEST_RUN))
    # The side-car, and then fleets. What follows takes too long under valgrind.
    run(until="hub back", JOBS="lease", WINDOW="10", LEASES="20")
    run(JOBS="status", SIZES="20x20", OTHERS="20", PASSES="2", FLIPS="1", TRICKLE="5")
    run(JOBS="sync", OBJECTS="50", CHANGES="50", IDLE="2")
    write()


if __name__ == "__main__":
    main()
