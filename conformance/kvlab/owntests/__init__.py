"""An engine's own tests as drivers of its memory: they run without kvspec, then again with each event checked."""
