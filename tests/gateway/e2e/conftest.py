"""One gateway for most tests, over one scripted engine; each test begins with both at rest."""

from collections.abc import Iterator

import pytest
from gateway_process import GatewayProcess, ScriptedEngine, gateway_process, until


@pytest.fixture(scope="session")
def shared_engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine().serving() as engine:
        yield engine


@pytest.fixture(scope="session")
def shared_gateway(
    shared_engine: ScriptedEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    home = tmp_path_factory.mktemp("gateway")
    with gateway_process(shared_engine.url, home) as gateway:
        yield gateway


@pytest.fixture
def engine(shared_engine: ScriptedEngine) -> ScriptedEngine:
    shared_engine.forget()
    return shared_engine


@pytest.fixture
def gateway(engine: ScriptedEngine, shared_gateway: GatewayProcess) -> GatewayProcess:
    at_rest(shared_gateway)
    engine.forget()
    return shared_gateway


def at_rest(gateway: GatewayProcess) -> None:
    """Nothing waits or runs, and the engine is trusted again after what it did wrong before."""
    until(lambda: gateway.is_idle)
    visitor = gateway.visitor
    until(lambda: visitor.ask().status_code == 200)
