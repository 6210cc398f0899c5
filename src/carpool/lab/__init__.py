"""What sharing a model is worth on this machine: experiments on the engine, without HTTP."""
