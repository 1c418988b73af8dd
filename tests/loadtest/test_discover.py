"""Before any load: what is wrong with a server is one clear error, what it takes is found out."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.loadtest.client.address import Tls, parse_url
from headway.loadtest.client.request import Accepted, RequestTemplate
from headway.loadtest.errors import LoadTestError, Rejected, TlsFailed, Unauthorised, UnknownModel, Unreachable
from headway.loadtest.record import Fate
from headway.loadtest.runner.run import run
from headway.loadtest.side.discover import Discovered, discover
from tests.loadtest.servers import (
    DONE,
    END,
    Script,
    Turn,
    answering,
    error,
    event,
    plan_for,
    said,
    serving,
    stream,
    talks,
    usage,
    whole,
    words,
)


def template_for(url: str, **fields: Any) -> RequestTemplate:
    address, _ = parse_url(url)
    return RequestTemplate(address, **{"model": "m", **fields})


async def found(script: Script, models: list[str] | None = None, **template: Any) -> Discovered:
    async with serving(script, models=models) as server:
        return await discover(template_for(server.url, **template))


async def test_a_good_server_takes_everything() -> None:
    told = await found(talks, model="", models=["m"])
    assert told == Discovered("m", Accepted(), ())


async def test_the_first_of_several_models() -> None:
    told = await found(talks, model="", models=["a", "b"])
    assert told.model == "a"
    assert told.notes == ("the server has 2 models; the first is tested: a",)


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:\d+: connection refused. Is the server running"):
            await discover(template_for(f"http://127.0.0.1:{unused.getsockname()[1]}"))


async def test_no_such_host() -> None:
    with pytest.raises(Unreachable, match=r"'nowhere.invalid' has no address"):
        await discover(template_for("http://nowhere.invalid"))


async def test_somebody_who_does_not_speak_http() -> None:
    async def mail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ESMTP\r\n")
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(mail, "127.0.0.1", 0) as server:
        with pytest.raises(Unreachable, match="gave no HTTP answer"):
            await discover(template_for(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))


async def test_somebody_who_says_nothing() -> None:
    async def silent(turn: Turn) -> None:
        await asyncio.sleep(60)

    async with serving(silent) as server:
        with pytest.raises(Rejected, match=r"did not finish a request of 4 tokens in 0\.2 s"):
            await discover(template_for(server.url), timeout_s=0.2)


async def test_a_list_of_models_that_never_comes_is_done_without_where_the_model_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def posts_only(turn: Turn) -> None:
        await (asyncio.sleep(60) if turn.asked.method == "GET" else talks(turn))

    monkeypatch.setattr("headway.loadtest.side.discover.MODELS_TIMEOUT_S", 0.1)
    async with serving(posts_only, pages=True) as server:
        discovered = await discover(template_for(server.url))
        assert "the server does not list its models" in discovered.notes
        with pytest.raises(Unreachable, match=r"did not answer GET /v1/models in 0\.2 s"):
            await discover(template_for(server.url, model=""), timeout_s=0.2)


@pytest.mark.parametrize("status", [401, 403])
async def test_no_key_and_a_wrong_key(status: int) -> None:
    script = answering(whole(error("bad key sk-very-secret"), status=status))
    async with serving(script, pages=True) as server:
        with pytest.raises(Unauthorised, match="none was given"):
            await discover(template_for(server.url))
        with pytest.raises(Unauthorised, match="does not accept the API key") as caught:
            await discover(template_for(server.url, headers={"Authorization": "Bearer sk-very-secret"}))
    assert "sk-very-secret" not in repr(caught.value)
    assert "bad key ***" in str(caught.value)


async def test_one_tenants_key_is_wrong() -> None:
    async def script(turn: Turn) -> None:
        good = turn.asked.headers.get("authorization") == "Bearer one"
        turn.write(whole(b'{"data": [{"id": "m"}]}') if good else whole(error("who?"), status=401))

    tenants = {"a": {"Authorization": "Bearer one"}, "b": {"Authorization": "Bearer two"}}
    async with serving(script, pages=True) as server:
        with pytest.raises(Unauthorised, match="key of tenant 'b'"):
            await discover(template_for(server.url, tenant_headers=tenants))


async def test_a_wrong_model_names_those_that_exist() -> None:
    with pytest.raises(UnknownModel, match=r"does not serve the model 'x'. It serves: m, other\."):
        await found(talks, model="x", models=["m", "other"])


async def test_a_server_that_lists_nothing_must_be_told() -> None:
    async def script(turn: Turn) -> None:
        if turn.asked.method == "GET":
            turn.write(whole(b"{}", status=404))
        elif turn.asked.json["model"] == "right":
            await talks(turn)
        else:
            turn.write(whole(error("The model `x` does not exist", code="model_not_found"), status=404))

    async with serving(script, pages=True) as server:
        with pytest.raises(UnknownModel, match=r"lists no models. Name the one"):
            await discover(template_for(server.url, model=""))
        with pytest.raises(UnknownModel, match="does not say which it serves"):
            await discover(template_for(server.url, model="x"))
        assert (await discover(template_for(server.url, model="right"))).model == "right"


async def test_no_such_route() -> None:
    with pytest.raises(Rejected, match=r"404: Not Found. There is no such route under /v1"):
        await found(answering(whole(b'{"detail": "Not Found"}', status=404)))


# -- what is taken -----------------------------------------------------------------------------------------------------


def picky(*refused: str, says: str = "Unrecognized request argument supplied: {}") -> Script:
    """A server that refuses fields by name."""

    async def script(turn: Turn) -> None:
        body = turn.asked.json
        fields = {*body, *(body.get("stream_options") or {})}
        for name in refused:
            if name in fields:
                turn.write(whole(error(says.format(name)), status=400))
                return
        tokens = body.get("max_tokens") or body["max_completion_tokens"]
        told = [usage(tokens)] if body.get("stream_options") else []
        turn.write(stream(*[said("w")] * tokens, said(finish="length"), *told, DONE))

    return script


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        (["continuous_usage_stats"], Accepted(continuous_usage=False)),
        (["ignore_eos", "min_tokens"], Accepted(ignore_eos=False, min_tokens=False)),
        (["stream_options"], Accepted(usage=False)),
        (["temperature"], Accepted(temperature=False)),
    ],
)
async def test_what_is_refused_by_name_is_left_out(refused: list[str], left: Accepted) -> None:
    told = await found(picky(*refused))
    assert told.accepted == left
    assert len(told.notes) == len(refused)


async def test_a_server_that_does_not_say_what_it_dislikes() -> None:
    told = await found(picky("ignore_eos", says="bad request"))
    assert not told.accepted.ignore_eos
    assert told.accepted.usage


async def test_the_newer_name_of_the_limit() -> None:
    says = "Unsupported parameter: '{}' is not supported with this model. Use 'max_completion_tokens' instead."
    told = await found(picky("max_tokens", says=says))
    assert told.accepted == Accepted(limit_name="max_completion_tokens")


async def test_a_server_that_refuses_whatever_is_left_out() -> None:
    with pytest.raises(Rejected, match="400: never"):
        await found(answering(whole(error("never"), status=400)))


async def test_the_load_is_asked_for_as_the_server_takes_it() -> None:
    async with serving(picky("ignore_eos", "min_tokens", "continuous_usage_stats")) as server:
        template = template_for(server.url, model="")
        told = await discover(template)
        applied = told.applied(template)
        asked_before = len(server.asked)
        plan = plan_for(server.url, accepted=applied.accepted)
        (record,) = (await run(plan)).records
        body = server.asked[asked_before].json
    assert record.fate is Fate.OK
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "number 0"}],
    }


async def test_a_busy_server_is_waited_for() -> None:
    async def script(turn: Turn) -> None:
        if turn.number < 2:
            turn.write(whole(error("loading"), status=503, retry_after_ms="20"))
        else:
            await talks(turn)

    assert (await found(script)).model == "m"


async def test_a_server_that_stays_busy() -> None:
    with pytest.raises(Rejected, match=r"429: full. It limits this client even now"):
        await found(answering(whole(error("full"), status=429, retry_after_ms="1")))


async def test_no_usage_is_noted() -> None:
    told = await found(answering(stream(said("a", finish="stop"), DONE)))
    assert told.notes == ("the server tells no usage in streams: tokens are counted here",)


async def test_a_server_that_does_not_stream_at_all() -> None:
    body = json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode()
    with pytest.raises(Rejected, match="in one piece where a stream was asked for"):
        await found(answering(whole(body)))
    told = await found(answering(whole(body)), stream=False)
    assert told.notes == ("the server tells no usage: tokens are not counted",)


async def test_an_error_in_the_small_stream() -> None:
    with pytest.raises(Rejected, match="error event: no memory"):
        await found(answering(stream(event({"error": {"message": "no memory"}}))))


async def test_a_redirect_is_told() -> None:
    with pytest.raises(Rejected, match="redirects to https://there/v1/x: give that URL"):
        await found(answering(whole(b"", status=308, location="https://there/v1/x")))


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of localhost, signed by nobody; key and certificate in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
            "-keyout key.pem -out certificate.pem"
        ),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


def server_context(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


async def test_https(certificate: Path) -> None:
    async with serving(talks, tls=server_context(certificate)) as server:
        with pytest.raises(TlsFailed, match=r"certificate of 127.0.0.1:.* is not trusted"):
            await discover(template_for(server.url))
        for tls in (Tls(ca_file=str(certificate / "certificate.pem")), Tls(verify=False)):
            assert (await discover(template_for(server.url), tls)).model == "m"
            records = (await run(plan_for(server.url, requests=3, tls=tls))).records
            assert [record.fate for record in records] == [Fate.OK] * 3
        apart = await run(plan_for(server.url, requests=3, tls=tls, processes=1))  # on the loop of client processes
        assert [record.fate for record in apart.records] == [Fate.OK] * 3


async def test_https_to_a_plain_server() -> None:
    async with serving(talks) as server:
        with pytest.raises(TlsFailed, match=r"does not speak TLS|no TLS within 0\.3 s"):
            await discover(template_for(server.url.replace("http:", "https:")), connect_timeout_s=0.3)


async def test_certificates_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for name in ("junk.pem", "absent.pem"):
        with pytest.raises(LoadTestError, match=name):
            await discover(template_for("https://127.0.0.1:1"), Tls(ca_file=str(tmp_path / name)))


async def test_a_stream_that_has_finished_and_is_held_open_is_whole() -> None:
    """No [DONE], and the connection stays open: the load waits a moment for such a one, and so does the first look."""

    async def script(turn: Turn) -> None:
        turn.write(stream(*words(3)[:-1]).removesuffix(END))
        await asyncio.sleep(30)

    async with asyncio.timeout(10):
        assert (await found(script)).accepted == Accepted()
