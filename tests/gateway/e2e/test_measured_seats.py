"""What `carpool verify --apply` measured bounds what is admitted."""

from gateway_process import ScriptedEngine, gateway_process


def test_no_more_are_admitted_than_was_measured_whatever_the_engine_says(tmp_path):
    with ScriptedEngine(max_num_seqs=16).serving() as engine:
        config = f"""
            [[models]]
            name = "measured"
            backends = [{{engine = "{engine.url}", measured_num_seqs = 3}}]
        """
        with gateway_process("", tmp_path, config=config) as gateway:
            assert gateway.metric("seats") == 3
