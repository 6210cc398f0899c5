from carpool.gateway.headers import downstream_headers, upstream_headers

JSON = (b"content-type", b"application/json")


def test_credentials_and_hop_by_hop_headers_stay_here():
    headers = [
        (b"authorization", b"Bearer cp-secret"),
        (b"x-api-key", b"cp-secret"),
        (b"cookie", b"a=b"),
        (b"connection", b"keep-alive, X-Mine"),
        (b"x-mine", b"1"),
        (b"te", b"trailers"),
        (b"host", b"gateway"),
        (b"content-length", b"3"),
        (b"accept-encoding", b"gzip"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"x-gateway-inference-fairness-id", b"boss"),
        (b"priority", b"u=0"),
        (b"content-type", b"text/plain"),
        (b"anthropic-version", b"2023-06-01"),
    ]
    assert upstream_headers(headers, None) == [headers[-1], JSON]


def test_the_engine_s_own_key_is_put_in():
    headers = upstream_headers([(b"authorization", b"Bearer theirs")], "ours")
    assert headers == [JSON, (b"authorization", b"Bearer ours"), (b"x-api-key", b"ours")]


def test_an_answer_keeps_its_own_headers():
    headers = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"7"),
        (b"x-request-id", b"r"),
        (b"cache-control", b"private"),
        (b"content-length", b"3"),
        (b"transfer-encoding", b"chunked"),
        (b"server", b"uvicorn"),
    ]
    assert downstream_headers(headers, is_stream=False) == headers[:4]


def test_a_stream_is_marked_as_not_to_be_buffered():
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"private")]
    assert downstream_headers(headers, is_stream=True) == [
        headers[0],
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
