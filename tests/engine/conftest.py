"""Fixtures of the engine's tests."""

import pytest

from carpool.engine.tokenizer import Tokenizer, TokenizerConfig
from carpool.models.resolved import ResolvedModel


@pytest.fixture(scope="session")
def demo_tokenizer(resolved_model: ResolvedModel) -> Tokenizer:
    """The demo model's tokeniser: ids 0 to 16 are special, <|im_end|> (2) ends a text."""
    return Tokenizer(resolved_model.folder, TokenizerConfig.from_facts(resolved_model.tokenizer))
