"""An engine's own tests as drivers of its memory: run without kvspec, and again with each event checked at once."""
