"""What clients may ask of the endpoint, and that nothing they ask costs it a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.serve.settings import ServingSettings, WorkerLimits
from tests.simulators.frozen import active_of, frozen, until_busy
from tests.simulators.packages import variant
from tests.simulators.rig import Rig, body_of, infer


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.stop()


def test_another_model_or_version_is_unknown(rig: Rig) -> None:
    rig.use(variant("first"))
    client = rig.client()
    assert infer(client, "/v2/models/digits/versions/1.0/infer")[0] == 200
    assert infer(client, "/v2/models/digits/versions/2.0/infer")[0] == 404
    assert infer(client, "/v2/models/other/infer")[0] == 404
    client.request("GET", "/v2/models/digits")
    document = json.loads(client.getresponse().read())
    assert document["versions"] == ["1.0"]
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert document["parameters"]["variant"] == "first"
    client.close()


def test_an_inference_without_a_body_hears_in_one_line_what_to_send(rig: Rig) -> None:
    rig.use(variant("first"))
    client = rig.client()
    client.putrequest("POST", "/v2/models/digits/infer")  # as `curl -X POST` does: no length
    client.endheaders()
    answer = client.getresponse()
    error = json.loads(answer.read())["error"]
    assert (answer.status, "\n" in error) == (400, False)
    assert error.startswith("the request has no body")
    assert 'send {"inputs": [' in error
    assert infer(client)[0] == 200
    client.close()


def test_too_many_waiting_requests_are_put_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path, settings=ServingSettings(limits=WorkerLimits(waiting=0)))
    rig.use(variant("first"))
    active = active_of(rig)
    body, headers = body_of()
    busy, late = rig.client(), rig.client()
    with frozen(active.worker):
        busy.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
        until_busy(active.worker, active.scheduler)
        late.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
        answer = late.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    assert busy.getresponse().status == 200
    busy.close()
    late.close()
    rig.stop()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("fuzzed"))
    rig.use(variant("first"))
    yield rig
    rig.stop()


sizes = st.integers() | st.sampled_from([16, 0, -16, 2**63])
json_bodies = st.fixed_dictionaries(
    {
        "inputs": st.lists(
            st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["x", "y"]),
                    "datatype": st.sampled_from(["FP32", "FP16", "BYTES", "?"]),
                    "shape": st.lists(sizes, max_size=3) | st.just([1, 4]),
                },
                optional={
                    "data": st.lists(st.floats() | st.text(), max_size=5) | st.just([1, 2, 3, 4]),
                    "parameters": st.fixed_dictionaries({"binary_data_size": sizes}),
                },
            ),
            max_size=2,
        )
    }
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    json_bodies.map(lambda document: json.dumps(document).encode()) | st.binary(max_size=60),
    st.binary(max_size=20),
    st.sampled_from(["", "exact", "-1", "9999999", "x"]),
)
def test_any_request_costs_the_worker_nothing(
    fuzzed: Rig, content: bytes, raw: bytes, header_length: str
) -> None:
    pid = fuzzed.pid
    text = str(len(content)) if header_length == "exact" else header_length
    headers = {"Inference-Header-Content-Length": text} if text else {}
    client = fuzzed.client()
    client.request("POST", "/v2/models/digits/infer", body=content + raw, headers=headers)
    response = client.getresponse()
    answer = response.read()
    client.close()
    if response.status != 200:
        assert 400 <= response.status < 500
        assert set(json.loads(answer)) == {"error"}
    assert fuzzed.pid == pid
    assert fuzzed.server.router.is_ready
