"""SQS's errors: the name of each in the JSON protocol, and its code in the older query protocol."""

from __future__ import annotations

_OLD = "AWS.SimpleQueueService."

#: name -> code. Those of AWS's model of the service; all of them are answered with status 400.
CODES: dict[str, str] = {
    **{
        name: _OLD + name
        for name in (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidBatchEntryId",
            "MessageNotInflight",
            "PurgeQueueInProgress",
            "QueueDeletedRecently",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
        )
    },
    **{
        name: name
        for name in (
            "InvalidAddress",
            "InvalidAttributeName",
            "InvalidAttributeValue",
            "InvalidIdFormat",
            "InvalidMessageContents",
            "InvalidSecurity",
            "OverLimit",
            "ReceiptHandleIsInvalid",
            "RequestThrottled",
            "ResourceNotFoundException",
        )
    },
    "KmsAccessDenied": "KMS.AccessDeniedException",
    "KmsDisabled": "KMS.DisabledException",
    "KmsInvalidKeyUsage": "KMS.InvalidKeyUsageException",
    "KmsInvalidState": "KMS.InvalidStateException",
    "KmsNotFound": "KMS.NotFoundException",
    "KmsOptInRequired": "KMS.OptInRequired",
    "KmsThrottled": "KMS.ThrottlingException",
    "QueueDoesNotExist": _OLD + "NonExistentQueue",
    "QueueNameExists": "QueueAlreadyExists",
}

#: What every service of AWS's answers besides, by code: (name in the JSON protocol, status).
COMMON: dict[str, tuple[str, int]] = {
    "AccessDenied": ("AccessDeniedException", 403),
    "InternalError": ("InternalFailure", 500),
    "InvalidAction": ("UnknownOperationException", 400),
    "InvalidParameterValue": ("InvalidParameterValueException", 400),
    "MalformedInput": ("SerializationException", 400),
    "MissingAction": ("MissingActionException", 400),
    "MissingParameter": ("MissingRequiredParameterException", 400),
    "RequestEntityTooLarge": ("RequestEntityTooLargeException", 413),
    "ServiceUnavailable": ("ServiceUnavailableException", 503),
}


class SqsError(Exception):
    """An error as SQS tells it: a name of `CODES`, or a code of `COMMON`."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.message = message
        if name in CODES:
            self.type, self.code, self.status = f"com.amazonaws.sqs#{name}", CODES[name], 400
        else:
            common, self.status = COMMON[name]
            self.type, self.code = f"com.amazon.coral.service#{common}", name

    @property
    def by_sender(self) -> bool:
        return self.status < 500
