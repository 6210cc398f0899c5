"""How to launch, probe and read an engine, whichever it is, and how to keep it running."""
