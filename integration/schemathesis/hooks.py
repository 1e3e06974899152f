"""What schemathesis has to know about the hub beyond its OpenAPI document."""

import json

import jsonschema_rs
import schemathesis
from schemathesis import GenerationMode
from schemathesis.generation.meta import TestPhase

LINES = "application/x-ndjson"
# The documents of each kind that the test has made: `made-0` and so on in the namespace `made`.
DOCUMENTS = 20


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.meta.generation.mode == GenerationMode.POSITIVE:
        meet_documents(case)
        make_plausible(case)
    end_watches(case)
    delete_for_good(case)


def meet_documents(case):
    """Random names are those of no documents. Two of three valid requests are about one of those that the test has made."""
    variables = case.path_parameters
    if not variables or "name" not in variables:
        return
    draw = sum(map(ord, str(variables["name"])))
    if draw % 3:
        variables["name"] = f"made-{draw % DOCUMENTS}"
        if "namespace" in variables:
            variables["namespace"] = "made"


def make_plausible(case):
    """Random labels and versions are refused. Every second document that is valid by its schema has none, and a name that fits."""
    body = case.body
    if case.method not in ("POST", "PUT") or not isinstance(body, dict) or case.path.endswith(("/apply", "/status")):
        return
    draw = len(json.dumps(body, default=str))
    if draw % 2:
        return
    for field in ("kind", "id", "resourceVersion", "labels", "annotations", "finalizers", "namespace", "name"):
        body.pop(field, None)
    if case.method == "PUT":
        case.headers["If-Match"] = "*"
        return
    body["name"] = f"new-{draw}"
    if "selectorsyncsets" not in case.path:
        body["namespace"] = "made"


def end_watches(case):
    """A watch would last half an hour: it ends after a second, unless its `timeoutSeconds` is refused anyway."""
    query = case.query
    if not query or str(query.get("watch")).lower() != "true":
        return
    given = query.get("timeoutSeconds")
    is_valid = given is None or (str(given).isdecimal() and 1 <= int(given) <= 3600)
    if is_valid:
        query["timeoutSeconds"] = 1


def delete_for_good(case):
    """A dry run deletes nothing. Sequences of requests, which expect a document to be gone after its deletion, don't know that."""
    if case.method == "DELETE" and case.query and case.meta.phase.name == TestPhase.STATEFUL:
        case.query.pop("dryRun", None)


@schemathesis.check
def lines_of_a_watch(ctx, response, case):
    """Each line of a watch is an event of the kind that is watched."""
    if not response.headers.get("content-type", [""])[0].startswith(LINES):
        return
    document = case.operation.schema.raw_schema
    contents = case.operation.definition.raw["responses"]["200"]["content"]
    validator = jsonschema_rs.validator_for({**contents[LINES]["schema"], "components": document["components"]})
    for line in response.text.splitlines():
        event = json.loads(line)
        faults = [error.message for error in validator.iter_errors(event)]
        assert not faults, f"{faults} in {line}"
        carried = event["object"].get("type", "") if event["type"] == "ERROR" else event["object"].get("kind")
        assert carried, f"{line} carries nothing"
