"""Signatures made by botocore are verified; whatever else signs, or changes what was signed, is denied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Keys
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clock import NS_PER_S
from penstock.server.access import ANYBODY, Principal
from penstock.server.endpoint import Request
from penstock.server.sqs.signature import SignatureError, _seconds, _signing_key, verify

ACCESS_KEY = "AKIAEXAMPLE"
SECRET = "wJalr/XUtnFEMI+K7MDENG"
REGION = "eu-central-1"
ALICE = Principal("alice", {"*": frozenset({"enqueue"})})
JSON_HEADERS = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.SendMessage"}
BODY = b'{"QueueUrl": "http://localhost:9324/000000000000/emails", "MessageBody": "hello"}'


class Known:
    """One access key."""

    required = True

    def by_token(self, token: str) -> Principal | None:
        return None

    def by_access_key(self, access_key: str) -> tuple[Principal, str] | None:
        return (ALICE, SECRET) if access_key == ACCESS_KEY else None

    def by_certificate(self, name: str) -> Principal | None:
        return None

    def is_good(self, who: Principal) -> bool:
        return True


class Open(Known):
    required = False


def received(prepared: Any) -> Request:
    """What a server sees of a request that botocore has signed, and its HTTP library has sent."""
    url = urlsplit(prepared.url)
    # Values are sent as UTF-8, and servers read Latin-1.
    headers = {"host": url.netloc} | {
        name.lower(): str(value).encode().decode("latin-1") for name, value in prepared.headers.items()
    }
    body = prepared.body or b""
    return Request(
        "r-1",
        prepared.method,
        url.path or "/",
        url.query,
        headers,
        body.encode() if isinstance(body, str) else body,
        "127.0.0.1",
        None,
        lambda: True,
    )


def signed(
    *,
    method: str = "POST",
    url: str = "http://localhost:9324/",
    headers: Mapping[str, str] = JSON_HEADERS,
    data: Any = BODY,
    params: Any = None,
    access_key: str = ACCESS_KEY,
    secret: str = SECRET,
    region: str = REGION,
    service: str = "sqs",
    token: str | None = None,
    expires_s: int | None = None,
) -> tuple[Request, int]:
    """A request as it arrives, and when it was signed."""
    request = AWSRequest(method=method, url=url, headers=dict(headers), data=data, params=params)
    keys = Keys(access_key, secret, token)
    signer = (
        SigV4Auth(keys, service, region)
        if expires_s is None
        else SigV4QueryAuth(keys, service, region, expires=expires_s)
    )
    signer.add_auth(request)
    return received(request.prepare()), _seconds(request.context["timestamp"]) * NS_PER_S


def presigned(expires_s: int = 300, **changes: Any) -> tuple[Request, int]:
    given: dict[str, Any] = {
        "method": "GET",
        "url": "http://localhost:9324/000000000000/emails",
        "headers": {},
        "data": {"Action": "SendMessage", "MessageBody": "hello there & more", "Version": "2012-11-05"},
    }
    return signed(**(given | changes), expires_s=expires_s)


def denial(request: Request, now_ns: int, region: str = REGION, service: str = "sqs") -> SignatureError:
    with pytest.raises(SignatureError) as raised:
        verify(request, Known(), now_ns, region, service)
    assert SECRET not in str(raised.value)
    assert not re.search("[0-9a-f]{64}", str(raised.value)), (
        "a signature in an error is one to try again with"
    )
    return raised.value


def with_header(request: Request, name: str, value: str | None) -> Request:
    headers = {key: held for key, held in request.headers.items() if key != name}
    return request._replace(headers=headers if value is None else headers | {name: value})


def with_parameter(request: Request, name: str, value: str | None) -> Request:
    pairs = [pair for pair in request.query.split("&") if not pair.startswith(f"{name}=")]
    if value is not None:
        pairs.append(f"{name}={quote(value, safe='')}")
    return request._replace(query="&".join(pairs))


def test_a_request_signed_in_its_header_is_from_who_signed_it() -> None:
    request, now_ns = signed()
    assert verify(request, Known(), now_ns, REGION) == ALICE


def test_a_presigned_request_is_from_who_signed_it() -> None:
    request, now_ns = presigned()
    assert verify(request, Known(), now_ns, REGION) == ALICE


def test_a_server_without_credentials_asks_for_no_signature() -> None:
    request, now_ns = signed(secret="another")
    assert verify(request, Open(), now_ns, REGION) is ANYBODY
    assert verify(with_header(request, "authorization", None), Open(), now_ns, REGION) is ANYBODY


# Spaces, percent signs, plus signs, separators, other scripts: what must be quoted, and what must not.
_text = st.text(st.sampled_from(" +%&=/~-_.*'()!$,:;@?#\"\\<>[]{}|^`aZ0éß漢😀\x7f\t"), max_size=8)
_pairs = st.lists(st.tuples(_text.filter(bool), _text), max_size=5)
_segment = st.text(st.sampled_from("abZ09-_.~ %+:@é漢"), max_size=6)
_path = st.lists(_segment | st.sampled_from(["", ".", "..", "a"]), max_size=5).map(
    lambda segments: "/" + "/".join(quote(segment, safe="+:@") for segment in segments)
)
_header_value = st.text(st.sampled_from("abc XYZ019-_./;=,é\t"), max_size=12)


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    path=_path,
    pairs=_pairs,
    in_url=st.booleans(),
    body=st.binary(max_size=60),
    extra=st.dictionaries(st.sampled_from(["x-amz-meta", "x-note", "content-type"]), _header_value),
)
def test_whatever_botocore_signs_is_verified(
    method: str,
    path: str,
    pairs: Sequence[tuple[str, str]],
    in_url: bool,
    body: bytes,
    extra: dict[str, str],
) -> None:
    url = f"http://localhost:9324{path}"
    if in_url and pairs:
        url += "?" + "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs)
    request, now_ns = signed(
        method=method, url=url, headers=extra, data=body, params=None if in_url else list(pairs)
    )
    assert verify(request, Known(), now_ns, REGION) == ALICE


@settings(max_examples=100, deadline=None)
@given(path=_path, form=st.dictionaries(_text.filter(bool), _text, max_size=4))
def test_whatever_botocore_presigns_is_verified(path: str, form: dict[str, str]) -> None:
    request, now_ns = presigned(url=f"http://localhost:9324{path}", data=dict(form))
    assert verify(request, Known(), now_ns, REGION) == ALICE


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("method", lambda r: r._replace(method="GET")),
        ("path", lambda r: r._replace(path="/000000000000/other")),
        ("a quoted path", lambda r: r._replace(path="/%30")),
        ("a parameter more", lambda r: r._replace(query="Action=DeleteQueue")),
        ("a nameless parameter more", lambda r: r._replace(query="=")),
        ("body", lambda r: r._replace(body=BODY + b" ")),
        ("no body", lambda r: r._replace(body=b"")),
        ("host", lambda r: with_header(r, "host", "localhost:9325")),
        ("target", lambda r: with_header(r, "x-amz-target", "AmazonSQS.DeleteQueue")),
        ("content type", lambda r: with_header(r, "content-type", "application/x-www-form-urlencoded")),
        ("no target", lambda r: with_header(r, "x-amz-target", None)),
        ("an own header more", lambda r: with_header(r, "x-amz-meta", "new")),
        ("payload hash", lambda r: with_header(r, "x-amz-content-sha256", "0" * 64)),
        ("unsigned payload", lambda r: with_header(r, "x-amz-content-sha256", "UNSIGNED-PAYLOAD")),
        (
            "signed headers",
            lambda r: with_header(
                r, "authorization", r.headers["authorization"].replace("content-type;host", "host")
            ),
        ),
    ],
)
def test_a_signed_part_that_was_changed_is_denied(what: str, change: Any) -> None:
    request, now_ns = signed()
    assert denial(change(request), now_ns).code in {"SignatureDoesNotMatch", "AccessDenied"}, what


def test_every_digit_of_a_signature_counts() -> None:
    request, now_ns = signed()
    head, signature = request.headers["authorization"].rsplit("=", 1)
    for position in range(64):
        other = "0" if signature[position] != "0" else "1"
        forged = f"{head}={signature[:position]}{other}{signature[position + 1 :]}"
        assert denial(with_header(request, "authorization", forged), now_ns).code == "SignatureDoesNotMatch"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_presigned_url_with_any_character_changed_is_denied_or_means_the_same(data: st.DataObject) -> None:
    request, now_ns = presigned()
    at = data.draw(st.integers(0, len(request.query) - 1))
    new = data.draw(st.sampled_from("aZ0%+&=-"))
    changed = request._replace(query=request.query[:at] + new + request.query[at + 1 :])
    same = parse_qsl(changed.query, keep_blank_values=True) == parse_qsl(
        request.query, keep_blank_values=True
    )
    if same:
        assert verify(changed, Known(), now_ns, REGION) == ALICE
    else:
        denial(changed, now_ns)


def test_a_presigned_url_is_not_for_another_method_path_host_or_body() -> None:
    request, now_ns = presigned()
    for changed in (
        request._replace(method="POST"),
        request._replace(path="/000000000000/other"),
        with_header(request, "host", "elsewhere:9324"),
        request._replace(body=b"Action=DeleteQueue"),
        with_header(request, "x-amz-target", "AmazonSQS.DeleteQueue"),
    ):
        assert denial(changed, now_ns).code in {"SignatureDoesNotMatch", "AccessDenied"}


def test_a_signature_is_good_for_fifteen_minutes_either_way() -> None:
    request, now_ns = signed()
    edge_ns = 15 * 60 * NS_PER_S
    assert verify(request, Known(), now_ns + edge_ns, REGION) == ALICE
    assert verify(request, Known(), now_ns - edge_ns, REGION) == ALICE
    late = denial(request, now_ns + edge_ns + NS_PER_S)
    assert (late.code, late.status) == ("SignatureDoesNotMatch", 403)
    stamp = r"\d{8}T\d{6}Z"
    assert re.fullmatch(
        rf"Signature expired: {stamp} is now earlier than {stamp} \({stamp} - 15 min\.\)", str(late)
    )
    early = denial(request, now_ns - edge_ns - NS_PER_S)
    assert (early.code, early.status) == ("SignatureDoesNotMatch", 403)
    assert re.fullmatch(
        rf"Signature not yet current: {stamp} is still later than {stamp} \({stamp} \+ 15 min\.\)", str(early)
    )


def test_a_request_that_is_sent_again_with_a_new_date_is_denied() -> None:
    request, now_ns = signed()
    later = with_header(request, "x-amz-date", "20991231T235959Z")
    assert denial(later, _seconds("20991231T235959Z") * NS_PER_S).code == "SignatureDoesNotMatch"
    rescoped = later.headers["authorization"].replace(request.headers["x-amz-date"][:8], "20991231")
    later = with_header(later, "authorization", rescoped)
    assert denial(later, _seconds("20991231T235959Z") * NS_PER_S).code == "SignatureDoesNotMatch"
    assert denial(request, now_ns + 24 * 3600 * NS_PER_S).code == "SignatureDoesNotMatch"


def test_a_presigned_url_is_good_for_as_long_as_it_says() -> None:
    request, now_ns = presigned(expires_s=10)
    assert verify(request, Known(), now_ns + 10 * NS_PER_S, REGION) == ALICE
    assert "Signature expired" in str(denial(request, now_ns + 11 * NS_PER_S))
    longer = with_parameter(request, "X-Amz-Expires", "3600")
    assert denial(longer, now_ns + 11 * NS_PER_S).code == "SignatureDoesNotMatch"
    week_s = 7 * 24 * 3600
    request, now_ns = presigned(expires_s=week_s)
    assert verify(request, Known(), now_ns + week_s * NS_PER_S, REGION) == ALICE


@pytest.mark.parametrize("expires_s", [0, -1, 7 * 24 * 3600 + 1, 10**9])
def test_a_presigned_url_for_less_than_a_second_or_more_than_a_week_is_denied(expires_s: int) -> None:
    request, now_ns = presigned(expires_s=expires_s)
    assert (denial(request, now_ns).code, denial(request, now_ns).status) == ("IncompleteSignature", 400)


def test_an_unknown_access_key_is_denied_and_so_is_a_wrong_secret() -> None:
    request, now_ns = signed(access_key="AKIANOBODY")
    unknown = denial(request, now_ns)
    assert (unknown.code, unknown.status) == ("InvalidClientTokenId", 403)
    request, now_ns = signed(secret="wrong")
    wrong = denial(request, now_ns)
    assert (wrong.code, wrong.status) == ("SignatureDoesNotMatch", 403)


def test_temporary_credentials_are_not_known_here() -> None:
    for request, now_ns in (signed(token="session"), presigned(token="session")):
        assert denial(request, now_ns).code == "InvalidClientTokenId"


def test_a_signature_for_another_region_or_service_is_denied() -> None:
    request, now_ns = signed()
    assert "region" in str(denial(request, now_ns, region="us-east-1"))
    assert "service" in str(denial(request, now_ns, service="sns"))
    terminated = request.headers["authorization"].replace("aws4_request", "aws5_request")
    assert "terminator" in str(denial(with_header(request, "authorization", terminated), now_ns))


def test_an_unsigned_request_is_denied() -> None:
    request, now_ns = signed()
    missing = denial(with_header(request, "authorization", None), now_ns)
    assert (missing.code, missing.status) == ("MissingAuthenticationToken", 403)


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential",
        "Bearer token",
        "Basic QWxhZGRpbjpvcGVu",
        "AWS3-HTTPS AWSAccessKeyId=AKIAEXAMPLE",
        "AWS4-HMAC-SHA256 Credential={c}, SignedHeaders=host",
        "AWS4-HMAC-SHA256 Credential={c}, Signature={s}",
        "AWS4-HMAC-SHA256 SignedHeaders=host, Signature={s}",
        "AWS4-HMAC-SHA256 Credential=, SignedHeaders=host, Signature={s}",
        "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE, SignedHeaders=host, Signature={s}",
        "AWS4-HMAC-SHA256 Credential=/////, SignedHeaders=host, Signature={s}",
        "AWS4-HMAC-SHA256 Credential={c}, SignedHeaders=host, Signature=",
        "AWS4-HMAC-SHA256 Credential={c}, SignedHeaders=host, Signature=zz",
        "AWS4-HMAC-SHA256 Credential={c}, SignedHeaders=host, Signature={s}0",
        "AWS4-HMAC-SHA256 Credential={c}, SignedHeaders=host, Signature={u}",
        "AWS4-HMAC-SHA256 Credential={c}, Credential={c}, SignedHeaders=host, Signature={s}",
    ],
)
def test_a_malformed_header_is_denied(authorization: str) -> None:
    request, now_ns = signed()
    credential = f"{ACCESS_KEY}/{request.headers['x-amz-date'][:8]}/{REGION}/sqs/aws4_request"
    made = authorization.format(c=credential, s="a" * 64, u="A" * 64)
    assert denial(with_header(request, "authorization", made), now_ns).status in {400, 403}


@settings(max_examples=200, deadline=None)
@given(authorization=st.text() | st.text().map(lambda text: "AWS4-HMAC-SHA256 " + text), query=st.text())
def test_garbage_is_denied_and_breaks_nothing(authorization: str, query: str) -> None:
    request, now_ns = signed()
    denial(with_header(request, "authorization", authorization)._replace(query=query), now_ns)
    denial(with_header(request, "authorization", None)._replace(query=f"X-Amz-Algorithm={query}"), now_ns)


@pytest.mark.parametrize(
    "stamp", ["", "yesterday", "20261301T000000Z", "20260230T000000Z", "\u0662\u0660\u0662\u06661101T000000Z"]
)
def test_a_date_that_is_none_is_denied(stamp: str) -> None:
    request, now_ns = signed()
    scope = request.headers["authorization"].replace(request.headers["x-amz-date"][:8], stamp[:8])
    changed = with_header(with_header(request, "authorization", scope), "x-amz-date", stamp)
    assert denial(changed, now_ns).code == "IncompleteSignature"


@pytest.mark.parametrize(
    "name",
    [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    ],
)
def test_a_presigned_url_has_all_its_parts_each_once(name: str) -> None:
    request, now_ns = presigned()
    assert denial(with_parameter(request, name, None), now_ns).code == "IncompleteSignature"
    doubled = request._replace(query=f"{request.query}&{name}=x")
    assert denial(doubled, now_ns).code == "IncompleteSignature"


def test_a_request_is_signed_in_one_place_only() -> None:
    request, now_ns = presigned()
    both = with_header(request, "authorization", signed()[0].headers["authorization"])
    assert denial(both, now_ns).code == "IncompleteSignature"


def test_a_content_type_need_not_be_signed_for_some_sdks_do_not() -> None:
    request, now_ns = signed(headers={"X-Amz-Target": "AmazonSQS.SendMessage"})
    assert "content-type" not in request.headers["authorization"]
    sent = with_header(request, "content-type", "application/x-amz-json-1.0")
    assert verify(sent, Known(), now_ns, REGION) == ALICE
    form, now_ns = presigned(method="POST")
    sent = with_header(form, "content-type", "application/x-www-form-urlencoded")
    assert verify(sent, Known(), now_ns, REGION) == ALICE


def test_a_signature_without_the_host_is_denied() -> None:
    request, now_ns = signed(headers={})
    unsigned = request.headers["authorization"].replace("host;", "")
    assert denial(with_header(request, "authorization", unsigned), now_ns).code == "AccessDenied"


def test_a_key_is_derived_once_a_day_for_a_secret() -> None:
    request, now_ns = signed()
    verify(request, Known(), now_ns, REGION)
    misses = _signing_key.cache_info().misses
    for _ in range(5):
        verify(request, Known(), now_ns, REGION)
    assert _signing_key.cache_info().misses == misses
