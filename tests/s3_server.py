"""An S3 to test against, whose conditional writes are as atomic as S3's."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


@contextmanager
def s3_server(secret: str = "test") -> Iterator[dict[str, str]]:
    """A moto server on a free port of loopback; gives the storage properties by which clients reach it.

    moto looks whether an object exists and writes it in two steps, and answers requests in threads: of two writers
    with ``If-None-Match: *`` now and then both succeeded. S3 lets one of them win, so requests take turns here.
    """
    moto = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with turn:
            return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield {
            "s3.endpoint": f"http://127.0.0.1:{server.server_port}",
            "s3.access-key-id": "test",
            "s3.secret-access-key": secret,
            "s3.region": "us-east-1",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
