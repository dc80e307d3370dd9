"""AWS's model of SQS with the older query protocol, made of the installed one, which is of the JSON protocol.

Lists and mappings are flat in it; what their items are called is what the model of today leaves out.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import botocore

VERSION = "2012-11-05"
_NAMESPACE = f"http://queue.amazonaws.com/doc/{VERSION}/"
#: Those whose items are called otherwise than their shape.
_ITEMS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
}
#: By the shape of a mapping: what a pair, its key and its value are called.
_PAIRS = {
    "MessageBodyAttributeMap": ("MessageAttribute", "Name", "Value"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name", "Value"),
    "MessageSystemAttributeMap": ("Attribute", "Name", "Value"),
    "QueueAttributeMap": ("Attribute", "Name", "Value"),
    "TagMap": ("Tag", "Key", "Value"),
}
#: Errors whose code is not their name, of those that clients are told.
_OLD = "AWS.SimpleQueueService."
_CODES = {
    "QueueNameExists": "QueueAlreadyExists",
    "QueueDoesNotExist": f"{_OLD}NonExistentQueue",
    **{name: _OLD + name for name in ("MessageNotInflight", "PurgeQueueInProgress", "UnsupportedOperation")},
}


def installed() -> dict[str, Any]:
    """The model that boto3 uses."""
    path = Path(botocore.__file__).parent / f"data/sqs/{VERSION}/service-2.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def written(folder: Path) -> Path:
    """A folder for `AWS_DATA_PATH`: clients that are made with it speak the query protocol."""
    model = installed()
    metadata = model["metadata"]
    del metadata["awsQueryCompatible"]
    metadata.update(protocol="query", protocols=["query"], xmlNamespace=_NAMESPACE)
    for shape in model["shapes"].values():
        if shape["type"] == "list" and shape.get("flattened"):
            member = shape["member"]
            member["locationName"] = member["shape"]
        for member in shape.get("members", {}).values():
            if member["shape"] in _PAIRS:
                member["locationName"] = _PAIRS[member["shape"]][0]
    for name, item in _ITEMS.items():
        model["shapes"][name]["member"]["locationName"] = item
    model["shapes"]["TagKeyList"]["member"]["locationName"] = "TagKey"
    for name, (_, key, value) in _PAIRS.items():
        model["shapes"][name]["key"]["locationName"] = key
        model["shapes"][name]["value"]["locationName"] = value
    for name, code in _CODES.items():
        model["shapes"][name]["error"] = {"code": code, "httpStatusCode": 400, "senderFault": True}
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    target = folder / "sqs" / VERSION
    target.mkdir(parents=True, exist_ok=True)
    (target / "service-2.json").write_text(json.dumps(model))
    return folder
