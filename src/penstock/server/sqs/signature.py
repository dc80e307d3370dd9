"""AWS Signature Version 4, verified: who signed a request, with what, and when.

A request is signed in its `Authorization` header, or in the query of its URL (presigned). What is signed is
its canonical form, which both sides build from the request as it was sent: `canonical` has the rules.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from penstock.clock import NS_PER_S
from penstock.server.access import ANYBODY, Credentials, Principal
from penstock.server.endpoint import Request

ALGORITHM = "AWS4-HMAC-SHA256"
#: How far the clocks of clients may be off, either way, and how long a signature is good for: as SQS has it.
SKEW_S = 15 * 60
#: The longest that a presigned URL may be good for.
LONGEST_EXPIRY_S = 7 * 24 * 60 * 60

_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_EXPIRES = re.compile(r"[0-9]{1,6}")
#: Everything else that a presigned URL says of its signature; each once.
_QUERY_PARTS = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature")

Pairs = Sequence[tuple[bytes, bytes]]


class SignatureError(Exception):
    """A request that is not from whom it says, or does not say. Code, message and status are AWS's.

    No message has anything of the request in it but its date, nor anything of a secret.
    """

    def __init__(self, code: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


class Claim(NamedTuple):
    """What a request says of its signature; of these things none is true yet."""

    access_key: str
    scope: tuple[str, str, str, str]
    signed_headers: list[str]
    signature: str
    stamp: str
    #: From the date on; None in the header form, which has no expiry of its own.
    expires_s: int | None


class Claimed(NamedTuple):
    """Whose signature it would be, and what it is to be compared with."""

    claim: Claim
    pairs: Pairs
    principal: Principal
    secret: str


def verify(
    request: Request, credentials: Credentials, now_ns: int, region: str, service: str = "sqs"
) -> Principal:
    """Who signed the request. `SignatureError` if nobody did, not who it says, or not for here and now."""
    found = claimed(request, credentials, now_ns, region, service)
    if found is None:
        return ANYBODY
    claim = found.claim
    text = "\n".join(
        (
            ALGORITHM,
            claim.stamp,
            "/".join(claim.scope),
            hashlib.sha256(canonical(request, found.pairs, claim.signed_headers)).hexdigest(),
        )
    )
    expected = hmac.digest(_signing_key(found.secret, *claim.scope[:3]), text.encode(), "sha256")
    if not hmac.compare_digest(expected, bytes.fromhex(claim.signature)):
        raise _mismatch()
    return found.principal


def claimed(
    request: Request, credentials: Credentials, now_ns: int, region: str, service: str = "sqs"
) -> Claimed | None:
    """All that can be refused without the body; None where nobody has to sign."""
    if not credentials.required:
        return None
    pairs = _pairs(request.query)
    claim = _claim(request, pairs)
    known = credentials.by_access_key(claim.access_key)
    # Temporary credentials are none that this server gives out, so a token of them proves nothing.
    if known is None or _has_token(request, pairs):
        raise SignatureError("InvalidClientTokenId", "The security token included in the request is invalid.")
    _check_scope(claim, region, service)
    _check_time(claim, now_ns)
    _check_signed_headers(request, claim)
    return Claimed(claim, pairs, *known)


def canonical(request: Request, pairs: Pairs, signed_headers: Sequence[str]) -> bytes:
    """The request in the form that is signed, as AWS defines it for every service but S3."""
    body_hash = hashlib.sha256(request.body).hexdigest()
    # Of what arrived, whatever the header says, so that `UNSIGNED-PAYLOAD` never matches: over plain HTTP it
    # would let anybody change the body.
    if request.headers.get("x-amz-content-sha256", body_hash) != body_hash:
        raise _mismatch()
    headers = b"".join(
        b"%s:%s\n" % (name.encode(), _trimmed(request.headers[name])) for name in signed_headers
    )
    return b"\n".join(
        (
            request.method.encode(),
            _canonical_path(request.path).encode(),
            _canonical_query(pairs).encode(),
            headers,
            ";".join(signed_headers).encode(),
            body_hash.encode(),
        )
    )


def _pairs(query: str) -> Pairs:
    """The query's parameters, decoded as forms are: what is signed is then what the action will read."""
    if not query:
        return ()
    decoded = []
    for piece in query.split("&"):
        if piece:
            name, _, value = piece.replace("+", " ").partition("=")
            decoded.append((unquote_to_bytes(name), unquote_to_bytes(value)))
    return decoded


def _canonical_query(pairs: Pairs) -> str:
    encoded = sorted(
        (quote(name, safe=""), quote(value, safe="")) for name, value in pairs if name != b"X-Amz-Signature"
    )
    return "&".join(f"{name}={value}" for name, value in encoded)


def _canonical_path(path: str) -> str:
    """Without empty and dot segments, and quoted again: AWS quotes every segment twice."""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment and segment != ".":
            kept.append(segment)
    tail = "/" if kept and path.endswith("/") else ""
    return quote("/" + "/".join(kept) + tail, safe="/~")


def _trimmed(value: str) -> bytes:
    # The bytes that came: servers read headers as Latin-1, clients sign them as UTF-8.
    try:
        return b" ".join(value.encode("latin-1").split())
    except UnicodeEncodeError:
        raise _mismatch() from None


def _claim(request: Request, pairs: Pairs) -> Claim:
    given = request.headers.get("authorization")
    presigned = any(name in {b"X-Amz-Algorithm", b"X-Amz-Signature"} for name, _ in pairs)
    if given is None and not presigned:
        raise SignatureError("MissingAuthenticationToken", "Request is missing Authentication Token")
    if given is None:
        return _claim_of_query(pairs)
    if presigned:
        raise _incomplete("A request is signed in its Authorization header or in its query, not in both.")
    return _claim_of_header(given, request.headers.get("x-amz-date", ""))


def _claim_of_header(given: str, stamp: str) -> Claim:
    algorithm, _, rest = given.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The Authorization header requires the algorithm {ALGORITHM}.")
    parts: dict[str, str] = {}
    for piece in rest.split(","):
        name, equals, value = piece.strip().partition("=")
        if not equals or name in parts:
            raise _incomplete("The Authorization header is no list of parameters with one value each.")
        parts[name] = value
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not parts.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    if not stamp:
        raise _incomplete("Authorization header requires existence of a 'X-Amz-Date' header.")
    return _checked(parts["Credential"], parts["SignedHeaders"], parts["Signature"], stamp, None)


def _claim_of_query(pairs: Pairs) -> Claim:
    values: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name = raw_name.decode("latin-1")
        if name.startswith("X-Amz-"):
            if name in values:
                raise _incomplete("The query has a parameter 'X-Amz-…' more than once.")
            values[name] = raw_value.decode("latin-1")
    if values.get("X-Amz-Algorithm") != ALGORITHM:
        raise _incomplete(f"The query requires 'X-Amz-Algorithm={ALGORITHM}'.")
    for name in _QUERY_PARTS:
        if not values.get(name):
            raise _incomplete(f"AWS query-string parameters must include '{name}'.")
    expires = values["X-Amz-Expires"]
    if not _EXPIRES.fullmatch(expires) or not 1 <= int(expires) <= LONGEST_EXPIRY_S:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {LONGEST_EXPIRY_S} seconds.")
    return _checked(
        values["X-Amz-Credential"],
        values["X-Amz-SignedHeaders"],
        values["X-Amz-Signature"],
        values["X-Amz-Date"],
        int(expires),
    )


def _checked(credential: str, signed: str, signature: str, stamp: str, expires_s: int | None) -> Claim:
    access_key, *scope = credential.rsplit("/", 4)
    if len(scope) != 4 or not access_key:
        raise _incomplete(
            "Credential must have exactly 5 slash-delimited elements: keyid/date/region/service/term."
        )
    if not _STAMP.fullmatch(stamp):
        raise _incomplete("Date must be in ISO-8601 'basic format', as in 20260131T235959Z.")
    if not _SIGNATURE.fullmatch(signature):
        raise _incomplete("Signature must be 64 hexadecimal digits in lower case.")
    date, region, service, term = scope
    return Claim(access_key, (date, region, service, term), signed.split(";"), signature, stamp, expires_s)


def _check_scope(claim: Claim, region: str, service: str) -> None:
    date, its_region, its_service, term = claim.scope
    if its_region != region:
        raise _mismatch(f"Credential should be scoped to a valid region, which is '{region}' here.")
    if its_service != service:
        raise _mismatch(f"Credential should be scoped to correct service: '{service}'.")
    if term != "aws4_request":
        raise _mismatch("Credential should be scoped with a valid terminator: 'aws4_request'.")
    if date != claim.stamp[:8]:
        raise _mismatch("Date in Credential scope does not match YYYYMMDD from the date of the request.")


def _check_time(claim: Claim, now_ns: int) -> None:
    now_s = now_ns // NS_PER_S
    signed_s = _seconds(claim.stamp)
    good_for_s = SKEW_S if claim.expires_s is None else claim.expires_s
    if signed_s < now_s - good_for_s:
        raise _mismatch(
            f"Signature expired: {claim.stamp} is now earlier than {_stamped(now_s - good_for_s)}"
            f" ({_stamped(now_s)} - {_duration(good_for_s)}.)"
        )
    if signed_s > now_s + SKEW_S:
        raise _mismatch(
            f"Signature not yet current: {claim.stamp} is still later than {_stamped(now_s + SKEW_S)}"
            f" ({_stamped(now_s)} + {_duration(SKEW_S)}.)"
        )


def _check_signed_headers(request: Request, claim: Claim) -> None:
    """What has a say in a request's meaning must be signed, or whoever saw one could make another of it."""
    signed = claim.signed_headers
    if sorted(set(signed)) != signed or not all(name in request.headers for name in signed):
        raise _mismatch("SignedHeaders must be names of headers of the request, in lower case and in order.")
    # `Content-Type` decides nothing here, and several of AWS's own SDKs leave it out.
    meaningful = {name for name in request.headers if name.startswith("x-amz-")}
    if "host" not in signed or not meaningful.issubset(signed):
        raise SignatureError(
            "AccessDenied",
            "There were headers present in the request which were not signed:"
            " 'host' and every 'x-amz-*' must be.",
        )


def _has_token(request: Request, pairs: Pairs) -> bool:
    return "x-amz-security-token" in request.headers or any(
        name == b"X-Amz-Security-Token" for name, _ in pairs
    )


@lru_cache(maxsize=1024)
def _signing_key(secret: str, date: str, region: str, service: str) -> bytes:
    """One a day for each secret: four of the five hashes of a signature."""
    key = b"AWS4" + secret.encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


@lru_cache(maxsize=128)
def _seconds(stamp: str) -> int:
    try:
        moment = datetime(
            int(stamp[:4]), int(stamp[4:6]), int(stamp[6:8]),
            int(stamp[9:11]), int(stamp[11:13]), int(stamp[13:15]), tzinfo=UTC,
        )  # fmt: skip
    except ValueError:
        raise _incomplete("Date is none that there is.") from None
    return int(moment.timestamp())


def _stamped(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y%m%dT%H%M%SZ")


def _duration(seconds: int) -> str:
    return f"{seconds} sec" if seconds % 60 else f"{seconds // 60} min"


def _incomplete(message: str) -> SignatureError:
    return SignatureError("IncompleteSignature", message, 400)


def _mismatch(message: str | None = None) -> SignatureError:
    return SignatureError(
        "SignatureDoesNotMatch",
        message
        or "The request signature we calculated does not match the signature you provided. Check your AWS"
        " Secret Access Key and signing method. Consult the service documentation for details.",
    )
